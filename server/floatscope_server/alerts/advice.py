"""What an alert usually means and what to try, by (kind, reason); the reason "" stands for the others of a kind.
``{setting}`` is spelled as the run's framework does (``keys.SETTINGS``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from floatscope_server.alerts import course_advice

__all__ = ["ADVICE"]

_NAN = (
    (
        "Every update from here on spoils the weights: stop, go back to a checkpoint from before this step, "
        "and lower the "
        "peak learning rate ({lr}) or lengthen the warm-up ({warmup}); in fp16 change to bf16 if "
        "the card has "
        "it."
    ),
    (
        "此后的每次更新都会破坏权重：请停止训练，回到该步之前的检查点，降低峰值学习率（{lr}）或延长预热"
        "（{warmup}）；若为 fp16 且硬件支持，请改用 bf16。"
    ),
)

ADVICE: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        **course_advice.ADVICE,
        ("nonfinite", ""): _NAN,
        ("nonfinite", "skipped"): (
            (
                "The scaler skipped this step, so the weights are still sound, but lowering the loss scale does not "
                "help against a NaN in the forward pass: lower the peak learning rate ({lr}), lengthen the "
                "warm-up ({warmup}), or use a format with more range."
            ),
            (
                "缩放器跳过了该步，权重仍然正常；但降低损失缩放无法消除前向计算中的 NaN：请降低峰值学习率"
                "（{lr}）、延长预热（{warmup}），或使用范围更大的格式。"
            ),
        ),
        ("nonfinite", "gradient_overflow"): (
            "A loss scaler finds its level this way: single steps are harmless, three in a row are not.",
            "损失缩放器以此寻找合适的尺度：偶发一步无害，连续三步则不然。",
        ),
        ("nonfinite", "gradients_in_a_row"): (
            (
                "The loss may still look normal. If the loss scale falls with it, lower the learning rate or "
                "change to "
                "bf16; if no scaler is in use, the forward or backward pass itself produces NaN."
            ),
            (
                "损失可能看似正常。若损失缩放随之下降，请降低学习率或改用 bf16；若未使用缩放器，"
                "则前向或反向计算本身产生了 NaN。"
            ),
        ),
        ("nonfinite", "masked_grad_norm"): (
            (
                "The optimizer is fed a stand-in, the model learns nothing. With DeepSpeed ZeRO set "
                "overlap_comm to false "
                "or upgrade DeepSpeed, and look for the NaN in the forward pass."
            ),
            (
                "优化器收到的是替代值，模型并未学习。使用 DeepSpeed ZeRO 时请将 overlap_comm 设为 false 或升级 "
                "DeepSpeed，"
                "并检查前向计算中的 NaN。"
            ),
        ),
        ("loss_zero", ""): (
            (
                "A real loss does not reach 0.0: transformers' logging_nan_inf_filter prints it in place of a "
                "NaN. Stop, go "
                "back to the last checkpoint with a sound loss, and use bf16 or a lower learning rate."
            ),
            (
                "真实损失不会恰好为 0.0：transformers 的 logging_nan_inf_filter 会以它替代 NaN。请停止训练，"
                "回到损失正常的"
                "检查点，并改用 bf16 或降低学习率。"
            ),
        ),
        ("loss_spike", ""): (
            (
                "A single record is most often a hard batch; a lasting jump means a learning rate that is too "
                "high, bad "
                "data, or an optimizer state that was not restored. Watch the gradient norm; if it does not "
                "come back "
                "within some tens of steps, return to the checkpoint before."
            ),
            (
                "单条记录多为困难批次；持续跳升通常意味着学习率过高、数据有误或优化器状态未恢复。"
                "请关注梯度范数；若数十步内未"
                "回落，请回到之前的检查点。"
            ),
        ),
        ("grad_norm_spike", ""): (
            (
                "Isolated spikes are clipped away and harmless; two in a row often come some steps before the "
                "loss jumps. "
                "Check that {clip} is set, and lower the learning rate if they return."
            ),
            (
                "孤立的尖峰会被裁剪，通常无害；连续两次往往先于损失跳升数步出现。请确认已设置 {clip}；"
                "若反复出现请降低"
                "学习率。"
            ),
        ),
        ("loss_scale_collapse", ""): (
            (
                "No update was applied on skipped steps. Where a lower scale does not end the overflows, they do not "
                "come from the scale: look for the first non-finite layer, lower the learning rate, or use a format "
                "with more range (bf16 in place of fp16)."
            ),
            (
                "被跳过的步没有更新参数。若降低缩放后仍然溢出，则原因不在缩放：请查看首个非有限的层，降低学习率，"
                "或使用范围更大的格式（以 bf16 代替 fp16）。"
            ),
        ),
        ("loss_scale_collapse", "at_minimum"): (
            (
                "A lower scale cannot help: the values themselves are not finite. Go back to a checkpoint from "
                "before the "
                "scale began to fall, and use bf16 or a lower learning rate."
            ),
            "降低缩放已无济于事：数值本身不是有限值。请回到缩放开始下降之前的检查点，并改用 bf16 或降低学习率。",
        ),
        ("limit_near", ""): (
            (
                "One doubling more and it overflows. Lower the scale of this operand (a larger margin, a longer amax "
                "history), or the learning rate; a format with more range (E5M2, bf16) is the lasting cure."
            ),
            (
                "再翻一倍就会溢出。请降低该操作数的缩放（更大的 margin、更长的 amax 历史）或降低学习率；"
                "范围更大的格式"
                "（E5M2、bf16）是根本办法。"
            ),
        ),
        ("limit_crossed", ""): (
            (
                "What follows is NaN or clamped, by the cast in use. With delayed scaling raise the margin or "
                "shorten the "
                "update interval; otherwise lower the learning rate or keep this layer in bf16. E4M3 ends at 240 on "
                "MI300 (FNUZ), at 448 elsewhere."
            ),
            (
                "其后的结果取决于所用转换：NaN 或被截断。使用延迟缩放时请增大 margin 或缩短更新间隔；"
                "否则请降低学习率，或让该层"
                "保持 bf16。E4M3 在 MI300（FNUZ）上的最大值为 240，其他硬件为 448。"
            ),
        ),
        ("limit_near", "fp16"): (
            (
                "One doubling more and it overflows: FP16 ends at 65504. Lower the learning rate, or keep this layer "
                "in bf16 or fp32; in training code without a GradScaler use one and pass it as scaler=."
            ),
            (
                "再翻一倍就会溢出：FP16 的最大值为 65504。请降低学习率，或让该层使用 bf16 或 fp32；"
                "若训练代码未使用 GradScaler，请使用它并以 scaler= 传入。"
            ),
        ),
        ("limit_crossed", "fp16"): (
            (
                "FP16 ends at 65504 and gives Inf above. Lower the learning rate, or keep this layer in bf16 or fp32. "
                "If a GradScaler runs in this training, pass it as scaler=: its overflows are then told apart."
            ),
            (
                "FP16 的最大值为 65504，超出即为 Inf。请降低学习率，或让该层使用 bf16 或 fp32。"
                "若训练中使用了 GradScaler，请以 scaler= 传入，其溢出便能区分开来。"
            ),
        ),
        ("limit_crossed", "scale_not_finite"): (
            (
                "A scale is infinite where the amax of a tensor or row is 0. Set a lower bound for the amax "
                "(torchao: "
                "activation_value_lb=1e-12)."
            ),
            "张量或某一行的 amax 为 0 时缩放因子为无穷大。请为 amax 设置下限（torchao：activation_value_lb=1e-12）。",
        ),
        ("underflow", ""): (
            (
                "Small values are lost before the product is formed and the layer learns from the large ones "
                "alone. Raise "
                "the scale of this operand if its headroom allows, or keep the layer in bf16."
            ),
            (
                "较小的数值在计算乘积前已丢失，该层只从较大的数值中学习。若余量允许请提高该操作数的缩放，"
                "或让该层保持 bf16。"
            ),
        ),
        ("underflow", "lost"): (
            ("Values were lost that a higher scale kept: raise the loss scale ({first_scale}), or train in bf16."),
            "较高缩放下得以保留的数值已丢失：请提高损失缩放（{first_scale}），或改用 bf16 训练。",
        ),
    }
)
