"""Modules divided into stages: what each hands on, what is routed, and what cannot be divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.errors import BadPlan
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import TrainingStep, build

pytest.importorskip("torch")

import torch

from bricolage.train.pipeline.module_stages import batch_names, divide_module

BEGINS = ("layers.1", "layers.2")


def step(module: str) -> TrainingStep:
    return build(
        StepSpec(f"code.py:{module}", "code.py:batch", batch_size=4, folder=str(Path(__file__).parents[1] / "run"))
    )


@pytest.mark.parametrize(("module", "handed"), [("plain", 1), ("skipping", 2)])
def test_stages_one_after_another_are_the_module(module: str, handed: int) -> None:
    made = step(module)
    expected = made.module(*made.inputs)
    found = divide_module(step(module), BEGINS, made.inputs)
    assert len(found.stages) == 3
    given: tuple[torch.Tensor, ...] = ()
    for stage in found.stages:
        out = stage(*given, **batch_names(made.inputs))
        given = out if isinstance(out, tuple) else (out,)
    assert torch.allclose(given[0], expected, atol=1e-6)
    assert sum(one.gradient for one in found.handed[0]) == handed
    routed = 2 if module == "skipping" else 0
    assert found.routed == routed, "the middle stage hands on what the last one reads: the words and the mask"
    assert max(one.bytes for one in found.handed[0]) == 4 * 8 * 16 * 4


def test_weights_of_two_stages_are_named() -> None:
    made = step("tied")
    with pytest.raises(BadPlan, match=r"stages 1 and 3 share the weights 'words\.weight'"):
        divide_module(made, BEGINS, made.inputs)
    found = divide_module(step("tied"), BEGINS, made.inputs, sharing=True)
    assert found.shared == ("words.weight", 0, 2)


def test_what_the_tracer_cannot_follow_is_said() -> None:
    made = step("plain")
    with pytest.raises(BadPlan, match="PyTorch cannot divide the module"):
        divide_module(made, ("layers.9",), made.inputs)
