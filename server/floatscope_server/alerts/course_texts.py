"""What happened, for alerts on the slower course of a run, its layers' formats, its cards and its speed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["HAPPENED"]

HAPPENED: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("loss_divergence", ""): (
            (
                "The loss is {value} at step {step}, {ratio} times its best level {best}, and has not come down "
                "since step {since}{on}."
            ),
            "第 {step} 步损失为 {value}，是其最佳水平 {best} 的 {ratio} 倍，自第 {since} 步以来没有回落{on}。",
        ),
        ("loss_plateau", ""): (
            (
                "The loss has made no progress for {records} records up to step {step}: its median stands at "
                "{value}, after a fall from {first}{on}."
            ),
            ("截至第 {step} 步，损失已有 {records} 条记录没有进展：中位数停在 {value}，此前自 {first} 下降而来{on}。"),
        ),
        ("grad_norm_frozen", ""): (
            ("The gradient norm is {value}, to the last digit, in {records} records in a row up to step {step}{on}."),
            "第 {step} 步梯度范数为 {value}，已连续 {records} 条记录逐位相同{on}。",
        ),
        ("stale_grad_norm", ""): (
            "The gradient norm {value} of step {since} is printed again at step {step}, which was skipped{on}.",
            "第 {step} 步被跳过，输出的仍是第 {since} 步的梯度范数 {value}{on}。",
        ),
        ("lr_frozen", ""): (
            (
                "The learning rate stands at {value} since step {since}, for {records} records up to step {step}, "
                "although it moved before{on}."
            ),
            ("学习率自第 {since} 步起停在 {value}，截至第 {step} 步已有 {records} 条记录不变，而此前一直在变化{on}。"),
        ),
        ("scale_extreme", ""): (
            "At step {step} the scale of {where} is {value}, beyond {threshold} ({format}){more}.",
            "第 {step} 步{where}的缩放因子为 {value}，超出 {threshold}（{format}）{more}。",
        ),
        ("scale_extreme", "amax_zero"): (
            "At step {step} the amax of {where} is 0, although it had values before ({format}){more}.",
            "第 {step} 步{where}的 amax 为 0，而此前曾有数值（{format}）{more}。",
        ),
        ("scale_extreme", "nonfinite_followed"): (
            (
                "At step {step}, after the scale of {where} had left its range (now {value}), values that are not "
                "finite followed ({format}){more}."
            ),
            "第 {step} 步，{where}的缩放因子越界（现为 {value}）之后出现了非有限值（{format}）{more}。",
        ),
        ("dead_gradient", ""): (
            "At step {step} every element of {where} is zero, as it has been since step {since}{more}.",
            "第 {step} 步{where}的所有元素均为零，自第 {since} 步起一直如此{more}。",
        ),
        ("update_ratio", "high"): (
            "At step {step} {where} is {value} times its weight, above {threshold} for {steps} steps{more}.",
            "第 {step} 步{where}为权重的 {value} 倍，已连续 {steps} 步高于 {threshold}{more}。",
        ),
        ("update_ratio", ""): (
            "At step {step} {where} is {value} times its weight, below {threshold} for {steps} steps{more}.",
            "第 {step} 步{where}为权重的 {value} 倍，已连续 {steps} 步低于 {threshold}{more}。",
        ),
        ("precision_mismatch", ""): (
            "{layer} declares FP8 and executed {format} (seen at step {step}){more}.",
            "{layer} 声明为 FP8，实际以 {format} 执行（第 {step} 步所见）{more}。",
        ),
        ("format_mismatch", "ocp_on_fnuz"): (
            (
                "{layer} uses {format} at step {step} on a chip whose FP8 is FNUZ: the same bits mean half of it "
                "there{more}."
            ),
            "第 {step} 步 {layer} 使用 {format}，而该芯片的 FP8 为 FNUZ：同样的比特在其上只表示一半的数值{more}。",
        ),
        ("format_mismatch", "fnuz_on_ocp"): (
            (
                "{layer} uses {format} at step {step} on a chip whose FP8 is OCP: the same bits mean twice of it "
                "there{more}."
            ),
            "第 {step} 步 {layer} 使用 {format}，而该芯片的 FP8 为 OCP：同样的比特在其上表示两倍的数值{more}。",
        ),
        ("format_mismatch", ""): (
            "{layer} uses {format} at step {step} on a chip that has no FP8 instruction{more}.",
            "第 {step} 步 {layer} 使用 {format}，而该芯片没有 FP8 指令{more}。",
        ),
        ("clip_saturation", ""): (
            (
                "Up to step {step}, {percent} of the last {steps} gradients were clipped; this run's own level is "
                "{level_percent}{on}. Before clipping their norms were {p10} to {suggested_max_grad_norm} (10th to "
                "90th percentile)."
            ),
            (
                "截至第 {step} 步，最近 {steps} 步中有 {percent} 的梯度被裁剪，本次训练自身水平为 {level_percent}{on}"
                "。裁剪前的范数为 {p10} 至 {suggested_max_grad_norm}（第 10 至第 90 百分位）。"
            ),
        ),
        ("stalled", "no_step"): (
            "No step came for {value} s after step {step}; {threshold} s are the limit for this run.",
            "第 {step} 步之后已有 {value} 秒没有新的训练步，本次训练的上限为 {threshold} 秒。",
        ),
        ("stalled", ""): (
            "The run reports that it hangs at step {step}{on}: {text}",
            "训练在第 {step} 步报告挂起{on}：{text}",
        ),
        ("straggler", ""): (
            (
                "Rank {rank} needs {value} s a step at step {step}, {ratio} times the median of all ranks, for "
                "{steps} steps in a row."
            ),
            "第 {step} 步 rank {rank} 每步耗时 {value} 秒，为所有 rank 中位数的 {ratio} 倍，已连续 {steps} 步。",
        ),
        ("throughput_drop", ""): (
            (
                "A step takes {value} s at step {step}, {ratio} times its baseline of {baseline} s, since step "
                "{since}{on}."
            ),
            "第 {step} 步每步耗时 {value} 秒，为基线 {baseline} 秒的 {ratio} 倍，自第 {since} 步起{on}。",
        ),
        ("vram_near_oom", ""): (
            "{device} has {percent} of its memory in use at step {step} ({used} of {total}){on}.",
            "第 {step} 步 {device} 的显存已使用 {percent}（{used} / {total}）{on}。",
        ),
        ("vram_near_oom", "allocator_retry"): (
            (
                "The allocator of {device} had to give memory back and try again by step {step} ({value} times so "
                "far){on}."
            ),
            "截至第 {step} 步，{device} 的分配器曾释放缓存后重试（累计 {value} 次）{on}。",
        ),
        ("vram_leak", ""): (
            (
                "The memory of {device} grows by {slope} a second in a straight line; at this pace it is full "
                "{value} s after step {step} ({used} of {total}){on}."
            ),
            (
                "{device} 的显存以每秒 {slope} 线性增长；按此速度，第 {step} 步之后 {value} 秒将用尽（{used} / "
                "{total}）{on}。"
            ),
        ),
        ("vram_jitter", ""): (
            "The memory in use of {device} jumped {value} times within {samples} samples up to step {step}{on}.",
            "截至第 {step} 步，{device} 的显存占用在 {samples} 次采样内跳动了 {value} 次{on}。",
        ),
        ("gpu_util_drop", ""): (
            (
                "{device} is {value} % busy at step {step} (median of {seconds} s); this run's own level is {level} "
                "%{on}."
            ),
            "第 {step} 步 {device} 的利用率为 {value} %（{seconds} 秒中位数），本次训练自身水平为 {level} %{on}。",
        ),
        ("gpu_imbalance", ""): (
            "At step {step} {device} is {idlest_percent} % busy and {busiest} {busiest_percent} %.",
            "第 {step} 步 {device} 的利用率为 {idlest_percent} %，而 {busiest} 为 {busiest_percent} %。",
        ),
        ("gpu_fault", "throttle"): (
            "A card runs slower to protect itself at step {step}{card}: {text}",
            "第 {step} 步显卡为自我保护而降频{card}：{text}",
        ),
        ("gpu_fault", "hang"): (
            "A card hangs at step {step}{card}: {text}",
            "第 {step} 步显卡挂起{card}：{text}",
        ),
        ("gpu_fault", "ecc_count"): (
            "{device} has met {new} more memory errors that it cannot correct by step {step}, {value} in all{on}.",
            "截至第 {step} 步，{device} 新增 {new} 个不可纠正的内存错误，累计 {value} 个{on}。",
        ),
        ("gpu_fault", "throttle_heat"): (
            (
                "Heat holds down the clocks of {device} for {value} % of the time (mean of {seconds} s up to step "
                "{step}){on}."
            ),
            "截至第 {step} 步，{device} 因过热降频的时间占 {value} %（{seconds} 秒均值）{on}。",
        ),
        ("gpu_fault", "throttle_brake"): (
            (
                "A signal from outside holds down the clocks of {device} for {value} % of the time (mean of {seconds} "
                "s up to step {step}){on}."
            ),
            "截至第 {step} 步，{device} 因外部信号降频的时间占 {value} %（{seconds} 秒均值）{on}。",
        ),
        ("gpu_fault", "link_width"): (
            "{device} works on {value} of the {threshold} lanes of its PCI Express link at step {step}{on}.",
            "第 {step} 步 {device} 的 PCI Express 链路仅使用 {threshold} 条通道中的 {value} 条{on}。",
        ),
        ("gpu_fault", ""): (
            "A card reports a memory error that it cannot correct at step {step}{card}: {text}",
            "第 {step} 步显卡报告不可纠正的内存错误{card}：{text}",
        ),
        ("data_gap", ""): (
            "{value} records of the steps {first} to {last} are lost: {reason}{on}.",
            "第 {first} 至 {last} 步的 {value} 条记录已丢失：{reason}{on}。",
        ),
        ("coverage_low", ""): (
            "The gradients of {missing} of {trainable} layers that train are not observed (step {step}).",
            "{trainable} 个参与训练的层中有 {missing} 个未被观测到梯度（第 {step} 步）。",
        ),
    }
)
"""(kind, reason) -> what happened, in English and Chinese; the reason "" stands for the others of a kind."""
