"""What the alerts on the slower course of a run usually mean and what to try; ``{setting}`` is spelled as the run's
framework does (``keys.SETTINGS``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ADVICE"]

ADVICE: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("loss_divergence", ""): (
            (
                "The usual causes are a learning rate that is too high for this batch size or adapter rank, a "
                "warm-up that is too short, or a damaged optimizer state. Go back to a checkpoint from before the "
                "loss rose, lower the learning rate ({lr}), lengthen the warm-up ({warmup}), and keep clipping on "
                "({clip})."
            ),
            (
                "常见原因：学习率对该批大小或适配器秩而言过高、预热过短，或优化器状态损坏。请回到损失上升之前的检查点"
                "，降低学习率（{lr}），延长预热（{warmup}），并保持梯度裁剪（{clip}）。"
            ),
        ),
        ("loss_plateau", ""): (
            (
                "The learning rate would still let it move. Either the model has learnt what the data hold, or it is "
                "stuck: look at the evaluation loss, at layers whose gradients vanish, and at the learning rate "
                "({lr})."
            ),
            (
                "学习率仍允许损失变化：或者模型已学尽数据所含，或者陷入停滞。请查看评估损失、梯度消失的层以及学习率（"
                "{lr}）。"
            ),
        ),
        ("grad_norm_frozen", ""): (
            (
                "No real gradient repeats to the last digit: either a constant stands in for a NaN, or the number is "
                "that of an earlier step. Look for the NaN in the forward pass; with DeepSpeed ZeRO set overlap_comm "
                "to false or upgrade."
            ),
            (
                "真实梯度不会逐位重复：或是以常数替代了 NaN，或是沿用了此前的数值。请检查前向计算中的 NaN；使用 "
                "DeepSpeed ZeRO 时请将 overlap_comm 设为 false 或升级。"
            ),
        ),
        ("stale_grad_norm", ""): (
            (
                "The scaler skips these steps and the log repeats the last norm that it knew: read the loss scale "
                "instead."
            ),
            "缩放器跳过了这些步，日志重复了最近一次已知的范数：请改看损失缩放。",
        ),
        ("lr_frozen", ""): (
            (
                "The scheduler only moves when the optimizer steps, so the updates are skipped and the model does "
                "not learn. Find out why gradients are not finite; in fp16 change to bf16 ({bf16}) or lower the "
                "learning rate ({lr})."
            ),
            (
                "调度器只在优化器更新时前进，说明更新被跳过、模型没有学习。请查明梯度为何不是有限值；若为 fp16，请改"
                "用 bf16（{bf16}）或降低学习率（{lr}）。"
            ),
        ),
        ("scale_extreme", ""): (
            (
                "An amax close to zero gives a scale that no kernel can multiply with safely: an all-zero or "
                "masked-out row, a dead layer, or loss values that vanish. Set a lower bound for the amax (torchao: "
                "activation_value_lb=1e-12), lengthen the amax history ({fp8_margin}), or keep this layer in bf16."
            ),
            (
                "amax 接近零会得到无法安全相乘的缩放因子：整行为零或被屏蔽、层已失活，或损失过小。请为 amax 设置下限"
                "（torchao：activation_value_lb=1e-12），延长 amax 历史（{fp8_margin}），或让该层保持 bf16。"
            ),
        ),
        ("dead_gradient", ""): (
            (
                "The layer does not learn any more: a detached graph, a mask or gate that closed, dead ReLUs, an "
                "expert that gets no tokens, or gradients that underflow. Check the underflow share of the layer, "
                "and lower the learning rate ({lr}) if its activations collapsed."
            ),
            (
                "该层已停止学习：计算图被截断、掩码或门控关闭、ReLU 失活、专家没有分到 token，或梯度下溢。请查看该层"
                "的下溢占比；若激活已塌缩请降低学习率（{lr}）。"
            ),
        ),
        ("update_ratio", "high"): (
            (
                "Each step rewrites a tenth of the layer: lower the learning rate ({lr}) for it, lengthen the "
                "warm-up ({warmup}), or check the optimizer's eps and betas."
            ),
            (
                "每一步都改写了该层的十分之一：请降低其学习率（{lr}），延长预热（{warmup}），或检查优化器的 eps 与 "
                "betas。"
            ),
        ),
        ("update_ratio", ""): (
            (
                "Updates this small are lost when the weight is rounded to bf16, whose step is 2^-8 of a value: "
                "raise the learning rate ({lr}), or keep the weights in fp32 (LLaMA-Factory: not pure_bf16)."
            ),
            (
                "如此小的更新在权重舍入为 bf16（相对间隔 2^-8）时会丢失：请提高学习率（{lr}），或以 fp32 保存权重（"
                "LLaMA-Factory：不使用 pure_bf16）。"
            ),
        ),
        ("precision_mismatch", ""): (
            (
                "FP8 is not in effect for it: the chip or the shape is not supported (dimensions that are no "
                "multiple of 16), autocast is off, or the module fell back. Check the FP8 settings ({fp8}) and the "
                "messages at the start."
            ),
            (
                "FP8 对其未生效：芯片或形状不受支持（维度不是 16 的倍数）、autocast 未开启，或模块已回退。请检查 FP8 "
                "设置（{fp8}）与启动时的日志。"
            ),
        ),
        ("format_mismatch", ""): (
            (
                "Values read as the other variant are off by exactly 2: use e4m3fnuz and e5m2fnuz on MI300 and MI325 "
                "and the OCP formats everywhere else; a chip without FP8 (MI200, RDNA 3, Ampere) needs bf16 ({bf16})."
            ),
            (
                "按另一变体读取的数值恰好相差 2 倍：MI300 与 MI325 请使用 e4m3fnuz、e5m2fnuz，其他硬件使用 OCP 格式；"
                "没有 FP8 的芯片（MI200、RDNA 3、Ampere）请使用 bf16（{bf16}）。"
            ),
        ),
        ("clip_saturation", ""): (
            (
                "A norm that is clipped step after step turns clipping into the learning rate. If training is "
                "otherwise sound, set the clipping norm ({clip}) to about the 90th percentile above; if the norms "
                "themselves have grown, lower the learning rate ({lr})."
            ),
            (
                "步步被裁剪时，裁剪就成了学习率。若训练其他方面正常，请将裁剪范数（{clip}）设为上述第 90 百分位左右；"
                "若范数本身在增长，请降低学习率（{lr}）。"
            ),
        ),
        ("stalled", ""): (
            (
                "Most often one rank waits for another in a collective, a data loader is stuck, or a card hangs. "
                "Take a stack of each rank (py-spy dump --pid PID), look at the kernel log for GPU resets, and set "
                "the time-out of collectives ({timeout}) to minutes, so that a hang ends with an error."
            ),
            (
                "最常见的是某个 rank 在集合通信中等待、数据加载卡住，或显卡挂起。请对每个 rank 获取调用栈（py-spy "
                "dump --pid PID），查看内核日志中的 GPU 复位，并将集合通信超时（{timeout}）设为数分钟，使挂起以报错结"
                "束。"
            ),
        ),
        ("straggler", ""): (
            (
                "Compare its card's clocks, temperature and PCIe width with the others', then its data: longer "
                "samples, a slow disk, too few loader processes ({workers})."
            ),
            (
                "请先将其显卡的频率、温度与 PCIe 带宽同其他卡比较，再检查其数据：样本更长、磁盘较慢，或加载进程过少（"
                "{workers}）。"
            ),
        ),
        ("throughput_drop", ""): (
            (
                "Look for a card that throttles, a slow node, a data loader that does not keep up ({workers}), other "
                "jobs on the machine, or longer sequences."
            ),
            "请检查是否有显卡降频、节点变慢、数据加载跟不上（{workers}）、机器上有其他任务，或序列变长。",
        ),
        ("vram_near_oom", ""): (
            (
                "The next longer batch can end the run: lower the batch size ({batch}), recompute activations "
                "({recompute}), or set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF or "
                "PYTORCH_HIP_ALLOC_CONF in torch before 2.9) against fragmentation."
            ),
            (
                "下一个更长的批次就可能中断训练：请减小批大小（{batch}），启用激活重计算（{recompute}），或设置 "
                "PYTORCH_ALLOC_CONF=expandable_segments:True（torch 2.9 之前为 PYTORCH_CUDA_ALLOC_CONF 或 "
                "PYTORCH_HIP_ALLOC_CONF）以减少碎片。"
            ),
        ),
        ("vram_leak", ""): (
            (
                "Something keeps tensors alive: losses collected without .item() or .detach(), a growing cache, "
                "hooks that are added every step, sequences that get longer. Compare two "
                "torch.cuda.memory_snapshot() some steps apart."
            ),
            (
                "有张量未被释放：收集损失时未用 .item() 或 .detach()、缓存不断增长、每步添加钩子，或序列变长。请比较"
                "相隔若干步的两次 torch.cuda.memory_snapshot()。"
            ),
        ),
        ("vram_jitter", ""): (
            (
                "Memory is given back and taken again: torch.cuda.empty_cache() in the loop, lengths that vary a "
                "lot, or offloading. Group samples by length (transformers: group_by_length) or pack them."
            ),
            (
                "显存被反复归还与申请：循环中调用 torch.cuda.empty_cache()、长度差异很大，或使用了卸载。请按长度分组"
                "（transformers：group_by_length）或打包样本。"
            ),
        ),
        ("gpu_util_drop", ""): (
            (
                "The card waits: for data ({workers}), for another rank, for a checkpoint or an evaluation, or it "
                "throttles."
            ),
            "显卡在等待：等待数据（{workers}）、其他 rank、检查点或评估，或正在降频。",
        ),
        ("gpu_imbalance", ""): (
            (
                "Work is not spread evenly: pipeline stages of different size, experts that get more tokens, "
                "unsorted lengths, or a rank that waits for its data ({workers})."
            ),
            (
                "负载不均：流水线各段大小不同、部分专家分到更多 token、样本长度未排序，或某个 rank 在等待数据（"
                "{workers}）。"
            ),
        ),
        ("gpu_fault", ""): (
            (
                "Save what can be saved and take the card out of the run: read the kernel log (dmesg) and rocm-smi "
                "--showrasinfo or nvidia-smi -q -d ECC, reset or reboot, and start again from the last checkpoint."
            ),
            (
                "请保存可保存的内容并停用该卡：查看内核日志（dmesg）以及 rocm-smi --showrasinfo 或 nvidia-smi -q -d "
                "ECC，复位或重启后从最近的检查点继续。"
            ),
        ),
        ("gpu_fault", "throttle_heat"): (
            (
                "Look at fans, pump, dust and the temperature of the air that goes in, and at the cards beside it: "
                "every rank waits for the slowest card. A lower power cap costs less than heat does."
            ),
            (
                "请检查风扇、水泵、积尘与进风温度，以及相邻显卡：所有 rank 都要等待最慢的显卡。适当降低功率上限比过热"
                "降频损失更小。"
            ),
        ),
        ("gpu_fault", "throttle_brake"): (
            (
                "The power supply, the board or another chip asks the card to slow down (PROCHOT, power brake): look "
                "at the machine's event log (ipmitool sel list), its power supplies and the cables of the card."
            ),
            (
                "电源、主板或其他芯片要求显卡降频（PROCHOT、power brake）：请查看机器事件日志（ipmitool sel list）、"
                "电源与显卡供电线。"
            ),
        ),
        ("gpu_fault", "link_width"): (
            (
                "Transfers to and from the host and to cards without another link take that much longer. Reseat the "
                "card or riser when the run has ended; dmesg | grep -i -e aer -e pcie tells when it happened."
            ),
            (
                "与主机及其他显卡之间经 PCI Express 的传输会相应变慢。请在训练结束后重新插拔显卡或转接卡；dmesg | "
                "grep -i -e aer -e pcie 可查看发生时间。"
            ),
        ),
        ("gpu_fault", "throttle"): (
            "Look at temperature, power cap and airflow: every rank waits for the slowest card.",
            "请检查温度、功率上限与散热：所有 rank 都要等待最慢的显卡。",
        ),
        ("data_gap", ""): (
            (
                "What was lost is telemetry, not training. If it goes on, look at the connection and at the room for "
                "the agent's spool (FLOATSCOPE_DIR)."
            ),
            "丢失的是遥测数据，不影响训练。若持续出现，请检查网络连接与代理暂存空间（FLOATSCOPE_DIR）。",
        ),
        ("coverage_low", ""): (
            (
                "What is not observed raises no alert. The page of the run lists the layers by reason; watch the "
                "model before it is compiled, wrapped or given new parameters."
            ),
            "未被观测的层不会产生告警。运行页面按原因列出了这些层；请在模型编译、包装或替换参数之前开始观测。",
        ),
    }
)
"""(kind, reason) -> what it usually means and what to try, in English and Chinese."""
