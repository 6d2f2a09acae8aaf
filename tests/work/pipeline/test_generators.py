"""Schedules of pipelines against the formulas of their papers: how long they take, what they keep, which weights they use."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.work.pipeline.generators import (
    SCHEDULES,
    chimera,
    dapple,
    dualpipe_v,
    gpipe,
    interleaved,
    one_f_one_b,
    pipedream,
    pipemare,
    two_bw,
    wavelet,
    zb_h1,
    zb_h2,
    zb_v,
)
from bricolage.work.pipeline.table import Pass, PipelineSchedule, StageTimes, run_times

DEVICES = st.integers(1, 6)
MORE = st.integers(0, 8)
MS = st.sampled_from((0.5, 1.0, 1.25, 2.0))


def makespan(schedule: PipelineSchedule, forward: float = 1.0, inner: float = 1.0, weight: float = 1.0) -> float:
    """With the times of a device's stages together."""
    chunks = schedule.stages / len(schedule.rows)
    times = StageTimes.equal(schedule.stages, forward / chunks, inner / chunks, weight / chunks)
    return run_times(schedule, times).makespan_ms


def drawn(row: tuple[Pass, ...]) -> str:
    return " ".join(f"{one.kind}{one.micro_batch}" for one in row)


@given(DEVICES, st.integers(1, 9), MS, MS)
@settings(deadline=None, max_examples=30)
def test_gpipe_and_1f1b_wait_as_long_and_keep_less(devices: int, many: int, forward: float, backward: float) -> None:
    all_ahead, in_turns = gpipe(devices, many), one_f_one_b(devices, many)
    for one in (all_ahead, in_turns, dapple(devices, many)):
        assert makespan(one, forward, backward, 0.0) == pytest.approx((many + devices - 1) * (forward + backward))
        bubble = run_times(one, StageTimes.equal(devices, forward, backward, 0.0)).bubble
        assert bubble == pytest.approx((devices - 1) / (many + devices - 1))
    assert all_ahead.in_flight == (many,) * devices
    assert in_turns.in_flight == tuple(min(devices - stage, many) for stage in range(devices))
    assert dapple(devices, many).in_flight == tuple(min(2 * (devices - one) - 1, many) for one in range(devices))


@given(DEVICES, st.integers(1, 3), st.integers(2, 4), MS, MS)
@settings(deadline=None, max_examples=30)
def test_interleaved(devices: int, rounds: int, chunks: int, forward: float, backward: float) -> None:
    many = rounds * devices
    schedule = interleaved(devices, many, chunks)
    expected = many * (forward + backward) + (devices - 1) * (forward + backward) / chunks
    assert makespan(schedule, forward, backward, 0.0) == pytest.approx(expected)
    if rounds > 1:
        assert schedule.in_flight[0] == chunks * devices + devices - 1, (
            "D + (D - 1) / v of the device's stages together"
        )


@given(DEVICES, MORE, MS, MS, MS)
@settings(deadline=None, max_examples=30)
def test_zero_bubble(devices: int, more: int, forward: float, inner: float, weight: float) -> None:
    many = 2 * devices + more
    first, second = zb_h1(devices, many), zb_h2(devices, many)
    assert first.in_flight == (devices,) * devices and second.in_flight == (2 * devices - 1,) * devices
    assert makespan(first) == makespan(second) == 3 * many + devices - 1, "N (f + B) + (D - 1) (f + b - w) is (D - 1) f"
    if weight <= inner and weight <= forward:
        expected = many * (forward + inner + weight) + (devices - 1) * (forward + inner - weight)
        assert makespan(first, forward, inner, weight) == pytest.approx(expected)
    assert makespan(first, forward, inner, 0.0) == pytest.approx(
        makespan(one_f_one_b(devices, many), forward, inner, 0.0)
    )


@given(DEVICES, MORE)
@settings(deadline=None, max_examples=30)
def test_vees(devices: int, more: int) -> None:
    many = 2 * devices + more
    assert makespan(zb_v(devices, many)) == pytest.approx(3 * many + (devices - 1) / 2)
    assert zb_v(devices, many).in_flight == (2 * devices,) * devices, "of half a device's stages each"
    assert makespan(dualpipe_v(devices, many)) == pytest.approx(3 * many + (devices - 1) / 2)
    assert max(dualpipe_v(devices, many).in_flight) == 2 * devices + 1


