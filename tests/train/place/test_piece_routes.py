"""Storages that move between devices: what each piece reads is what the step in one process would read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.train.place.piece_routes import order_pieces, piece_accesses, route_storages, simulate_pieces
from bricolage.work.work_graph import WorkGraph, WorkOperator

STORAGES = 5
_OPERATOR = st.tuples(
    st.frozensets(st.integers(0, STORAGES - 1), max_size=3), st.frozensets(st.integers(0, STORAGES - 1), max_size=2)
)


def run(order: list[int], reads: list[frozenset[int]], writes: list[frozenset[int]]) -> list[tuple[int, ...]]:
    """By operator the versions that it reads, where a version is the number of its writer."""
    version = [-1] * STORAGES
    seen: list[tuple[int, ...]] = [()] * len(reads)
    for operator in order:
        seen[operator] = tuple(version[storage] for storage in sorted(reads[operator] | writes[operator]))
        for storage in writes[operator]:
            version[storage] = operator
    return [*seen, tuple(version)]


@given(st.lists(_OPERATOR, min_size=1, max_size=9), st.data())
@settings(max_examples=150, deadline=None)
def test_each_piece_reads_what_it_would_read_in_one_process(
    operators: list[tuple[frozenset[int], frozenset[int]]], data: st.DataObject
) -> None:
    writes = [written or frozenset({0}) for _, written in operators]
    reads = [read for read, _ in operators]
    pieces = [(number,) for number in range(len(operators))]
    ranks = data.draw(st.lists(st.floats(0, 9), min_size=len(pieces), max_size=len(pieces)))
    order = order_pieces(pieces, reads, writes, ranks)
    assert sorted(order) == list(range(len(pieces)))
    assert run(list(order), reads, writes) == run(list(range(len(pieces))), reads, writes)
    devices = data.draw(st.lists(st.integers(0, 2), min_size=len(pieces), max_size=len(pieces)))
    accesses = piece_accesses(pieces, reads, writes)
    sizes = {storage: 8 * storage + 1 for storage in range(STORAGES)}
    try:
        routes = route_storages(accesses, sizes, devices, order)
    except ValueError:
        last = {storage: number for number in order for storage in writes[number]}
        old = [
            (devices[number], storage)
            for place, number in enumerate(order)
            for storage in reads[number]
            if not any(storage in writes[before] for before in order[:place])
        ]
        assert any(storage in last and devices[last[storage]] != device for device, storage in old)
        return
    # Each device has its own copies, and gets what `moves` say.
    copies = [[-1] * STORAGES for _ in range(3)]
    versions: dict[tuple[int, int], int] = {}
    expected = run(list(range(len(pieces))), reads, writes)
    for number in order:
        device = devices[number]
        for move in routes.moves:
            if move.target == number:
                assert move.to_device == device != move.from_device and move.bytes == sizes[move.storage]
                copies[device][move.storage] = versions[move.source, move.storage]
        read = dict(zip(sorted(reads[number] | writes[number]), expected[number], strict=True))
        assert all(copies[device][storage] == read[storage] for storage in reads[number])
        for storage in writes[number]:
            copies[device][storage] = versions[number, storage] = number
    assert len({(move.source, move.storage, move.to_device) for move in routes.moves}) == len(routes.moves)
    assert all(copies[device][storage] == expected[-1][storage] for storage, device in routes.holders)


def test_a_chain_on_two_devices_takes_its_pieces_and_its_moves() -> None:
    graph = WorkGraph(tuple(WorkOperator(f"o{number}", 0.0, 0, "o") for number in range(3)), ())
    problem = ScheduleProblem(
        graph,
        ({"a": (1.0,), "b": (3.0,)},) * 3,
        {"a": 1, "b": 1},
        lambda _source, _target, size: size / 10,
    )
    reads = [frozenset[int](), frozenset({0}), frozenset({1})]
    writes = [frozenset({0}), frozenset({1}), frozenset({2})]
    pieces = [(0,), (1,), (2,)]
    order = order_pieces(pieces, reads, writes, [3.0, 2.0, 1.0])
    accesses = piece_accesses(pieces, reads, writes)
    there_and_back = route_storages(accesses, {0: 20, 1: 40, 2: 0}, (0, 1, 0), order)
    assert [move.storage for move in there_and_back.moves] == [0, 1]
    assert simulate_pieces(problem, ("a", "b"), (0, 1, 0), there_and_back) == 1.0 + 2.0 + 3.0 + 4.0 + 1.0
    alone = route_storages(accesses, {0: 20, 1: 40, 2: 0}, (0, 0, 0), order)
    assert not alone.moves and simulate_pieces(problem, ("a", "b"), (0, 0, 0), alone) == 3.0
