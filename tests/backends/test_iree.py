"""IREE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, Resources
from bricolage.errors import Refused
from tests.backends import engine_checks, regions

BACKEND = registry.get("iree")
CHECKS = [
    check
    for name, check in vars(engine_checks).items()
    if name.startswith("check_") and name != "check_dynamic_shapes"  # refused, see below
]


def test_it_is_here_with_its_version() -> None:
    status = BACKEND.status()
    assert isinstance(status, Available)
    assert status.version == registry.version("iree")


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_engine(check: object, tmp_path: Path) -> None:
    check(BACKEND, tmp_path)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "given", "expected"),
    [
        ("y = Add (x, x)", "int64[2] x", "int64[2] y", np.int64([1 << 40, -3]), [1 << 41, -6]),
        ("y = Not (x)", "bool[3] x", "bool[3] y", np.array([True, False, True]), [False, True, False]),
        ("y = Mul (x, x)", "double[2] x", "double[2] y", np.float64([1e-9, 3]), [1e-9 * 1e-9, 9]),
        ("y = Add (x, x)", "uint8[2] x", "uint8[2] y", np.uint8([3, 250]), [6, 244]),
    ],
    ids=["int64", "bool", "float64", "uint8"],
)
def test_element_types(
    body: str, inputs: str, outputs: str, given: np.ndarray, expected: list[object], tmp_path: Path
) -> None:
    model = regions.region(tmp_path, body, inputs, outputs)
    assert regions.answer(BACKEND, model, given)[0].tolist() == expected


def test_outputs_may_be_inputs_and_may_repeat(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Identity (x) \n z = Relu (x)", outputs="float[4] y, float[4] z")
    y, z = regions.answer(BACKEND, model, np.float32([1, -2, 3, -4]))
    assert y.tolist() == [1, -2, 3, -4]
    assert z.tolist() == [1, 0, 3, 0]


def test_two_threads_compute_the_same(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    kernel = BACKEND.compile(model, "f32", Resources(threads=2))
    _, outputs, call = regions.bound(kernel, model, x)
    call()  # type: ignore[operator]
    assert regions.error(outputs, regions.reference(model, x)) < 1e-6


def test_unknown_operators_are_refused_with_the_compilers_reason(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = strange.Gizmo (x)", domains=', "strange" : 1')
    with pytest.raises(Refused, match="Gizmo|failed to legalize"):
        BACKEND.compile(model, "f32", regions.ONE_THREAD)


def test_dynamic_shapes_and_strings_are_refused(tmp_path: Path) -> None:
    dynamic = regions.region(tmp_path, "y = Relu (x)", "float[n] x", "float[n] y")
    with pytest.raises(Refused, match="shapes must be known"):
        BACKEND.compile(dynamic, "f32", regions.ONE_THREAD)
    strings = regions.region(tmp_path, "y = Identity (x)", "string[2] x", "string[2] y")
    with pytest.raises(Refused):
        BACKEND.compile(strings, "f32", regions.ONE_THREAD)


def test_other_shapes_than_the_compiled_one_are_refused(tmp_path: Path) -> None:
    kernel = BACKEND.compile(regions.region(tmp_path, "y = Relu (x)"), "f32", regions.ONE_THREAD)
    with pytest.raises(Refused, match=r"compiled for the shape \(4,\)"):
        kernel.run([np.zeros(5, np.float32)])


def test_the_cache_gives_the_same_answer_and_follows_the_weights(tmp_path: Path) -> None:
    resources = Resources(threads=1, cache=tmp_path / "cache")
    x = np.ones((1, 32), np.float32)

    def run(weight: float) -> float:
        w = np.full((32, 32), weight, np.float32)  # over a kilobyte: lies in the weights file
        model = regions.region(tmp_path, "y = MatMul (x, w)", "float[1, 32] x", "float[1, 32] y", w=w)
        kernel = BACKEND.compile(model, "f32", resources)
        _, outputs, call = regions.bound(kernel, model, x)
        call()  # type: ignore[operator]
        return float(outputs[0][0, 0])

    assert run(1.0) == 32.0
    assert run(1.0) == 32.0
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert run(2.0) == 64.0
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_both_ways_with_convolutions_compute_the_same(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    expected = regions.reference(model, x)
    for variant in BACKEND.variants("highest"):
        assert regions.error(regions.answer(BACKEND, model, x, variant=variant), expected) < 1e-6


def test_the_variant_for_convolutions_needs_one(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Relu (x)")
    with pytest.raises(Refused, match="without convolutions"):
        BACKEND.compile(model, "f32-channels-last", regions.ONE_THREAD)