@given(st.sampled_from((2, 4, 6, 8)), st.integers(1, 3), MS, MS)
@settings(deadline=None, max_examples=30)
def test_chimera(devices: int, blocks: int, forward: float, backward: float) -> None:
    schedule = chimera(devices, blocks * devices)
    one = chimera(devices, devices)
    if backward >= forward:
        assert makespan(one, forward, backward, 0.0) == pytest.approx(devices * forward + (2 * devices - 2) * backward)
    assert makespan(schedule, 1.0, 2.0, 0.0) == (5 * devices - 4) + (blocks - 1) * (4 * devices - 2)
    assert one.in_flight == tuple(min(devices // 2 + 1 + min(d, devices - 1 - d), devices) for d in range(devices))


@given(st.sampled_from((2, 4, 6)), st.integers(1, 6))
@settings(deadline=None, max_examples=30)
def test_waves_meet_valleys(devices: int, groups: int) -> None:
    many = groups * devices // 2
    schedule = wavelet(devices, many)
    assert makespan(schedule, 1.0, 1.0, 0.0) == (groups + 1) * devices, "but for its begin and end no device waits"
    assert max(schedule.in_flight) <= devices // 2 + 1
    together = sum(one.kind == "F" for one in schedule.rows[0]) / groups * 2
    assert together == devices, "two groups that begin at once would keep so many"


# The simulator's makespans of PyTorch's own orders, at f = b = w, and at 1, 1.2 and 0.8.
GOLDEN = [
    ("gpipe", 4, 4, 21.0, 21.0),
    ("1f1b", 8, 16, 69.0, 69.0),
    ("interleaved", 4, 4, 16.5, 16.5),
    ("interleaved", 4, 8, 28.5, 28.5),
    ("interleaved", 8, 16, 58.5, 58.5),
    ("zb-v", 4, 4, 15.0, 15.6),
    ("zb-v", 4, 8, 25.5, 25.8),
    ("zb-v", 8, 16, 51.5, 52.2),
    ("dualpipe-v", 4, 8, 25.5, 26.1),
    ("dualpipe-v", 8, 16, 51.5, 53.1),
]


@pytest.mark.parametrize(("name", "devices", "many", "equal", "unequal"), GOLDEN)
def test_golden_makespans(name: str, devices: int, many: int, equal: float, unequal: float) -> None:
    schedule = SCHEDULES[name](devices, many)
    assert makespan(schedule) == pytest.approx(equal)
    assert makespan(schedule, 1.0, 1.2, 0.8) == pytest.approx(unequal)


def test_tables() -> None:
    assert [drawn(row) for row in zb_h1(4, 4).rows] == [
        "F0 F1 F2 F3 I0 W0 I1 W1 I2 W2 I3 W3",
        "F0 F1 F2 I0 F3 I1 W0 I2 W1 I3 W2 W3",
        "F0 F1 I0 F2 I1 F3 I2 W0 I3 W1 W2 W3",
        "F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3",
    ]
    assert [drawn(row) for row in chimera(4, 4).rows] == [
        "F0 F1 F2 B2 F3 B3 B0 B1",
        "F0 F2 F1 F3 B2 B0 B3 B1",
        "F2 F0 F3 F1 B0 B2 B1 B3",
        "F2 F3 F0 B0 F1 B1 B2 B3",
    ]


@given(DEVICES, st.integers(1, 12))
@settings(deadline=None, max_examples=30)
def test_versions_of_weights(devices: int, many: int) -> None:
    """Counted along each row: an update is behind each backward pass, or behind the last one of each group."""
    for schedule, group in (
        (pipedream(devices, many), 1),
        (pipemare(devices, many), 1),
        (two_bw(devices, many), devices),
    ):
        assert not schedule.synchronous
        for stage, row in enumerate(schedule.rows):
            done = 0
            used: dict[int, int] = {}
            for one in row:
                there = done // group
                if schedule.name == "pipemare":
                    assert one.version == there, "what is there"
                elif one.kind == "F":
                    assert one.version <= there and (schedule.name == "2bw" or one.version == there)
                    used[one.micro_batch] = one.version
                else:
                    assert one.version == used.pop(one.micro_batch), "both passes use one version"
                    kept = {*used.values(), one.version, there}
                    assert len(kept) <= schedule.weight_copies[stage]
                    assert schedule.name != "2bw" or one.version == max(one.micro_batch // group - 1, 0)
                done += one.kind == "B"


def test_slots_between_the_passes_of_a_micro_batch_are_pipemares_delay() -> None:
    """2 (P - i) + 1 at stage i of P, counted from 1, once the pipeline is full."""
    devices = 5
    found = run_times(pipemare(devices, 40), StageTimes.equal(devices, 1.0, 1.0, 0.0)).passes
    starts = {(one.stage, one.kind, one.micro_batch): start for _, one, start, _ in found}
    for stage in range(devices):
        assert starts[stage, "B", 20] - starts[stage, "F", 20] == 2 * (devices - (stage + 1)) + 1


@given(st.sampled_from(sorted(SCHEDULES)), st.sampled_from((2, 4)), st.integers(2, 3), MS, MS, MS, MS)
@settings(deadline=None, max_examples=60)
def test_nothing_runs_before_what_it_needs(
    name: str, devices: int, rounds: int, forward: float, inner: float, weight: float, send: float
) -> None:
    schedule = SCHEDULES[name](devices, rounds * devices)
    last = schedule.stages - 1
    times = StageTimes.equal(schedule.stages, forward, inner, weight)
    found = run_times(schedule, StageTimes(times.forward, times.input_gradient, times.weight_gradient, (send,) * last))
    ends = {(one.stage, one.kind, one.micro_batch): end for _, one, _, end in found.passes}
    for device, one, start, end in found.passes:
        assert end - start == pytest.approx(times.of(one))
        micro = one.micro_batch
        if one.kind == "F":
            needs = [(one.stage - 1, "F")] if one.stage else []
        elif one.kind == "W":
            needs = [(one.stage, "I")]
        else:
            needs = [(one.stage + 1, "B"), (one.stage + 1, "I")] if one.stage < last else [(one.stage, "F")]
        came = [(other, ends[other, kind, micro]) for other, kind in needs if (other, kind, micro) in ends]
        assert came or not needs
        for other, end in came:
            moved = send if schedule.device[other, micro] != device else 0.0
            assert start >= end + moved - 1e-9
    for device in range(devices):
        mine = [one for one in found.passes if one.device == device]
        assert all(one.end_ms <= other.start_ms + 1e-9 for one, other in itertools.pairwise(mine))


def test_a_table_that_cannot_be() -> None:
    forward, backward = Pass(0, "F", 0), Pass(0, "B", 0)
    for row in ((forward,), (backward, forward), (forward, forward, backward), (forward, backward, Pass(1, "F", 0))):
        with pytest.raises(ValueError, match="made"):
            PipelineSchedule("made", 1, 1, (row,), (1,))
    waiting = ((Pass(0, "F", 0), Pass(0, "B", 0), Pass(0, "F", 1), Pass(0, "B", 1)),)
    other = ((Pass(1, "F", 1), Pass(1, "B", 1), Pass(1, "F", 0), Pass(1, "B", 0)),)
    with pytest.raises(ValueError, match="cycle"):
        run_times(PipelineSchedule("made", 2, 2, waiting + other, (1, 1)), StageTimes.equal(2))


def test_what_schedules_ask_for() -> None:
    for name, devices, many in (
        ("interleaved", 4, 6),
        ("chimera", 3, 3),
        ("chimera", 4, 6),
        ("wavelet", 4, 3),
        ("dualpipe-v", 4, 7),
    ):
        with pytest.raises(ValueError, match=name):
            SCHEDULES[name](devices, many)
    with pytest.raises(ValueError, match="two versions"):
        two_bw(4, 8, each=3)
