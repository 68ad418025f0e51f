"""What the list shows of a run's plan and means: the declared steps, the pace, the chips, the precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.declared import executed, max_steps, precision, unmet
from floatscope_server.query.runs import run_list
from floatscope_server.store.pace import Pace

if TYPE_CHECKING:
    from floatscope_server.store import Store
    from tests.server.conftest import Make, MakePen


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, None),
        ({"max_steps": 1000, "arguments": {"transformers": {"max_steps": -1}}}, 1000),
        ({"max_steps": None, "arguments": {"hparams": {}, "lightning": {"max_steps": 50}}}, 50),
        ({"arguments": {"transformers": {"max_steps": -1, "num_train_epochs": 3.0}}}, None),
        ({"arguments": {"accelerate": {"max_train_steps": 70}}}, 70),
        ({"max_steps": True, "arguments": {"x": {"max_steps": 1 << 60}}}, None),
        ({"max_steps": "12", "arguments": "text"}, None),
    ],
)
def test_the_steps_to_come_are_what_the_trainer_says(config: dict[str, Any], said: int | None) -> None:
    assert max_steps(config) == said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, None),
        ({"declared_precision": "bf16"}, "bf16"),
        ({"declared_precision": "pure bf16"}, "bf16"),
        ({"declared_precision": "bf16-mixed"}, "bf16"),
        ({"declared_precision": "16-mixed"}, "fp16"),
        ({"declared_precision": "32-true"}, "fp32"),
        ({"declared_precision": "transformer-engine-float16"}, "fp8"),
        ({"declared_precision": "bf16", "environment": {"ACCELERATE_MIXED_PRECISION": "fp8"}}, "fp8"),
        ({"declared_precision": "bf16", "arguments": {"llamafactory.model_args": {"fp8": True}}}, "fp8"),
        ({"precision": {"autocast": "float16", "parameters": {"float32": 9}}}, "fp16"),
        ({"precision": {"autocast": None, "parameters": {"float32": 9, "bfloat16": 10}}}, "bf16"),
        ({"precision": "bf16", "declared_precision": 16}, None),
    ],
)
def test_a_declared_precision_has_one_word_for_it(config: dict[str, Any], said: str | None) -> None:
    assert precision(config) == said


def _layer(index: int, module_type: str, *operands: wire.Operand, order: int = 0) -> wire.Layer:
    return wire.Layer(
        index=index, name=f"l{index}", module_type=module_type, parameters=4, order=order, operands=operands
    )


def _cast(format_: str) -> wire.Operand:
    return wire.Operand(kind="act_in", format=format_, role="cast", scaling="delayed")


def _stored(kind: str, format_: str) -> wire.Operand:
    return wire.Operand(kind=kind, format=format_)


def test_a_layer_computes_in_what_it_casts_to_or_puts_out() -> None:
    layers = [
        _layer(0, "Float8Linear", _stored("act_in", "bf16"), _cast("e4m3fn"), _stored("act", "bf16")),
        _layer(1, "Linear", _stored("weight", "fp32"), _stored("act", "bf16")),
        _layer(2, "Linear", _stored("act_in", "bf16")),
        _layer(3, "Linear", _stored("grad", "fp32"), _stored("weight", "fp32")),
        _layer(4, "Linear", _stored("act", "fp16"), order=-1),
    ]
    assert executed(layers) == {"formats": {"bf16": 2, "e4m3fn": 1}, "unmet": 0}


@pytest.mark.parametrize(
    ("wanted", "layers", "missed"),
    [
        ("fp8", [_layer(0, "Linear", _stored("act", "bf16"))], 1),
        ("fp8", [_layer(0, "Linear", _cast("e5m2"))], 0),
        (None, [_layer(0, "Float8Linear", _stored("act", "bf16")), _layer(1, "Float8Linear", _cast("e4m3fnuz"))], 1),
        ("bf16", [_layer(0, "Linear", _stored("act", "fp32"))], 1),
        ("bf16", [_layer(0, "LayerNorm", _stored("act", "fp32")), _layer(1, "Linear", _stored("act", "bf16"))], 0),
        ("fp32", [_layer(0, "Linear", _stored("act", "bf16"))], 0),
        ("fp8", [_layer(0, "Linear", _stored("grad", "fp32"))], 0),
        ("fp8", [], 0),
    ],
)
def test_what_was_declared_and_not_executed_is_counted(
    wanted: str | None, layers: list[wire.Layer], missed: int
) -> None:
    assert unmet(wanted, executed(layers)) == missed


def _add(pace: Pace, first: int, seconds: list[float], every: int = 1) -> None:
    pace.add(np.arange(first, first + every * len(seconds), every, dtype=np.int64), np.array(seconds))


def test_the_pace_is_the_mean_of_the_last_minutes() -> None:
    pace = Pace()
    assert pace.mean() is None
    _add(pace, 0, [60.0, 1.0])
    assert pace.mean() is None
    for first in range(2, 402, 4):
        _add(pace, first, [1.0] * 4)
    found = pace.mean()
    assert found is not None
    assert found["seconds_per_step"] == 1.0
    assert 300 <= found["seconds"] < 310
    assert found["steps"] == found["seconds"]
    assert len(pace.stored()) <= 61
    assert Pace(pace.stored()).mean() == found


def test_a_log_of_every_tenth_step_has_the_same_pace() -> None:
    pace = Pace()
    _add(pace, 10, [2.0] * 8, every=10)
    _add(pace, 90, [2.0, math.nan, 2.0], every=10)
    found = pace.mean()
    assert found is not None
    assert (found["seconds_per_step"], found["steps"]) == (2.0, 91)


def test_steps_that_go_back_have_a_pace_of_their_own() -> None:
    pace = Pace()
    _add(pace, 0, [9.0] * 10)
    _add(pace, 4, [1.0] * 6)
    assert pace.mean() == {"seconds_per_step": 1.0, "steps": 6, "seconds": 6.0}
    pace.restart()
    assert pace.mean() is None


def test_the_list_has_plan_pace_chips_and_precision(store: Store, pen: MakePen, make: Make) -> None:
    config = {"max_steps": 100, "declared_precision": "bf16", "arguments": {"llamafactory.model_args": {"fp8": True}}}
    card = wire.Device(time_ns=1, backend="rocm", index=0, name="AMD Instinct MI300X", pci="0000:05:00.0")
    for rank in range(2):
        one = pen(
            store, rank=rank, world=2, config=config, layers=[make.layer(0, "a", ("act", "bf16"), ("grad", "fp32"))]
        )
        one.deliver(
            wire.Body(
                scalars=(make.scalars("loss", 0, [1.0] * 4), make.scalars("step_time_s", 0, [0.5] * 4)),
                devices=(card,),
            )
        )
    pen(store, run="by hand", config={"statistics": {"cpu": "torch (no card)"}})
    with store.read() as session:
        by_hand, trained = run_list(session)
    assert trained["max_steps"] == 100
    assert trained["pace"] == {"seconds_per_step": 0.5, "steps": 4, "seconds": 2.0}
    assert trained["chips"] == [{"name": "AMD Instinct MI300X", "count": 2}]
    assert trained["precision"] == {"declared": "fp8", "executed": {"bf16": 1}, "unmet": 1}
    assert (trained["world"], trained["missing_ranks"]) == (2, [])
    assert (by_hand["max_steps"], by_hand["pace"]) == (None, None)
    assert by_hand["chips"] == [{"name": "CPU", "count": 1}]
    assert by_hand["precision"] == {"declared": None, "executed": {}, "unmet": 0}


def test_a_new_attempt_has_a_plan_and_a_pace_of_its_own(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, attempt=1, config={"max_steps": 100})
    one.deliver(wire.Body(scalars=(make.scalars("step_time_s", 0, [9.0] * 4),)))
    two = pen(store, attempt=2, config={"max_steps": 200})
    with store.read() as session:
        (item,) = run_list(session)
    assert item["max_steps"] == 200
    two.deliver(wire.Body(scalars=(make.scalars("step_time_s", 4, [1.0] * 4),)))
    with store.read() as session:
        (item,) = run_list(session)
    assert item["pace"]["seconds_per_step"] == 1.0


@pytest.mark.engines("sqlite")
def test_a_longer_list_asks_the_store_no_more_often(store: Store, pen: MakePen) -> None:
    def questions() -> int:
        from sqlalchemy import event

        asked: list[str] = []
        with store.read() as session:
            engine = session.get_bind()
            note = lambda *given: asked.append(given[2])  # noqa: E731
            event.listen(engine, "before_cursor_execute", note)
            try:
                run_list(session)
            finally:
                event.remove(engine, "before_cursor_execute", note)
        return len(asked)

    pen(store, run="0")
    few = questions()
    for number in range(1, 8):
        pen(store, run=str(number))
    assert questions() == few
