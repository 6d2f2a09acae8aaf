"""Which requests of a model can be run together, in programs of which sizes, and whether their rows stay apart."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from bricolage.errors import BricolageError, NotBatchable
from bricolage.graph import model_interface
from bricolage.graph.prepare import bind
from bricolage.plan import artifact
from bricolage.plan.plan import Plan
from bricolage.plan.planned_interface import batch_dimension
from bricolage.runtime import signature
from bricolage.runtime.programs import PlanSource, Programs
from bricolage.verify.compare import errors
from bricolage.verify.inputs import draw_inputs
from bricolage.work.values import ModelValue

_SEEDS = (1, 2)
"""Of two draws of inputs whose rows differ."""
_ROUNDING = 4.0
"""An answer may be off by this multiple of what rounding does to the model, as where it is verified."""
_MOST = 0.1
"""Whatever rounding does: rows that differ by more are not the same."""


@dataclass(frozen=True)
class Batching:
    """How requests of a model are put together: along one symbolic dimension, the first of every input and output."""

    dimension: str
    batch: int
    """Rows at most."""
    sizes: Mapping[tuple[tuple[str, int], ...], tuple[int, ...]]
    """Of that dimension, ascending: those that the plan has buckets of, by the sizes of the other dimensions."""

    @staticmethod
    def of(plan: Plan, batch: int) -> Batching:
        """For a plan and a largest number of rows.

        Raises:
            NotBatchable: the model has no such dimension.
        """

        dimension = batch_dimension(plan.model, plan.inputs, plan.outputs)
        sizes = dict[tuple[tuple[str, int], ...], tuple[int, ...]]()
        for bucket in plan.buckets:
            others = _others(bucket.program.sizes, dimension)
            if bucket.program.sizes.get(dimension, batch + 1) <= batch:
                sizes[others] = tuple(sorted({*sizes.get(others, ()), bucket.program.sizes[dimension]}))
        return Batching(dimension, batch, sizes)

    def rows_and_key(self, sizes: Mapping[str, int]) -> tuple[int, Hashable]:
        """Of a request with these sizes: its rows, and what those that it may run with have in common; None where it runs by
        itself."""
        rows = sizes[self.dimension]
        return rows, _others(sizes, self.dimension) if 0 < rows < self.batch else None

    def size(self, rows: int, key: Hashable) -> int:
        """The batch size of the program that runs `rows` rows: one, the next one that the plan has, or else the whole batch."""
        return next(size for size in self.programs(key) if size >= rows)

    def programs(self, key: Hashable) -> tuple[int, ...]:
        """Rows of all programs that requests with that key may run in, ascending."""
        planned = self.sizes.get(key, ()) if isinstance(key, tuple) else ()
        return tuple(sorted({1, *planned, self.batch}))

    def check(self, programs: Programs) -> None:
        """Compares rows of a whole batch with the same rows among others, and by themselves, on generated inputs.

        Raises:
            NotBatchable: they differ by more than twice what an answer may be off, or there are not as many of them as of inputs.
        """
        source = programs.source
        fits = [
            candidate
            for candidate in source.plan.buckets
            if candidate.program.sizes.get(self.dimension, 0) <= self.batch
        ]
        bucket = max(fits or source.plan.buckets, key=lambda candidate: candidate.program.sizes.get(self.dimension, 0))
        sizes = {**bucket.program.sizes, self.dimension: self.batch}
        limit = min(_MOST, 2 * max(bucket.verification.bound, _ROUNDING * bucket.verification.original_error))
        mine, others = (_draw_model_inputs(source, sizes, seed) for seed in _SEEDS)
        whole = self._run(programs, sizes, mine)
        for row in sorted({0, self.batch // 2, self.batch - 1}):
            alone = {name: array[row : row + 1] for name, array in mine.items()}
            mixed = {name: array.copy() for name, array in others.items()}
            for name, array in mixed.items():
                array[row] = mine[name][row]
            among_others = self._run(programs, sizes, mixed)
            by_itself = self._run(programs, {**sizes, self.dimension: 1}, alone)
            for name, wanted in whole.items():
                for what, actual in (("among others", among_others[name][row]), ("by itself", by_itself[name][0])):
                    (error,) = errors([np.asarray(actual)], [np.asarray(wanted[row])])
                    if not error <= limit:
                        reason = f"row {row} of output '{name}' is another one {what} (relative difference {error:.2g})"
                        raise NotBatchable(model=source.plan.model, reason=reason)

    def _run(
        self, programs: Programs, sizes: Mapping[str, int], arrays: Mapping[str, ModelValue]
    ) -> dict[str, ModelValue]:
        prepared = programs.of_sizes(sizes)
        rows = sizes[self.dimension]
        results = prepared.run(arrays)
        for name, array in results.items():
            if not prepared.static or not isinstance(array, np.ndarray) or not array.ndim or array.shape[0] != rows:
                reason = f"output '{name}' has not as many rows as the inputs, or shapes that only a run tells"
                raise NotBatchable(model=programs.source.plan.model, reason=reason)
        return results


def _others(sizes: Mapping[str, int], dimension: str) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, size) for name, size in sizes.items() if name != dimension))


def _draw_model_inputs(source: PlanSource, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs of the model at these sizes."""
    model = bind(model_interface.read_written_model(source.directory / artifact.MODEL), sizes)
    try:
        drawn = draw_inputs(model, seed)
        return signature.collect(source.plan.inputs, (), drawn)
    except BricolageError as error:
        reason = f"no inputs could be drawn to see whether its rows stay apart ({error.sentence})"
        raise NotBatchable(model=source.plan.model, reason=reason) from error
