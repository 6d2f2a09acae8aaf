"""Simulated placements: on one device a sum, on several an order of events that a brute-force clock finds as well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.device.device import Device, Link, Machine, Peaks
from bricolage.work.implementation import Assignment, Implementation, Placement
from bricolage.work.timeline import timeline
from bricolage.work.transfer import NoTransferCosts
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor
from tests.search.problems import PairCosts, graph_of

A, B = Implementation("a"), Implementation("b")
NEAR, FAR = Implementation("a", device="cpu:0"), Implementation("a", device="cpu:1")
DIAMOND = graph_of([[1, 2], [3], [3], []], [8, 16, 32, 4])
TWO = tuple(Device(name, "cpu", "made up", frozenset(), (0,), 1, 1, Peaks(1.0, 1.0)) for name in ("cpu:0", "cpu:1"))
LINKED = Machine(TWO, (Link(("cpu:0", "cpu:1"), gbytes=1e-6, latency_us=500.0),))


def placed(*implementations: Implementation) -> Placement:
    return tuple(Assignment(1 << number, one) for number, one in enumerate(implementations))


def test_on_one_device_times_and_transfers_add_up() -> None:
    costs = PairCosts(((0.0, 0.5, 0.0), (0.25, 0.0, 0.0), (0.0,) * 3))
    found = timeline(DIAMOND, placed(A, B, A, B), lambda one: 1.0 + one.region.bit_length(), costs)
    assert [slot.start_ms for slot in found.slots] == [0.0, 2.0, 9.0, 13.0]
    assert found.makespan_ms == 2.0 + (3.0 + 0.5 * 8) + 4.0 + (5.0 + 0.5 * 32)


def test_branches_on_two_devices_run_beside_each_other() -> None:
    found = timeline(DIAMOND, placed(NEAR, NEAR, FAR, NEAR), lambda _: 10.0, NoTransferCosts())
    assert [slot.start_ms for slot in found.slots] == [0.0, 10.0, 10.0, 20.0] and found.makespan_ms == 30.0


def test_a_link_delays_what_crosses_it_and_nothing_else() -> None:
    found = timeline(DIAMOND, placed(NEAR, NEAR, FAR, NEAR), lambda _: 10.0, NoTransferCosts(), LINKED)
    there, back = (0.5 + size / 1e-6 / 1e6 for size in (8, 32))  # latency, and bytes at 1 kB/s
    assert [slot.start_ms for slot in found.slots] == [0.0, 10.0, 10.0 + there, 20.0 + there + back]


def test_memory_holds_tensors_from_their_making_to_their_last_reader() -> None:
    found = timeline(DIAMOND, placed(A, A, A, A), lambda _: 1.0, NoTransferCosts())
    assert found.peak_bytes == {"cpu": 8 + 16 + 32}, "while the third runs; the last output is small"
    apart = timeline(DIAMOND, placed(NEAR, NEAR, FAR, NEAR), lambda _: 1.0, NoTransferCosts())
    assert apart.peak_bytes == {"cpu:0": 16 + 32 + 4, "cpu:1": 8 + 32}
    whole = (Assignment(0b1111, A),)
    assert timeline(DIAMOND, whole, lambda _: 1.0, NoTransferCosts()).peak_bytes == {"cpu": 4}


def test_nothing_takes_no_time() -> None:
    assert timeline(WorkGraph((), ()), (), lambda _: 1.0, NoTransferCosts()).makespan_ms == 0.0


@given(st.data())
def test_every_region_waits_for_its_device_and_its_inputs_and_for_nothing_else(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    readers = [sorted(data.draw(st.sets(st.integers(i + 1, count - 1)))) if i < count - 1 else [] for i in range(count)]
    tensors = tuple(WorkTensor(f"t{i}", i, tuple(r), 4, is_output=not r) for i, r in enumerate(readers))
    graph = WorkGraph(tuple(WorkOperator(f"o{i}") for i in range(count)), tensors)
    devices = data.draw(st.lists(st.sampled_from(("x", "y", "z")), min_size=count, max_size=count))
    times = data.draw(st.lists(st.floats(0.1, 9), min_size=count, max_size=count))
    placement = placed(*(Implementation("a", device=device) for device in devices))
    found = timeline(graph, placement, lambda one: times[one.region.bit_length() - 1], NoTransferCosts())
    for number, slot in enumerate(found.slots):
        before = [found.slots[p].end_ms for p in graph.predecessors[number]]
        before += [found.slots[p].end_ms for p in range(number) if devices[p] == devices[number]]
        assert slot.start_ms == max(before, default=0.0)
        assert slot.end_ms == pytest.approx(slot.start_ms + times[number])
    assert max(times) <= found.makespan_ms <= sum(times) + 1e-9
