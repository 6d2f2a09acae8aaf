"""ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, Resources
from bricolage.errors import Refused
from tests.backends import engine_checks, regions

BACKEND = registry.get("onnxruntime")


def test_it_is_here_with_its_version() -> None:
    status = BACKEND.status()
    assert isinstance(status, Available)
    assert status.version == registry.version("onnxruntime")


@pytest.mark.parametrize(
    "check", [f for name, f in vars(engine_checks).items() if name.startswith("check_")], ids=lambda f: f.__name__
)
def test_engine(check: object, tmp_path: Path) -> None:
    check(BACKEND, tmp_path)  # type: ignore[operator]


def test_strings_run(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = StringConcat (x, z)", "string[2] x, string[2] z", "string[2] y", opset=20)
    kernel = BACKEND.compile(model, "f32", regions.ONE_THREAD)
    (found,) = kernel.run([np.array(["a", "b"], object), np.array(["c", "d"], object)])
    assert np.asarray(found).tolist() == ["ac", "bd"]


def test_sequences_run(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = SequenceAt (s, i)", "seq(float[2]) s, int64 i", "float[2] y")
    kernel = BACKEND.compile(model, "f32", regions.ONE_THREAD)
    (found,) = kernel.run([[np.float32([1, 2]), np.float32([3, 4])], np.int64(1)])
    assert np.asarray(found).tolist() == [3, 4]


def test_it_runs_contributed_operators(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = com.microsoft.QuickGelu (x)", domains=', "com.microsoft" : 1')
    x = np.float32([-1, 0, 1, 2])
    expected = x / (1 + np.exp(-1.702 * x))
    assert np.allclose(regions.answer(BACKEND, model, x)[0], expected, rtol=1e-5)


def test_an_operator_without_a_kernel_is_refused(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Add (x, x)", "bfloat16[4] x", "bfloat16[4] y")
    with pytest.raises(Refused, match=r"Could not find an implementation for Add"):
        BACKEND.compile(model, "f32", regions.ONE_THREAD)


def test_packed_types_are_refused_at_the_boundary(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Cast <to = 22> (x)", "float[4] x", "int4[4] y", opset=21)
    with pytest.raises(Refused, match="'y' packs several elements into a byte"):
        BACKEND.compile(model, "f32", regions.ONE_THREAD)


def test_alone_and_with_others_give_the_same_answer(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    answers = []
    for alone in (True, False):
        kernel = BACKEND.compile(model, "f32", Resources(threads=2, alone=alone))
        _, outputs, call = regions.bound(kernel, model, x)
        call()  # type: ignore[operator]
        answers.append(outputs[0])
    assert np.array_equal(*answers)
