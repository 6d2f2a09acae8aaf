"""TVM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.backends import registry, tvm_schedule
from bricolage.backends import tvm as tvm_backend
from bricolage.backends.interface import Available, Resources
from bricolage.errors import Refused
from tests.backends import engine_checks, regions

BACKEND = registry.get("tvm")
CHECKS = [
    check
    for name, check in vars(engine_checks).items()
    if name.startswith("check_") and name != "check_dynamic_shapes"  # refused, see below
]


def test_it_is_here_with_its_version() -> None:
    status = BACKEND.status()
    assert isinstance(status, Available)
    assert status.version == registry.version("tvm")


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


@pytest.mark.parametrize("threads", [1, 2])
def test_dense_operators_are_computed_in_register_blocks(threads: int, tmp_path: Path) -> None:
    """The rule for blocks applies whether or not there are threads; without it these operators are 30 times slower."""
    import tvm

    seen: dict[str, str] = {}

    def spy(module: object, target: object, threads: int) -> object:
        before = {variable.name_hint for variable, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
        scheduled = tvm_schedule.schedule(module, target, threads)
        seen.update({v.name_hint: f.script() for v, f in scheduled.functions_items() if v.name_hint in before})
        return scheduled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tvm_backend, "schedule", spy)
        BACKEND.compile(regions.conv_net(tmp_path), "f32", Resources(threads=threads))
    dense = {name: text for name, text in seen.items() if "conv" in name or "matmul" in name}
    assert len(dense) == 3
    for name, text in dense.items():
        assert "T.unroll" in text or "T.vectorized" in text, name
        assert "_init" in text and 'scope="local"' in text, name
    assert any("T.parallel" in text for text in dense.values()) == (threads > 1)


def test_large_products_and_erf_are_exact_enough(tmp_path: Path) -> None:
    """A matrix cut into panels, and erf as a rational function."""
    w = regions.noise(96, 384, seed=3)
    model = regions.region(
        tmp_path, "a = MatMul (x, w) \n y = Erf (a)", "float[2, 5, 96] x", "float[2, 5, 384] y", w=w / 10
    )
    x = regions.noise(2, 5, 96)
    assert regions.error(regions.answer(BACKEND, model, x), regions.reference(model, x)) < 5e-7


def test_layer_normalization_gives_its_statistics(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "y, m, d = LayerNormalization (x, s)",
        "float[3, 8] x",
        "float[3, 8] y, float[3, 1] m, float[3, 1] d",
        s=regions.noise(8, seed=1),
    )
    x = regions.noise(3, 8)
    assert regions.error(regions.answer(BACKEND, model, x), regions.reference(model, x)) < 1e-6


def test_results_are_written_without_a_copy(tmp_path: Path) -> None:
    kernel = BACKEND.compile(regions.conv_net(tmp_path), "f32", regions.ONE_THREAD)
    assert kernel._filled  # type: ignore[attr-defined]


@given(rows=st.integers(1, 300), columns=st.integers(1, 3000), lanes=st.sampled_from([8, 16, 32]))
def test_blocks_divide_the_result_and_fit_the_registers(rows: int, columns: int, lanes: int) -> None:
    height, width = tvm_schedule.block_size(rows, columns, lanes)
    assert rows % height == 0
    assert columns % width == 0
    assert height * -(-width // lanes) <= 24
