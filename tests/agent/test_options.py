"""Options of the agent that come from the environment."""

from __future__ import annotations

import pytest

from floatscope._config import Config, configured, options_in


def test_by_kind() -> None:
    assert options_in(" activations_every = 1 , overhead_budget=0.5,operands=False,compiled_outputs=1, ") == {
        "activations_every": 1,
        "overhead_budget": 0.5,
        "operands": False,
        "compiled_outputs": True,
    }
    assert options_in("") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("activation_every=1", "did you mean activations_every"),
        ("token=secret", "unknown option token"),
        ("activations_every", "activations_every: expected an integer, got ''"),
        ("activations_every=1.5", "expected an integer, got '1.5'"),
        ("activations_every=-1", "at least 0"),
        ("overhead_budget=2", "from 0 to 1"),
        ("overhead_budget=nan", "from 0 to 1"),
        ("operands=maybe", "expected true or false, got 'maybe'"),
    ],
)
def test_what_makes_no_sense(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        configured(None, {}, {"FLOATSCOPE_OPTIONS": text})


def test_what_code_says_comes_first() -> None:
    environment = {"FLOATSCOPE_OPTIONS": "activations_every=1,weights_every=2"}
    chosen = configured(None, {"weights_every": 3}, environment)
    assert (chosen.activations_every, chosen.weights_every) == (1, 3)
    assert configured(Config(), {}, environment).activations_every == 10
