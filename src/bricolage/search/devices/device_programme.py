"""The least largest load as an integer programme, solved by HiGHS: with parts that hang together, or of any shape.

Tarnawski et al., NeurIPS 2020, section 5.2, over blocks. An output has one variable for each accelerator, which pays for it where
its maker and its readers are not all there. What the authors call contiguous is weaker than a chain of parts: two parts may read
from each other as long as each is convex, so the least load may be below that of the dynamic programme.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.search.devices.colocation import PlacementBlocks, contract, group_colours
from bricolage.search.devices.device_problem import (
    SLACK,
    DevicePlacementProblem,
    PlacedOperators,
    least_load,
    max_load,
    without_spare_devices,
)
from bricolage.search.placement.linear_rows import LinearRows
from bricolage.work.bits import members


def integer_programme(
    problem: DevicePlacementProblem,
    known: PlacedOperators | None = None,
    *,
    connected: bool = False,
    limit_s: float = 60.0,
) -> PlacedOperators:
    """The best placement found within `limit_s` seconds, and what none goes below.

    Args:
        problem: the problem.
        known: a placement that is as good as its largest load says: only better ones are looked for.
        connected: parts are convex on the forward graph; otherwise they may have any shape.
        limit_s: seconds for HiGHS.
    """
    started = time.monotonic()
    method = "integer programme, convex parts" if connected else "integer programme, any parts"
    most = math.inf if known is None or not known.devices else known.max_load
    low = least_load(problem)
    blocks = contract(problem) if connected else group_colours(problem)
    fewer = without_spare_devices(problem, len(blocks))
    devices, bound = _Programme(fewer, blocks, low, most, connected=connected).solve(limit_s)
    if devices is not None:
        more = problem.accelerators - fewer.accelerators
        devices = tuple(device + more * (device >= fewer.accelerators) for device in devices)
    if devices is None and known is not None and known.devices:
        devices = known.devices
    value = math.inf if devices is None else max_load(problem, devices)
    if known is not None and known.max_load < value:
        devices, value = known.devices, known.max_load
    bound = min(max(bound * (1.0 - SLACK), low), value)
    if value <= bound * (1.0 + 10 * SLACK):
        bound = value
    return PlacedOperators(devices or (), method, value, bound, time.monotonic() - started)


@dataclass(frozen=True)
class _Output:
    cost: float
    source: int
    readers: tuple[int, ...]


class _Programme:
    """Columns: for each block and device whether it is there, and what follows from it; the first is the largest load."""

    def __init__(
        self, problem: DevicePlacementProblem, blocks: PlacementBlocks, low: float, most: float, *, connected: bool
    ) -> None:
        self._problem, self._blocks = problem, blocks
        self._count = problem.accelerators + problem.processors
        self._rows = LinearRows([1.0])
        self._low, self._high, self._whole = [low], [most], [0]
        self._scale = low or 1.0
        self._there = [[self._column() for _ in range(self._count)] for _ in blocks.operators]
        for block, operator in enumerate(blocks.operators):
            self._rows.add([(column, 1.0) for column in self._there[block]], 1.0, 1.0)
            unable = any(math.isinf(problem.accelerator_ms[number]) for number in operator)
            for device in range(problem.accelerators):
                # Accelerators are alike: the first block may be on the first, the second on the first two.
                if unable or (device > block and not connected):
                    self._high[self._there[block][device]] = 0.0
        outputs = self._outputs()
        for device in range(self._count):
            self._load(device, outputs if device < problem.accelerators else ())
            if connected:
                self._convex(device)

    def _column(self, *, whole: bool = True) -> int:
        self._low.append(0.0)
        self._high.append(1.0)
        self._whole.append(int(whole))
        return self._rows.new_column(0.0)

    def _outputs(self) -> list[_Output]:
        of = self._blocks.of
        output_costs: dict[tuple[int, tuple[int, ...]], float] = {}
        for operator, readers in enumerate(self._problem.readers):
            there = tuple(sorted({of[reader] for reader in readers} - {of[operator]}))
            if there and self._problem.move_ms[operator]:
                key = (of[operator], there)
                output_costs[key] = output_costs.get(key, 0.0) + self._problem.move_ms[operator]
        return [_Output(cost, *key) for key, cost in output_costs.items()]

    def _load(self, device: int, outputs: Sequence[_Output]) -> None:
        """What the device is busy for is at most the largest load, and its memory suffices."""
        problem, rows = self._problem, self._rows
        ms = problem.accelerator_ms if device < problem.accelerators else problem.processor_ms
        entries, memory = [(0, -1.0)], []
        for block, operator in enumerate(self._blocks.operators):
            column = self._there[block][device]
            busy = math.fsum(ms[number] for number in operator)
            entries.append((column, busy if math.isfinite(busy) else 0.0))
            memory.append((column, math.fsum(problem.memory[number] for number in operator)))
        for output in outputs:
            paid = self._column(whole=False)
            entries.append((paid, output.cost))
            source = self._there[output.source][device]
            for reader in output.readers:
                other = self._there[reader][device]
                rows.add([(paid, 1.0), (source, -1.0), (other, 1.0)], 0.0, math.inf)
                rows.add([(paid, 1.0), (source, 1.0), (other, -1.0)], 0.0, math.inf)
        rows.add(entries, -math.inf, 0.0)
        if device < problem.accelerators and math.isfinite(problem.memory_bytes):
            unit = problem.memory_bytes or 1.0
            rows.add(
                [(column, size / unit) for column, size in memory], -math.inf, 1.0 if problem.memory_bytes else 0.0
            )

    def _convex(self, device: int) -> None:
        """Whether anything of the part is still to come: it cannot be once an edge has led out of the part."""
        coming = [self._column(whole=False) for _ in self._blocks.operators]
        for block, sources in enumerate(self._blocks.before):
            here = self._there[block][device]
            self._rows.add([(coming[block], 1.0), (here, -1.0)], 0.0, math.inf)
            for source in members(sources):
                self._rows.add([(coming[block], 1.0), (coming[source], -1.0)], -math.inf, 0.0)
                there = self._there[source][device]
                self._rows.add([(coming[block], 1.0), (here, -1.0), (there, 1.0)], -math.inf, 1.0)

    def solve(self, limit_s: float) -> tuple[tuple[int, ...] | None, float]:
        """By operator its device, and the bound."""
        result = self._rows.solve(self._whole, max(limit_s, 0.1), self._low, self._high)
        if result.infeasible:
            return None, self._high[0]
        low = self._low[0] if result.bound is None else result.bound
        if result.x is None:
            return None, low
        devices = [0] * len(self._problem)
        for block, columns in enumerate(self._there):
            device = int(np.argmax(result.x[columns]))
            for operator in self._blocks.operators[block]:
                devices[operator] = device
        return tuple(devices), low
