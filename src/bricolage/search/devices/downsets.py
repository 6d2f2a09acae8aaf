"""The least largest load over chains of downsets, exactly: each device takes what lies between two of them.

The dynamic programme of Tarnawski et al. (NeurIPS 2020, section 5.1), with what makes it finish on networks of many branches: a
placement along one topological order is found first; then only those parts are looked at whose load is below it, and only those
downsets after which the devices that are left can still do the rest. The loads of all parts that begin at one downset are computed
at once: an output is paid for at the begin of a part, at its end, or at both, and only the few that cross its begin need a look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bricolage.search.devices.branch_blocks import contract_branches
from bricolage.search.devices.colocation import PlacementBlocks, contract, downsets, prefixes
from bricolage.search.devices.device_problem import SLACK, DevicePlacementProblem, PlacedOperators, least_load, max_load
from bricolage.work.bits import members

MAX_DOWNSETS = 200_000
MAX_STATES = 100_000_000
"""Downsets, each with every number of accelerators and processors used: 13 bytes each."""


def contiguous(
    problem: DevicePlacementProblem, *, limit_s: float = math.inf, max_downsets: int = MAX_DOWNSETS
) -> PlacedOperators:
    """The best placement of which each device has what lies between two downsets of blocks; proven unless time or memory ends.

    Where there are more than `max_downsets`, or `limit_s` seconds are over, it is the best one along a topological order, with the
    bound of `least_load`.
    """
    started = time.monotonic()
    first = place_along_order(problem)
    blocks = contract(problem)
    sets = downsets(blocks, max_downsets)
    general = least_load(problem)
    if sets is None or len(sets) * math.prod(_count_used_devices(problem, blocks)) > MAX_STATES:
        note = f"more than {max_downsets} downsets" if sets is None else f"{len(sets)} downsets, and too many devices"
        return _result(problem, first.devices, "DP along an order", general, started, note)
    deadline = started + limit_s
    chain = Chains(problem, blocks, sets).best(first.max_load, deadline)
    note = f"{len(sets)} downsets"
    if chain.out_of_time:
        return _result(
            problem, chain.devices or first.devices, "DP over downsets", general, started, f"{note}, out of time"
        )
    if chain.devices is None:
        # Nothing is below the first one, so it is the best; without a first one there is none at all.
        return _result(problem, first.devices, "DP over downsets", first.max_load, started, note)
    value = max_load(problem, chain.devices)
    return _result(problem, chain.devices, "DP over downsets", value, started, note)


def place_along_order(problem: DevicePlacementProblem) -> PlacedOperators:
    """The best placement along one depth-first topological order: `-linearize` in the authors' program.

    Its bound is `least_load`.
    """
    started = time.monotonic()
    blocks = contract(problem)
    chain = Chains(problem, blocks, prefixes(blocks)).best(math.inf, math.inf)
    return _result(problem, chain.devices, "DP along an order", least_load(problem), started)


def pipedream(problem: DevicePlacementProblem, *, max_downsets: int = MAX_DOWNSETS) -> PlacedOperators:
    """The best placement when branches are contracted: PipeDream's planner without replicas, as Tarnawski et al. compare with it.

    Their program goes along one topological order of the blocks (`branch_blocks.py`); here all their downsets are looked at, so
    that no order is to blame, unless there are more than `max_downsets`. Its bound is `least_load`.
    """
    started = time.monotonic()
    blocks = contract(contract_branches(problem))
    sets = downsets(blocks, max_downsets) or prefixes(blocks)
    chain = Chains(problem, blocks, sets).best(math.inf, math.inf)
    return _result(problem, chain.devices, "PipeDream's planner", least_load(problem), started, f"{len(blocks)} blocks")


def antichains(problem: DevicePlacementProblem, *, limit_s: float = math.inf) -> PlacedOperators:
    """The best placement on accelerators alone if moving took no time: PipeDream's released planner without replicas.

    That program (`optimizer_graph_hierarchical.py`, with `--straight_pipeline`) contracts nothing: its states are antichains of the
    graph, each a downset, and by default a stage takes the time that its operators take. The load of what it finds counts moving,
    as all loads do. Its bound is `least_load`.
    """
    started = time.monotonic()
    ignoring = replace(
        problem,
        accelerator_ms=tuple(0.0 if math.isinf(ms) else ms for ms in problem.accelerator_ms),
        move_ms=(0.0,) * len(problem),
        accelerators=max(1, problem.accelerators),
        processors=0,
    )
    placement = contiguous(ignoring, limit_s=limit_s)
    able = problem.accelerators and placement.devices and max_load(problem, placement.devices) < math.inf
    devices = placement.devices if able else None
    return _result(problem, devices, "PipeDream's, by antichains", least_load(problem), started, placement.note)


def _result(
    problem: DevicePlacementProblem,
    devices: tuple[int, ...] | None,
    method: str,
    bound: float,
    started: float,
    note: str = "",
) -> PlacedOperators:
    value = max_load(problem, devices) if devices else math.inf
    return PlacedOperators(devices or (), method, value, min(bound, value), time.monotonic() - started, note)


def _count_used_devices(problem: DevicePlacementProblem, blocks: PlacementBlocks) -> tuple[int, int]:
    """How many numbers of accelerators and of processors may be in use: more than there are blocks are never."""
    return min(problem.accelerators, len(blocks)) + 1, min(problem.processors, len(blocks)) + 1


@dataclass(frozen=True)
class Chain:
    """By operator the device; None where no chain is below the limit."""

    devices: tuple[int, ...] | None
    out_of_time: bool = False


class Chains:
    """The parts between the downsets of a family that holds the empty set and all blocks."""

    def __init__(self, problem: DevicePlacementProblem, blocks: PlacementBlocks, sets: Sequence[int]) -> None:
        self._problem, self._blocks = problem, blocks
        count = len(blocks)
        sums = np.zeros((5, count))
        for operator, mine in enumerate(blocks.of):
            able = problem.accelerator_ms[operator] < math.inf
            accelerator = problem.accelerator_ms[operator] if able else 0.0
            sums[:, mine] += (accelerator, problem.processor_ms[operator], problem.memory[operator], not able, 0.0)
        nowhere = sums[3] > 0.0
        both = np.minimum(np.where(nowhere, np.inf, sums[0]), sums[1] if problem.processors else np.inf)
        sums[4] = np.where(np.isinf(both), 0.0, both)
        width = max(1, (count + 7) // 8)
        raw = b"".join(downset.to_bytes(width, "little") for downset in sets)
        member = np.unpackbits(
            np.frombuffer(raw, dtype=np.uint8).reshape(len(sets), width), axis=1, bitorder="little", count=count
        )
        facts = member @ sums.T
        order = np.lexsort((member.sum(axis=1), facts[:, 4]))
        self._sets = [sets[place] for place in order]
        member = member[order]
        self._accelerator, self._processor, self._memory, self._unable, self._least = np.ascontiguousarray(
            facts[order].T
        )
        padded = np.zeros((len(sets), -(-count // 64) * 64 or 64), dtype=np.uint8)
        padded[:, :count] = member
        self._words = np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
        self._ratio = float(np.max(np.where(nowhere, 0.0, sums[0]) / np.maximum(sums[1], 1e-300), initial=0.0))
        self._read_outputs(member)

    def _read_outputs(self, member: np.ndarray) -> None:
        """Outputs that other blocks read: what each costs, and for each downset whether it is made and how many blocks read it."""
        problem, of = self._problem, self._blocks.of
        costs: dict[tuple[int, tuple[int, ...]], float] = {}
        for operator, readers in enumerate(problem.readers):
            there = tuple(sorted({of[reader] for reader in readers} - {of[operator]}))
            if there and problem.move_ms[operator]:
                costs[of[operator], there] = costs.get((of[operator], there), 0.0) + problem.move_ms[operator]
        self._costs = np.array(list(costs.values()))
        self._made = np.zeros((len(costs), len(member)), dtype=bool)
        self._read = np.zeros((len(costs), len(member)), dtype=np.uint16)
        self._split = np.zeros((len(costs), len(member)), dtype=bool)
        by_block = np.ascontiguousarray(member.T)
        for row, (source, there) in enumerate(costs):
            self._made[row] = by_block[source]
            self._read[row] = by_block[list(there)].sum(axis=0)
            total = self._read[row] + self._made[row]
            self._split[row] = (total > 0) & (total <= len(there))
        self._crossing = self._costs @ self._split

    def best(self, limit: float, deadline: float, processors: int | None = None, *, total: bool = False) -> Chain:
        """The chain with the least largest load below `limit`, or the least sum of loads; None where there is none.

        For a sum, parts of processors are not counted.
        """
        problem = self._problem
        many, others = (count - 1 for count in _count_used_devices(problem, self._blocks))
        others = 0 if total else others if processors is None else processors
        # Fewer devices than there are, where all would be too many: what comes of it is a placement still.
        others = min(others, max(1, MAX_STATES // len(self._sets) // (many + 1) - 1)) if others else 0
        many = min(many, max(1, MAX_STATES // len(self._sets) // (others + 1) - 1)) if many else 0
        together = np.add if total else np.maximum
        limit *= 1.0 - SLACK / 100
        best = np.full((others + 1, many + 1, len(self._sets)), np.inf)
        best[0, 0, 0] = 0.0
        came = np.full(best.shape, -1, dtype=np.int32)
        by_processor = np.zeros(best.shape, dtype=bool)
        whole = self._accelerator[-1]
        rest = self._least[-1] - self._least
        for here in range(len(self._sets) - 1):
            alive = [
                (int(other), int(accelerators))
                for other, accelerators in np.argwhere(best[:, :, here] < limit)
                if total or self._holds(whole - self._accelerator[here], many - accelerators, others - other, limit)
            ]
            if not alive:
                continue
            if here % 64 == 0 and time.monotonic() > deadline:
                return Chain(self._devices(best, came, by_processor, total=total), out_of_time=True)
            rows, on_accelerator = self._parts_from(here, limit)
            on_processor = self._processor[rows] - self._processor[here]
            for other, accelerators in alive:
                so_far = best[other, accelerators, here]
                for column, load in ((accelerators + 1, on_accelerator), (accelerators, on_processor)):
                    row = other + (column == accelerators and not total)
                    if column > many or row > others or (total and column == accelerators and not problem.processors):
                        continue
                    value = together(load, so_far)
                    least = value + rest[rows] if total else value
                    better = np.flatnonzero((least < limit) & (value < best[row, column, rows]))
                    there = rows[better]
                    best[row, column, there] = value[better]
                    came[row, column, there] = here
                    by_processor[row, column, there] = column == accelerators
            # Whole placements that are there already are a limit for all others.
            limit = min(limit, float(best[:, :, -1].min()))
        return Chain(self._devices(best, came, by_processor, total=total))

    def _holds(self, left: float, accelerators: int, processors: int, limit: float) -> bool:
        """Whether what is left may fit on the devices that are left, none busy for longer than `limit`."""
        return left <= (accelerators + processors * self._ratio) * limit if limit < math.inf else True

    def _parts_from(self, here: int, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """The downsets at which parts may end that begin at one, and the load of each on an accelerator."""
        stop = int(np.searchsorted(self._least, self._least[here] + limit, side="right"))
        mine = self._words[here]
        rows = np.arange(here + 1, stop)
        for word in np.flatnonzero(mine):
            rows = rows[(self._words[rows, word] & mine[word]) == mine[word]]
        load = self._accelerator[rows] - self._accelerator[here]
        fits = (self._memory[rows] - self._memory[here] <= self._problem.memory_bytes) & (
            self._unable[rows] == self._unable[here]
        )
        load[~fits] = np.inf
        near = np.flatnonzero(load < limit)
        near_rows = rows[near]
        crossing = np.flatnonzero(self._split[:, here])
        outputs = self._crossing[near_rows]
        if len(crossing):
            square = np.ix_(crossing, near_rows)
            pays = self._read[square] > self._read[crossing, here][:, None]
            pays |= self._made[square] & ~self._made[crossing, here][:, None]
            outputs = outputs + self._costs[crossing] @ (pays.astype(np.float64) - self._split[square])
        load[near] += outputs
        return rows, load

    def _devices(
        self, best: np.ndarray, came: np.ndarray, by_processor: np.ndarray, *, total: bool
    ) -> tuple[int, ...] | None:
        """The placement behind the best chain so far, by operator."""
        ends = best[:, :, -1]
        other, accelerators = (int(place) for place in np.unravel_index(int(ends.argmin()), ends.shape))
        if not math.isfinite(ends[other, accelerators]):
            return None
        devices = [0] * len(self._problem)
        end = len(self._sets) - 1
        while end:
            begin, processor = int(came[other, accelerators, end]), bool(by_processor[other, accelerators, end])
            device = self._problem.accelerators + (other - 1 if not total else 0) if processor else accelerators - 1
            for block in members(self._sets[end] & ~self._sets[begin]):
                for operator in self._blocks.operators[block]:
                    devices[operator] = device
            other, accelerators, end = other - (processor and not total), accelerators - (not processor), begin
        return tuple(devices)
