"""Recurrences side by side: a thread each, few meetings, memory that no two strands share, and the right answers."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.device.caches import Cache, Caches
from bricolage.device.host import host
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.native.cpu.isa import EMULATED_AMX, Isa, available_isas
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, kernel_reads
from bricolage.native.fuse.strands import divide_batch, in_strands
from bricolage.native.ir.lowerings.lowering_context import RecurrentBatch
from bricolage.native.module import generate
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.ir.lowerings.test_recurrent import ACTIVATIONS, FUNCTIONS, GATES, Cell, check
from tests.native.test_waves import sanitized

BOTH = Cell("LSTM", steps=6, direction="bidirectional")


def target(threads: int = 2) -> CpuTarget:
    return CpuTarget(available_isas()[-1], threads, host().caches)


def made(cell: Cell, folder: Path, threads: int = 2) -> FusionPlan:
    return plan_fused_kernels(cell.write(folder)[0], target(threads), FLOAT32, {})


def in_order(plan: FusionPlan) -> None:
    """Every kernel is there once, behind those that write what it reads; strands share no memory that one of them writes."""
    kernels = plan.kernels
    assert sorted(sum(plan.sections, ())) == list(range(len(kernels)))
    done: list[int] = []
    for step, section in enumerate(plan.sections):
        rows = plan.strands.get(step, (section,))
        assert sum(rows, ()) == section
        for row in rows:
            for place, number in enumerate(row):
                before = {*done, *row[:place]}
                for read in kernel_reads(kernels[number], plan):
                    first, end = read.extent
                    for writer, kernel in enumerate(kernels):
                        for wrote in kernel.targets if writer != number else ():
                            begin, behind = wrote.extent
                            if wrote.storage == read.storage and begin < end and first < behind:
                                assert writer in before
        done += section
        for one, other in combinations(rows, 2):
            for a in (buffer for number in one for buffer in _touched(plan, number)):
                for b in (buffer for number in other for buffer in _touched(plan, number)):
                    if (
                        a[1].storage != b[1].storage
                        and a[1].storage[0] == b[1].storage[0] == "arena"
                        and (a[0] or b[0])
                    ):
                        (begin, end), (start, stop) = (plan.arena_span(each[1].storage[1]) for each in (a, b))
                        assert end <= start or stop <= begin


def _touched(plan: FusionPlan, number: int) -> list[tuple[bool, Buffer]]:
    kernel = plan.kernels[number]
    return [*((True, b) for b in kernel.targets), *((False, b) for b in kernel_reads(kernel, plan))]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("lengths", [None, (3, 6)])
def test_each_direction_is_a_strand(kind: str, lengths: tuple[int, ...] | None, tmp_path: Path) -> None:
    cell = replace(BOTH, kind=kind, hidden=64, lengths=lengths, states=True)
    plan = made(cell, tmp_path)
    (rows,) = plan.strands.values()
    assert len(rows) == 2 and len(rows[0]) == len(rows[1]) >= 5
    in_order(plan)
    model, _ = cell.write(_made(tmp_path / "without"))
    without = plan_fused_kernels(model, target(), FLOAT32, {}, strands=False)
    assert not without.strands
    assert generate(plan, target()).meetings <= generate(without, target()).meetings - 2 * 4


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("cell", "threads"),
    [
        (BOTH, 1),
        (replace(BOTH, hidden=100), 4),
        (replace(BOTH, hidden=200, direction="forward"), 2),
        (replace(BOTH, steps=2), 2),
        (Cell("RNN", steps=4, batch=16, hidden=512, inputs=2, direction="bidirectional"), 2),
    ],
    ids=["one-thread", "more-threads-than-strands", "one-direction", "few-steps", "large-steps"],
)
def test_what_stays_one_after_another(cell: Cell, threads: int, tmp_path: Path) -> None:
    plan = made(cell, tmp_path, threads)
    assert plan.waves is None and not plan.strands


def recurrent(folder: Path, body: str) -> RegionModel:
    """A region of LSTMs of 8 units over sequences of 5 steps, all with the same weights."""
    w, r = regions.noise(1, 32, 8, seed=1), regions.noise(1, 32, 8, seed=2) / 3
    ends = "float[5, 2, 8]"
    return regions.region(folder, body, f"{ends} x, {ends} z", f"{ends} y", w=w, r=r, axis=np.array([1]))


def test_two_networks_with_the_same_weights_are_side_by_side(tmp_path: Path) -> None:
    body = """
        a1, ah = LSTM <hidden_size = 8> (x, w, r)   b1, bh = LSTM <hidden_size = 8> (z, w, r)
        a = Squeeze (a1, axis)   b = Squeeze (b1, axis)   y = Mul (a, b)
    """
    plan = plan_fused_kernels(recurrent(tmp_path, body), target(), FLOAT32, {})
    assert [len(rows) for rows in plan.strands.values()] == [2]
    in_order(plan)


@pytest.mark.parametrize(
    ("kind", "hidden", "found"), [("RNN", 128, True), ("RNN", 256, False), ("RNN", 384, True), ("LSTM", 128, True)]
)
def test_weights_that_only_shares_of_fit_a_cache(kind: str, hidden: int, found: bool, tmp_path: Path) -> None:
    """A second-level cache of 256 KiB keeps a half of 256 x 256 floats, but not all of them."""
    model, _ = Cell(kind, steps=5, batch=4, inputs=2, hidden=hidden, direction="bidirectional").write(tmp_path)
    small = replace(target(), caches=Caches((Cache(2, 256 << 10),)))
    assert bool(plan_fused_kernels(model, small, FLOAT32, {}).strands) == found


def test_layers_wait_for_each_other(tmp_path: Path) -> None:
    body = """
        a1, ah = LSTM <hidden_size = 8> (x, w, r)   a = Squeeze (a1, axis)   c = Add (a, z)
        b1, bh = LSTM <hidden_size = 8> (c, w, r)   y = Squeeze (b1, axis)
    """
    plan = plan_fused_kernels(recurrent(tmp_path, body), target(), FLOAT32, {})
    assert [len(rows) for rows in plan.strands.values()] == [1, 1]
    in_order(plan)


@pytest.mark.parametrize(("hidden", "batch", "alone"), [(16, 1, True), (250, 1, False), (230, 3, False)])
def test_one_thread_takes_small_steps(hidden: int, batch: int, alone: bool, tmp_path: Path) -> None:
    """Sharing a product of 256 weights saves less than a meeting; of 22,500 weights, or of three rows, it saves more."""
    plan = made(Cell("RNN", batch=batch, hidden=hidden), tmp_path)
    assert bool(plan.strands) == alone and all(len(rows) == 1 for rows in plan.strands.values())


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("more", [{}, {"lengths": (5, 1, 2, 3, 4, 5, 1, 2)}, {"states": True, "layout": 1}], ids=str)
def test_each_thread_takes_sequences_of_its_own(kind: str, more: dict[str, object], tmp_path: Path) -> None:
    cell = replace(Cell(kind, batch=8, hidden=32), **more)  # type: ignore[arg-type]
    plan = made(cell, tmp_path)
    assert plan.strands and all(len(rows) == 2 for rows in plan.strands.values())
    in_order(plan)
    check(cell, _made(tmp_path / "run"))


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (RecurrentBatch(8, 1, 1, 64), "steps"),
        (RecurrentBatch(7, 9, 1, 64), "sequences"),
        (RecurrentBatch(8, 9, 2, 64), "directions"),
        (RecurrentBatch(8, 9, 1, 1 << 16), "weights"),
        (RecurrentBatch(200, 9, 1, 40_000), "work"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_batches_that_stay_whole(batch: RecurrentBatch, why: str) -> None:
    """Two threads, and caches of 256 KiB; with more of what is missing, or less of what is too much, each is divided."""
    enough = {"steps": {"steps": 3}, "sequences": {"sequences": 8}}
    enough |= {"directions": {"directions": 1}, "weights": {"weights": 1 << 15}, "work": {"sequences": 80}}
    assert divide_batch(batch, 2, 256 << 10) == 1
    assert divide_batch(replace(batch, **enough[why]), 2, 256 << 10) == 2


def test_four_threads_take_halves_of_both_directions(tmp_path: Path) -> None:
    plan = made(replace(BOTH, batch=8, hidden=32), tmp_path, 4)
    assert [len(rows) for rows in plan.strands.values()] == [4]
    in_order(plan)


def test_long_strands_meet_now_and_then(tmp_path: Path) -> None:
    cell = Cell("RNN", steps=40, hidden=256, batch=2, direction="bidirectional")
    plan = made(cell, tmp_path)
    assert 2 <= len(plan.strands) <= 5
    in_order(plan)


def test_a_timed_library_takes_the_time_of_every_kernel(tmp_path: Path) -> None:
    plan = made(BOTH, tmp_path)
    text = generate(plan, target(), timed=True).text
    assert all(f"TIMED({number}, " in text for number in range(len(plan.kernels))) and "strand_" not in text


@st.composite
def directions(draw: st.DrawFn) -> Cell:
    """Both directions, mostly with functions of their own; or one of several sequences."""
    kind = draw(st.sampled_from(tuple(GATES)))
    direction = draw(st.sampled_from(("bidirectional", "forward", "reverse")))
    steps, batch = (
        draw(st.integers(4, 9)),
        draw(st.integers(1, 3) if direction == "bidirectional" else st.integers(4, 9)),
    )
    functions = st.tuples(*[st.sampled_from(ACTIVATIONS)] * FUNCTIONS[kind])
    return Cell(
        kind,
        steps,
        batch,
        draw(st.integers(2, 20)),
        draw(st.integers(2, 40)),
        direction,
        draw(st.integers(0, 1)),
        draw(functions),
        draw(st.none() | st.just(0.7)),
        lengths=draw(st.none() | st.lists(st.integers(1, steps), min_size=batch, max_size=batch).map(tuple)),
        computed_lengths=draw(st.booleans()),
        states=draw(st.booleans()),
        peepholes=draw(st.booleans()) and kind == "LSTM",
        linear_before_reset=draw(st.integers(0, 1)),
        input_forget=draw(st.integers(0, 1)),
        backwards=draw(st.just(()) | functions),
    )


@settings(max_examples=5, deadline=None)
@given(directions())
def test_any_two_directions(cell: Cell) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(cell, Path(folder))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(directions())
def test_many_pairs_of_directions(cell: Cell) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(cell, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        in_order(made(cell, Path(folder)))


def test_the_thread_sanitizer_sees_no_race(tmp_path: Path) -> None:
    plan = made(replace(BOTH, steps=24, hidden=32, states=True), tmp_path)
    source = generate(plan, target())
    assert plan.strands
    assert "WARNING" not in (told := sanitized(tmp_path, source, 2, source.text)), told[:3000]
    assert in_strands(plan, 2, target().l2_bytes).strands == plan.strands


@pytest.mark.parametrize(
    "isa",
    [isa for isa in (*available_isas(), EMULATED_AMX) if isa.multiplies_bfloat16(host())],
    ids=lambda isa: isa.name,
    indirect=True,
)
def test_strands_pack_rows_in_memory_of_their_own(isa: Isa, tmp_path: Path) -> None:
    """In bfloat16 a product packs its rows first, in memory that threads would share."""
    model, values = Cell("LSTM", steps=12, batch=3, hidden=64, direction="bidirectional").write(tmp_path)
    bfloat16 = Arithmetic(parts=1, stores="operands")
    plan = plan_fused_kernels(model, CpuTarget(isa, 2, host().caches), bfloat16, {})
    assert plan.strands
    kernel = Native().compile(model, KernelConfig("bf16"), Resources(threads=2))
    exact = Native().compile(model, regions.F32, Resources(threads=2)).run(values)
    for _ in range(20):
        for found, expected in zip(map(np.asarray, kernel.run(values)), map(np.asarray, exact), strict=True):
            assert np.linalg.norm(found - expected) <= 1e-2 * np.linalg.norm(expected)
