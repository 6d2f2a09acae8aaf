"""A product and what reads it, slice by slice: which pairs are, fewer meetings, memory that nobody else writes, right answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.fuse.kernel_plan import FusionPlan, kernel_reads
from bricolage.native.fuse.slice_pairs import FEW_ROWS, MOST_ROWS
from bricolage.native.module import generate
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.ir.lowerings.test_recurrent import Cell, check
from tests.native.test_strands import target
from tests.native.test_waves import sanitized

CELL = Cell("LSTM", steps=4, batch=3, inputs=5, hidden=128, states=True)


def product(folder: Path, behind: str, rows: int = 2, units: int = 128) -> RegionModel:
    """A product of twice `units` columns with what stands behind it."""
    w = regions.noise(48, 2 * units) / 7
    numbers = {
        "zero": [0],
        "half": [units],
        "all": [2 * units],
        "axis": [1],
        "two": [2],
        "near": [8],
        "far": [units + 8],
    }
    constants = {name: np.array(value) for name, value in numbers.items()}
    body = f"p = MatMul (x, w) {behind}"
    return regions.region(folder, body, f"float[{rows}, 48] x", f"float[{rows}, {units}] y", w=w, **constants)


GATED = """a = Slice (p, zero, half, axis)   b = Slice (p, half, all, axis)   s = Sigmoid (b)   y = Mul (a, s)"""
EVERY_OTHER = """a = Slice (p, zero, all, axis, two)   s = Sigmoid (a)   t = Exp (s)   y = Mul (s, t)"""
SHIFTED = """a = Slice (p, near, far, axis)   b = Slice (p, half, all, axis)   s = Sigmoid (b)   y = Mul (a, s)"""


@pytest.mark.parametrize(
    ("behind", "rows", "units", "sliced"),
    [
        (GATED, 2, 128, True),
        (GATED, 2, 100, False),
        (GATED, 2, 32, False),
        (GATED, MOST_ROWS + 1, 128, False),
        (EVERY_OTHER, 2, 128, False),
        (SHIFTED, 2, 128, False),
    ],
    ids=["halves", "part-of-a-panel", "one-panel", "many-rows", "every-other", "shifted"],
)
def test_who_reads_only_its_own_columns(behind: str, rows: int, units: int, sliced: bool, tmp_path: Path) -> None:
    plan = plan_fused_kernels(product(tmp_path, behind, rows, units), target(), FLOAT32, {})
    assert list(plan.slices.values()) == ([2] if sliced else [])
    assert not plan_fused_kernels(product(tmp_path, behind, rows, units), target(1), FLOAT32, {}).slices


def apart(plan: FusionPlan) -> None:
    """In a section of two kernels the second writes nowhere where the first reads, or where it writes itself."""
    for step in plan.slices:
        first, second = (plan.kernels[number] for number in plan.sections[step])
        for wrote in second.targets:
            for other in (*kernel_reads(first, plan), *first.targets):
                if wrote.storage == other.storage:
                    assert max(wrote.extent[0], other.extent[0]) >= min(wrote.extent[1], other.extent[1])
                elif wrote.storage[0] == other.storage[0] == "arena":
                    (begin, end), (start, stop) = (plan.arena_span(each.storage[1]) for each in (wrote, other))
                    assert end <= start or stop <= begin


@pytest.mark.parametrize(
    ("cell", "pairs"),
    [(CELL, 4), (replace(CELL, kind="GRU", linear_before_reset=1), 4), (replace(CELL, lengths=(2, 4, 3)), 4)],
    ids=["lstm", "gru", "lengths"],
)
def test_a_step_meets_once(cell: Cell, pairs: int, tmp_path: Path) -> None:
    region, _ = cell.write(tmp_path)
    plan, before = (plan_fused_kernels(region, target(), FLOAT32, {}, slices=slices) for slices in (True, False))
    assert len(plan.slices) == pairs and not before.slices
    source, without = (generate(each, target()) for each in (plan, before))
    assert source.text.count(" and kernel_") == pairs and source.meetings < without.meetings
    assert sorted(sum(plan.sections, ())) == list(range(len(plan.kernels)))
    apart(plan)


def test_the_answer_of_a_cell_in_slices(tmp_path: Path) -> None:
    check(replace(CELL, steps=3, peepholes=True, lengths=(2, 3, 1)), tmp_path)


def test_a_timed_library_takes_the_time_of_each_of_the_two(tmp_path: Path) -> None:
    plan = plan_fused_kernels(product(tmp_path, GATED), target(), FLOAT32, {})
    text = generate(plan, target(), timed=True).text
    assert plan.slices and all(f"TIMED({number}, " in text for number in range(len(plan.kernels)))


@pytest.mark.slow
def test_the_thread_sanitizer_sees_no_race(tmp_path: Path) -> None:
    plan = plan_fused_kernels(CELL.write(tmp_path)[0], target(), FLOAT32, {})
    source = generate(plan, target())
    assert plan.slices
    assert "WARNING" not in (told := sanitized(tmp_path, source, 2, source.text)), told[:3000]


FIRST = "q = Sigmoid (g)   a = Mul (g, q)   y = Mul (a, u)"
BACKWARDS = "a = Slice (g, last, behind, axis, step)   y = Mul (a, u)"


def gate(folder: Path, behind: str, rows: int, columns: int = 96) -> RegionModel:
    """Two products by blocks of 4 bits, and what is made of both."""
    draw = np.random.default_rng(rows)
    constants: dict[str, np.ndarray] = {"last": np.array([-1]), "behind": np.array([-columns - 1])}
    constants |= {"axis": np.array([1]), "step": np.array([-1])}
    for integers, scales in (("v", "s"), ("w", "t")):
        constants[integers] = draw.integers(0, 256, (columns, 2, 16), np.uint8)
        constants[scales] = draw.random(2 * columns).astype(np.float32)
    words = f"<K=64, N={columns}, bits=4, block_size=32, accuracy_level=4>"
    products = [
        f"{name} = com.microsoft.MatMulNBits {words} (x, {given})" for name, given in (("g", "v, s"), ("u", "w, t"))
    ]
    size = f"float[{rows}, {columns}]"
    return regions.region(
        folder,
        "   ".join([*products, behind]),
        f"float[{rows}, 64] x",
        f"{size} y",
        domains=', "com.microsoft" : 1',
        known=f"{size} g, {size} u",
        **constants,
    )


@pytest.mark.parametrize(
    ("behind", "rows", "meetings"),
    [(FIRST, 1, 0), (FIRST, 8, 0), (FIRST, FEW_ROWS + 1, 3), (BACKWARDS, 2, 1)],
    ids=["step", "batch", "many-rows", "backwards"],
)
def test_a_gate_and_what_it_opens_are_one_loop(behind: str, rows: int, meetings: int, tmp_path: Path) -> None:
    region = gate(tmp_path, behind, rows)
    plan = plan_fused_kernels(region, target(), FLOAT32, {})
    source = generate(plan, target())
    assert (source.meetings, bool(plan.slices)) == (meetings, meetings == 0)
    x = regions.noise(rows, 64)
    shared, alone = (
        regions.answer(Native(), region, x, config=KernelConfig("f32-alike"), resources=Resources(threads=threads))
        for threads in (2, 1)
    )
    np.testing.assert_array_equal(shared, alone)
