"""The benchmark of products by a matrix unit: the unit's bits and errors everywhere, times where there is one."""

from __future__ import annotations

import pytest

from benchmarks import matrix_unit
from bricolage.native.cpu.isa import SPLIT_AMX, find_isa


@pytest.mark.skipif(
    not matrix_unit.has_unit() and find_isa(SPLIT_AMX.name) is None,
    reason="no matrix unit runs here, and none is emulated",
)
def test_each_arithmetic_has_its_error_and_slices_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_unit, "SHAPES", ((20, 192, 64),))
    monkeypatch.setattr(matrix_unit, "_FLUSH_BYTES", 1 << 20)
    rows = {row.arithmetic: row for row in matrix_unit.measured([], threads=2, seconds=0.01)}
    assert rows.keys() == matrix_unit.PRODUCTS.keys()
    for name, limit in {"f32": 2e-6, "bf16x3": 2e-5, "bf16x6": 2e-6, "int8x6": 2e-6, "int8x9": 3e-7}.items():
        row = rows[name]
        assert 0 < row.error < limit and row.error_f32 == rows["f32"].error
        assert row.bits_equal == (True if name.startswith("int8") else None)
        timed = matrix_unit.has_unit() or name == "f32"
        assert all((value is not None) == timed for value in (row.ms, row.cold_ms, row.gflops))
    assert rows["int8x9"].weight_bytes < rows["f32"].weight_bytes < rows["bf16x6"].weight_bytes
    assert "equal" in matrix_unit.table(list(rows.values())) and "DIFFER" not in matrix_unit.table(list(rows.values()))
