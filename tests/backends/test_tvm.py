"""TVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.backends import registry, tvm_schedule
from bricolage.backends import tvm as tvm_backend
from bricolage.backends.interface import Resources
from tests.backends import regions

BACKEND = registry.get("tvm")
pytestmark = pytest.mark.apart


@pytest.mark.parametrize("threads", [1, 2])
def test_dense_operators_are_computed_in_register_blocks(threads: int, tmp_path: Path) -> None:
    """The rule for blocks applies whether or not there are threads; without it these operators are 30 times slower."""
    import tvm

    seen: dict[str, str] = {}

    def spy(module: object, target: object, threads: int, chosen: object) -> object:
        before = {variable.name_hint for variable, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
        scheduled = tvm_schedule.schedule_module(module, target, threads, chosen)
        seen.update({v.name_hint: f.script() for v, f in scheduled.functions_items() if v.name_hint in before})
        return scheduled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tvm_backend, "schedule_module", spy)
        BACKEND.compile(regions.conv_net(tmp_path), regions.F32, Resources(threads=threads))
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
    kernel = BACKEND.compile(regions.conv_net(tmp_path), regions.F32, regions.ONE_THREAD)
    assert kernel._filled  # type: ignore[attr-defined]


@given(rows=st.integers(1, 300), columns=st.integers(1, 3000), lanes=st.sampled_from([8, 16, 32]))
def test_blocks_divide_the_result_and_fit_the_registers(rows: int, columns: int, lanes: int) -> None:
    height, width = tvm_schedule.block_size(rows, columns, lanes)
    assert rows % height == 0
    assert columns % width == 0
    assert height * -(-width // lanes) <= 24
