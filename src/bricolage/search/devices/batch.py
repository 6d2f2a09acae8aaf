"""Loads of many placements of one problem at once: what methods that sample placements ask for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bricolage.search.devices.device_problem import DevicePlacementProblem


class PlacementLoads:
    """A problem as arrays."""

    def __init__(self, problem: DevicePlacementProblem) -> None:
        self._problem = problem
        self._devices = problem.accelerators + problem.processors
        accelerator, processor = (np.array(times, float) for times in (problem.accelerator_ms, problem.processor_ms))
        self._unable = np.isinf(accelerator)
        self._ms = np.stack(
            [np.where(self._unable, 0.0, accelerator)] * problem.accelerators + [processor] * problem.processors, axis=1
        )
        self._move, self._memory = np.array(problem.move_ms, float), np.array(problem.memory, float)
        edges = [(source, reader) for source, readers in enumerate(problem.readers) for reader in readers]
        self._edges = np.array(edges, int).reshape(-1, 2)

    def loads(self, placements: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Milliseconds of each device in each placement, and by placement how far it is from being one.

        Args:
            placements: [placements, operators], devices. Colours count for nothing: operators of one are given one device.

        Returns:
            Loads [placements, devices] as if memory sufficed; excess [placements]: bytes beyond memories, as part of one, and
            operators that their device does not run. `max_load` is the largest load where the excess is 0, and infinite
            elsewhere.
        """
        problem, (count, size) = self._problem, placements.shape
        row = np.arange(count)[:, None]
        loads, held = np.zeros((count, self._devices)), np.zeros((count, self._devices))
        np.add.at(loads, (row, placements), self._ms[np.arange(size), placements])
        np.add.at(held, (row, placements), np.broadcast_to(self._memory, placements.shape))
        read = np.zeros((count, size, self._devices), bool)
        read[row, self._edges[:, 0], placements[:, self._edges[:, 1]]] = True
        read[row, np.arange(size), placements] = False
        moved = read * self._move[:, None]
        loads[:, : problem.accelerators] += moved.sum(axis=1)[:, : problem.accelerators]
        out = np.where(placements < problem.accelerators, read.any(axis=2) * self._move, 0.0)
        np.add.at(loads, (row, placements), out)
        excess = np.maximum(held[:, : problem.accelerators] / max(problem.memory_bytes, 1e-300) - 1.0, 0.0).sum(axis=1)
        return loads, excess + (self._unable & (placements < problem.accelerators)).sum(axis=1)
