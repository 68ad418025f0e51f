"""What an alert says to a person, in English and Chinese: what happened, where first, what it usually means, what to
try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_server.alerts.advice import ADVICE
from floatscope_server.alerts.course_texts import HAPPENED
from floatscope_server.alerts.keys import with_keys
from floatscope_server.rules.loss_scale import Scaler
from floatscope_server.rules.verdict import Verdict

__all__ = ["figure", "message"]

_TENSORS = {
    "grad": ("gradient", "梯度"),
    "act": ("output", "输出"),
    "act_in": ("input", "输入"),
    "act_grad": ("output gradient", "输出的梯度"),
    "weight": ("weight", "权重"),
    "update": ("update", "更新量"),
    "loss": ("loss", "损失"),
}


_SCALER_STATES = {
    Scaler.WARM_UP: "预热",
    Scaler.HEALTHY: "正常",
    Scaler.OSCILLATING: "振荡",
    Scaler.COLLAPSING: "崩溃",
    Scaler.AT_MINIMUM: "已至最小值",
    Scaler.BELOW_ONE: "低于 1",
}


def figure(value: float | None) -> str:
    """A number for a sentence: four significant digits, a large power of two as such."""
    if value is None:
        return "?"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent > 11 else f"{value:.4g}"


_SPELLED = frozenset(
    {
        "nonfinite",
        "loss_zero",
        "loss_spike",
        "grad_norm_spike",
        "loss_scale_collapse",
        "limit_near",
        "limit_crossed",
        "underflow",
    }
)
"""Kinds whose sentences depend on more than their numbers; ``course_texts`` has those of the others."""

_BYTES = frozenset({"used", "total", "slope"})


@dataclass(frozen=True, slots=True)
class _Words:
    """The pieces of a sentence, [English, Chinese]."""

    where: tuple[str, str]
    more: tuple[str, str]
    origin: tuple[str, str]


def _tensor(kind: str | None) -> tuple[str, str]:
    return _TENSORS.get(kind or "", (kind or "tensor", kind or "张量"))


def _where(verdict: Verdict) -> tuple[str, str]:
    english, chinese = _tensor(verdict.tensor)
    rank = "" if verdict.rank is None else f" on rank {verdict.rank}"
    rank_zh = "" if verdict.rank is None else f"（rank {verdict.rank}）"
    if verdict.layer is None:
        return rank, rank_zh
    return f"the {english} of {verdict.layer}{rank}", f"{verdict.layer} 的{chinese}{rank_zh}"


def _more(verdict: Verdict, hits: int) -> tuple[str, str]:
    if verdict.layer is None or hits <= 1:
        return "", ""
    layers = "layer" if hits == 2 else "layers"
    return f"; the same in {hits - 1} more {layers}", f"，另有 {hits - 1} 层同样如此"


def _origin(producer: Mapping[str, Any] | None, limit: Mapping[str, Any] | None) -> tuple[str, str]:
    """Where the values left the finite range."""
    if producer is None:
        if limit is None:
            return " No tensor of that step shows where it came from.", " 该步没有张量记录能说明其来源。"
        return _limit(limit)
    first, after, inside = producer["first"], producer["after"], producer["in"]
    kind, kind_zh = _tensor(producer["kind"])
    scope = f" in {inside}" if inside else ""
    scope_zh = f"（位于 {inside} 内）" if inside else ""
    match producer["how"]:
        case "module" if producer["alone"]:
            text = (
                f" It came from {first}: its inputs and parameters were finite, its {kind} was not.",
                f" 来源是 {first}：其输入与参数均为有限值，而{kind_zh}不是。",
            )
        case "module":
            text = (
                f" It came from inside {first}: its inputs were finite, its {kind} was not.",
                f" 来源在 {first} 内部：其输入为有限值，而{kind_zh}不是。",
            )
        case "parameters":
            text = (
                f" The parameters of {first} were not finite any more before this step.",
                f" 在该步之前 {first} 的参数已不是有限值。",
            )
        case "loss":
            text = (
                f" Every recorded output up to {after} was finite: it arose after it, in the loss.",
                f" 直到 {after} 的所有记录输出均为有限值：问题出现在其后的损失计算中。",
            )
        case "not_later_than":
            text = (
                (
                    f" Only gradients were read at this step: {first} is the first of them to be broken, and what "
                    "broke them lies there or before it in the model. The agent looks closer from here on for a while: "
                    "if it happens again with sound weights, the layer is named."
                ),
                (
                    f" 该步只读取了梯度：{first} 是其中最先损坏的，问题出在该层或模型中更靠前的层。"
                    "代理此后会在一段时间内读取更多数据：若在权重正常时再次发生，将指明具体的层。"
                ),
            )
        case "backward" | "between" if after is None:
            text = (
                f" It arose in {first} or before it: no finite tensor was recorded earlier.",
                f" 出现在 {first} 或其之前：更早没有有限的张量记录。",
            )
        case "backward":
            text = (
                f" Going backward it arose between {after} and {first}{scope}.",
                f" 反向传播中出现在 {after} 与 {first} 之间{scope_zh}。",
            )
        case _:
            text = (
                f" It arose between {after} (last finite output) and {first} (first non-finite {kind}){scope}.",
                f" 出现在 {after}（最后的有限输出）与 {first}（首个非有限{kind_zh}）之间{scope_zh}。",
            )
    if limit is None:
        return text
    english, chinese = _limit(limit)
    return text[0] + english, text[1] + chinese


def _later(verdict: Verdict) -> tuple[str, str]:
    """What a step after the first one said, of which more was read."""
    step, parameters = verdict.detail.get("producer_step"), verdict.detail.get("parameters")
    if step is not None:
        return f" It came again, and step {step} was read more closely.", f" 问题再次出现，第 {step} 步有更详细的记录。"
    if parameters is None:
        return "", ""
    return (
        (
            f" By step {parameters['step']} the parameters of {parameters['layer']} were not finite themselves, so no "
            "later step can tell which layer was first."
        ),
        (
            f" 到第 {parameters['step']} 步，{parameters['layer']} 的参数本身已不是有限值，"
            "之后的步骤无法再指明最先出错的层。"
        ),
    )


def _last_sound(verdict: Verdict) -> tuple[str, str]:
    """Where to look when the weights themselves are spoilt."""
    producer = verdict.detail.get("producer")
    spoilt = "parameters" in verdict.detail or (producer is not None and producer["how"] == "parameters")
    sound = verdict.since_step - 1
    if not spoilt or sound < 0:
        return "", ""
    return (
        f" The last step before it is {sound}; with the flight recorder on, a dump of the run holds it.",
        f" 此前最后一步为第 {sound} 步；若飞行记录器已开启，本次运行的转储中有该步的数据。",
    )


def _limit(limit: Mapping[str, Any]) -> tuple[str, str]:
    kind, kind_zh = _tensor(limit["kind"])
    return (
        f" At that step the {kind} of {limit['layer']} left the range of {limit['format']}.",
        f" 该步 {limit['layer']} 的{kind_zh}超出了 {limit['format']} 的范围。",
    )


def _scaler(detail: Mapping[str, Any]) -> tuple[str, str]:
    scale, high = detail["loss_scale"], detail["highest_scale"]
    if scale is None or high is None:
        return "", ""
    return (
        f" The loss scale is {figure(scale)}, down from {figure(max(scale, high))}; the scaler is {detail['scaler']}.",
        (
            f" 损失缩放为 {figure(scale)}，此前最高 {figure(max(scale, high))}；"
            f"缩放器状态：{_SCALER_STATES[Scaler(detail['scaler'])]}。"
        ),
    )


def _happened(verdict: Verdict, step: int, words: _Words) -> tuple[str, str]:
    """The first sentences."""
    value, threshold = figure(verdict.value), figure(verdict.threshold)
    detail = verdict.detail
    where, where_zh = words.where
    more, more_zh = words.more
    match verdict.kind, verdict.reason:
        case "nonfinite", "loss":
            text = (
                f"The loss is {value} at step {step}{_on(verdict)}.",
                f"第 {step} 步损失为 {value}{_on_zh(verdict)}。",
            )
        case "nonfinite", "raw_loss":
            batches = "1 micro-batch" if verdict.value == 1 else f"{value} micro-batches"
            text = (
                f"{batches} of step {step} had a loss that is not finite{_on(verdict)}.",
                f"第 {step} 步有 {value} 个微批次的损失不是有限值{_on_zh(verdict)}。",
            )
        case "nonfinite", "eval_loss":
            text = f"The evaluation loss is {value} at step {step}.", f"第 {step} 步评估损失为 {value}。"
        case "nonfinite", "loss_absent":
            text = (
                f"Step {step} printed no loss although the loss scale did not fall: it was NaN.",
                f"第 {step} 步未输出损失，而损失缩放并未下降：损失为 NaN。",
            )
        case "nonfinite", "masked_grad_norm":
            text = (
                f"The gradient norm stands at {value} at step {step}, the constant put in place of a NaN.",
                f"第 {step} 步梯度范数恒为 {value}，这是替代 NaN 的常数。",
            )
        case "nonfinite", "gradient_overflow":
            text = (
                f"Gradients of step {step} were not finite; the loss was.",
                f"第 {step} 步的梯度不是有限值，损失正常。",
            )
        case "nonfinite", "gradients_in_a_row":
            row = detail["in_a_row"]
            text = (
                f"Gradients were not finite for {row} steps in a row up to step {step}; no update was applied.",
                f"截至第 {step} 步，梯度已连续 {row} 步不是有限值，参数没有更新。",
            )
        case "nonfinite", _:
            text = f"The gradients hold NaN at step {step}.", f"第 {step} 步的梯度中出现 NaN。"
        case "loss_zero", _:
            before = detail.get("before")
            was = "" if before is None else f" after {figure(before)}"
            was_zh = "" if before is None else f"（此前为 {figure(before)}）"
            text = (
                f"The loss is exactly 0.0 at step {step}{was}{_on(verdict)}.",
                f"第 {step} 步损失恰好为 0.0{was_zh}{_on_zh(verdict)}。",
            )
        case "loss_spike" | "grad_norm_spike", _:
            name, name_zh = ("loss", "损失") if verdict.kind == "loss_spike" else ("gradient norm", "梯度范数")
            median, records = figure(detail["median"]), detail["records"]
            # A ratio to a median of zero or below says nothing.
            times = f"{figure(detail['ratio'])} times " if detail["median"] > 0 else "from "
            times_zh = f"（{figure(detail['ratio'])} 倍）" if detail["median"] > 0 else ""
            text = (
                (
                    f"The {name} jumped to {value} at step {step}, {times}the median {median} of the last "
                    f"{records} records{_on(verdict)}."
                ),
                (
                    f"第 {step} 步{name_zh}跳至 {value}，最近 {records} 条记录的中位数为 {median}"
                    f"{times_zh}{_on_zh(verdict)}。"
                ),
            )
        case "loss_scale_collapse", "at_minimum":
            text = (
                f"The gradients overflowed at step {step} although the loss scale is down to {value}.",
                f"第 {step} 步损失缩放已降至 {value}，梯度仍然溢出。",
            )
        case "loss_scale_collapse", reason:
            within = f" within {detail['within']} steps" if reason == "many_skips" else " in a row"
            within_zh = f"在 {detail['within']} 步内" if reason == "many_skips" else "连续"
            text = (
                f"The loss scaler skipped {value} optimizer steps{within} up to step {step}.",
                f"截至第 {step} 步，损失缩放器{within_zh}跳过了 {value} 个优化步。",
            )
        case "limit_near", _:
            text = (
                (
                    f"At step {step} {where} has {figure(detail['headroom'])} bits of headroom left in "
                    f"{verdict.format}: "
                    f"amax x scale is {value}, the largest value {figure(detail['max'])}{more}."
                ),
                (
                    f"第 {step} 步 {where_zh}在 {verdict.format} 中仅剩 {figure(detail['headroom'])} 位余量："
                    f"amax × scale 为 {value}，最大可表示值为 {figure(detail['max'])}{more_zh}。"
                ),
            )
        case "limit_crossed", "above_max" | "saturated":
            text = (
                (
                    f"At step {step} {where} left the range of {verdict.format}: amax x scale is {value}, the "
                    f"largest "
                    f"value {threshold}{more}."
                ),
                (
                    f"第 {step} 步 {where_zh}超出 {verdict.format} 的范围：amax × scale 为 {value}，最大可表示值为 "
                    f"{threshold}{more_zh}。"
                ),
            )
        case "limit_crossed", "scale_not_finite":
            text = (
                f"At step {step} the scale of {where} is not finite ({verdict.format}){more}.",
                f"第 {step} 步 {where_zh}的缩放因子不是有限值（{verdict.format}）{more_zh}。",
            )
        case "limit_crossed", _:
            text = (
                (
                    f"At step {step} {where} holds {detail['nans']} NaN and {detail['infs']} infinities "
                    f"({verdict.format}){more}."
                ),
                (
                    f"第 {step} 步 {where_zh}含有 {detail['nans']} 个 NaN 与 {detail['infs']} 个无穷大"
                    f"（{verdict.format}）{more_zh}。"
                ),
            )
        case "underflow", "lost":
            text = (
                (
                    f"At step {step}, {percent(verdict.value)} of {where} are zeros in {verdict.format}, up from "
                    f"{percent(detail['baseline'])} at a higher scale{more}."
                ),
                (
                    f"第 {step} 步 {where_zh}在 {verdict.format} 中有 {percent(verdict.value)} 为零，较高缩放时为 "
                    f"{percent(detail['baseline'])}{more_zh}。"
                ),
            )
        case _:
            text = (
                (
                    f"At step {step}, {percent(verdict.value)} of the non-zero elements of {where} round to zero in "
                    f"{verdict.format}; the layer's own level is {percent(detail.get('baseline'))}{more}."
                ),
                (
                    f"第 {step} 步 {where_zh}有 {percent(verdict.value)} 的非零元素在 {verdict.format} 中舍入为零；"
                    f"该层自身水平为 {percent(detail.get('baseline'))}{more_zh}。"
                ),
            )
    return text


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "?" if share is None else f"{100 * share:.3g} %"


def _on(verdict: Verdict) -> str:
    return "" if verdict.rank is None else f" on rank {verdict.rank}"


def _on_zh(verdict: Verdict) -> str:
    return "" if verdict.rank is None else f"（rank {verdict.rank}）"


def message(verdict: Verdict, step: int, hits: int, framework: str = "") -> tuple[str, str]:
    """The text of an alert that fired at ``step`` and counts ``hits``, in English and in Chinese. ``framework``: whose
    settings it names (``keys.FRAMEWORKS``)."""
    origin = ("", "")
    if verdict.kind == "nonfinite":
        origin = _origin(verdict.detail.get("producer"), verdict.detail.get("limit"))
        pieces = [origin, _later(verdict), _last_sound(verdict)]
        if "producer_step" in verdict.detail:
            pieces[:2] = pieces[1::-1]
        origin = "".join(english for english, _ in pieces), "".join(chinese for _, chinese in pieces)
    elif verdict.kind == "loss_scale_collapse":
        origin = _scaler(verdict.detail)
    elif verdict.kind == "limit_near" and verdict.detail["steps_to_overflow"] is not None:
        eta = figure(verdict.detail["steps_to_overflow"])
        origin = f" At the present trend it overflows in {eta} steps.", f" 按当前趋势将在 {eta} 步后溢出。"
    words = _Words(_where(verdict), _more(verdict, hits), origin)
    happened = _happened(verdict, step, words) if verdict.kind in _SPELLED else _told(verdict, step, hits)
    # A NaN loss whose step the scaler skipped has not reached the weights.
    reason = "skipped" if verdict.kind == "nonfinite" and verdict.detail.get("skipped") else verdict.reason
    of_format = ADVICE.get((verdict.kind, verdict.format or ""))
    means = ADVICE.get((verdict.kind, reason)) or of_format or ADVICE[(verdict.kind, "")]
    advice = with_keys(means[0], framework), with_keys(means[1], framework, chinese=True)
    # A Chinese full stop brings its own space.
    return f"{happened[0]}{origin[0]} {advice[0]}", f"{happened[1]}{origin[1]}{advice[1]}".replace("。 ", "。")


def _told(verdict: Verdict, step: int, hits: int) -> tuple[str, str]:
    """The first sentence of a kind whose sentences stand in ``course_texts``."""
    english, chinese = HAPPENED.get((verdict.kind, verdict.reason)) or HAPPENED[(verdict.kind, "")]
    detail = verdict.detail
    spelled: dict[str, str] = {}
    for name, value in detail.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            spelled[name] = _bytes(value) if name in _BYTES else figure(float(value))
        else:
            spelled[name] = str(value)
    spelled |= {
        "value": figure(verdict.value),
        "threshold": figure(verdict.threshold),
        "percent": percent(verdict.value),
        "level_percent": percent(detail.get("level")),
        "step": str(step),
        "since": str(verdict.since_step),
        "layer": str(verdict.layer),
        "format": str(verdict.format),
        "rank": str(verdict.rank),
        "device": str(verdict.device),
        "reason": verdict.reason,
    }
    if verdict.kind == "coverage_low":
        spelled["missing"] = str(detail["trainable"] - detail["observed"])
    where, more = _where(verdict), _more(verdict, hits)
    # A log may name the card, its rank, both or neither.
    rank = None if verdict.rank is None else f"rank {verdict.rank}"
    card = " ".join(filter(None, (verdict.device, rank and (f"on {rank}" if verdict.device else rank))))
    card_zh = " ".join(filter(None, (verdict.device, rank)))
    local = {"on": _on(verdict), "where": where[0], "more": more[0], "card": f" ({card})" if card else ""}
    local_zh = {
        "on": _on_zh(verdict),
        "where": f" {where[1]}",
        "more": more[1],
        "card": f"（{card_zh}）" if card_zh else "",
    }
    return english.format_map(spelled | local), chinese.format_map(spelled | local_zh)


def _bytes(value: float) -> str:
    return f"{value / (1 << 30):.3g} GiB" if value >= 1 << 28 else f"{value / (1 << 20):.3g} MiB"
