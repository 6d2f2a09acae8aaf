"""Spaces of configurations: what is in them, and what becomes of choices."""

from __future__ import annotations

import json

import pytest

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.work.config_space import REGION, ConfigSpace, TuningTask, make_choice
from bricolage.work.implementation import KernelConfig

TASK = TuningTask("conv-3", {"tile": (0, 2, 4), "pack": (True,)}, ("3.", "7."), "abc", "conv", {"m": 49}, 1000)
SPACE = ConfigSpace(KernelConfig("f32"), (TASK, TuningTask(REGION, {"waves": (True,)})))


def test_choices_become_parameters_of_all_kernels_of_a_task() -> None:
    config = SPACE.config({"conv-3": make_choice({"tile": 2, "pack": True}), REGION: (("waves", True),)})
    assert dict(config.parameters) == {"3.tile": 2, "3.pack": True, "7.tile": 2, "7.pack": True, "waves": True}
    assert config in SPACE and SPACE.choices(config) == {
        "conv-3": (("pack", True), ("tile", 2)),
        REGION: (("waves", True),),
    }
    assert SPACE.config({}) == SPACE.base in SPACE and SPACE.choices(SPACE.base) == {}
    assert SPACE.size == 4 * 2 * 2


@pytest.mark.parametrize(
    "parameters",
    [{"3.tile": 3}, {"3.pack": 1}, {"3.tile": True}, {"4.tile": 2}, {"tile": 2}, {"waves": False}],
    ids=str,
)
def test_what_no_parameter_may_have_is_not_in_the_space(parameters: dict[str, int]) -> None:
    assert SPACE.base.tuned(parameters) not in SPACE


def test_another_base_is_not_in_the_space() -> None:
    assert KernelConfig("bf16") not in SPACE and "f32" not in SPACE


@pytest.mark.parametrize("name", ["conv-3", "conv-9"])
def test_choices_that_a_task_has_not_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="has no choice"):
        SPACE.config({name: (("tile", 3),)})


def test_spaces_survive_json() -> None:
    back = decode(ConfigSpace, json.loads(json.dumps(encode(SPACE))))
    assert back == SPACE and back.config({"conv-3": (("pack", True),)}) in SPACE


@pytest.mark.parametrize("values", [[], [1, 1]])
def test_a_parameter_without_values_is_refused(values: list[int]) -> None:
    with pytest.raises(DecodeError, match="has no values, or one twice"):
        decode(TuningTask, {"name": "t", "parameters": {"n": values}})


def test_a_space_in_one_line_is_the_region() -> None:
    space = ConfigSpace.of(KernelConfig("f32", (("n", 1),)), {"n": (1, 2)})
    assert space.base == KernelConfig("f32") and [task.name for task in space.tasks] == [REGION]
    assert space.config({REGION: (("n", 2),)}) == KernelConfig("f32", (("n", 2),))
    assert ConfigSpace.of(KernelConfig(), {}).tasks == ()
