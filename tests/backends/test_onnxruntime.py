"""ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

BACKEND = registry.get("onnxruntime")


def test_strings_run(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = StringConcat (x, z)", "string[2] x, string[2] z", "string[2] y", opset=20)
    kernel = BACKEND.compile(model, regions.F32, regions.ONE_THREAD)
    (found,) = kernel.run([np.array(["a", "b"], object), np.array(["c", "d"], object)])
    assert np.asarray(found).tolist() == ["ac", "bd"]


def test_sequences_run(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = SequenceAt (s, i)", "seq(float[2]) s, int64 i", "float[2] y")
    kernel = BACKEND.compile(model, regions.F32, regions.ONE_THREAD)
    (found,) = kernel.run([[np.float32([1, 2]), np.float32([3, 4])], np.int64(1)])
    assert np.asarray(found).tolist() == [3, 4]


def test_it_runs_contributed_operators(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = com.microsoft.QuickGelu (x)", domains=', "com.microsoft" : 1')
    x = np.float32([-1, 0, 1, 2])
    expected = x / (1 + np.exp(-1.702 * x))
    assert np.allclose(regions.answer(BACKEND, model, x)[0], expected, rtol=1e-5)


def test_alone_and_with_others_give_the_same_answer(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    answers = []
    for alone in (True, False):
        (y,) = regions.answer(BACKEND, model, x, resources=Resources(threads=2, alone=alone))
        answers.append(y)
    assert np.array_equal(*answers)


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pad", [1, 3], ids=["smaller than the window", "as wide as the window"])
def test_a_pad_before_a_pool_pads_with_zeros(pool: str, pad: int, tmp_path: Path) -> None:
    """1.31.1 merges the two: it then pads with -infinity, or makes no session at all."""
    size = 1 + 2 * pad
    model = regions.region(
        tmp_path,
        f"a = Pad (x, p) y = {pool} <kernel_shape = [3, 3]> (a)",
        "float[1,1,3,3] x",
        f"float[1,1,{size},{size}] y",
        p=np.int64([0, 0, pad, pad, 0, 0, pad, pad]),
    )
    x = np.full((1, 1, 3, 3), -1, np.float32)
    assert regions.error(regions.answer(BACKEND, model, x), regions.reference(model, x)) < 1e-6


def test_where_a_graph_branches_operators_run_side_by_side(tmp_path: Path) -> None:
    parallel, two = KernelConfig("f32-parallel"), Resources(threads=2, alone=True)
    assert parallel in BACKEND.configs("highest", host()) or host().threads < 2
    model, x = regions.attention_block(tmp_path), regions.noise(1, 16, 32)
    found = regions.answer(BACKEND, model, x, config=parallel, resources=two)
    assert regions.error(found, regions.reference(model, x)) < 1e-6
    with pytest.raises(Refused, match="same time"):
        BACKEND.compile(model, parallel, regions.ONE_THREAD)
    chain = regions.region(
        tmp_path, "a=MatMul(x,w) y=MatMul(a,w)", "float[4,8] x", "float[4,8] y", w=regions.noise(8, 8)
    )
    with pytest.raises(Refused, match="same time"):
        BACKEND.compile(chain, parallel, two)
