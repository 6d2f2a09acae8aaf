"""ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import Resources
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
