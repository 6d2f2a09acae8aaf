"""A model at several batch sizes, for measuring: graphs, inputs and references of each."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.base.options import Options
from bricolage.driver.operating_point_search import NotBatched
from bricolage.driver.serving import Batch
from bricolage.driver.session import Session
from bricolage.driver.sources import PreparedBucket, Source, measuring_inputs
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle

_MOST_ROWS = 64
"""Of a batch, where the user names none."""
_SAME = 1e-9
"""Relative difference in float64 up to which a row of a batch and the same row alone have one answer."""


class BatchedModel:
    """A model at the batch sizes that are asked for."""

    def __init__(self, opened: Source, session: Session) -> None:
        """The model of a source, with what decisions for it are made with."""
        self._opened, self._session, self._evaluate = opened, session, session.evaluate
        self._made: dict[int, Batch] = {}
        self.origin = ""
        """Where the inputs come from."""

    def at(self, rows: int) -> Batch:
        """At one size. That rows know nothing of each other is checked in float64, each time on the first and the last row.

        Raises:
            NotBatched: they do, or the outputs have no row for each.
        """
        if rows not in self._made:
            self._made[rows] = self._make(rows)
        return self._made[rows]

    def given(self, rows: int) -> Source:
        """The source with the measuring inputs of one size, as if it had no other."""
        opened, prepared = self._opened, self.prepared(rows)
        inputs = rows_of(opened, rows)
        return replace(opened, buckets=(prepared,), inputs=inputs)

    def prepared(self, rows: int) -> PreparedBucket:
        """The graph of one size, its weights in the store."""
        return bound_to_rows(self._opened, rows)

    def _make(self, rows: int) -> Batch:
        session, given = self._session, self.given(rows)
        graph = given.buckets[0].graph
        arrays, self.origin = measuring_inputs(given, graph, session.options, self._evaluate)
        oracle = Oracle(
            graph,
            arrays,
            session.store,
            session.options.bound,
            self._opened.digest,
            literal=session.options.tolerance is not None,
            evaluate=self._evaluate,
        )
        session.progress.start(f"float64 reference, batch {rows}")
        inputs, expected, bound = oracle.files(graph.everything)
        session.progress.finish()
        if rows > 1:
            self._check_rows(arrays, graph, rows)
        kept = [_copy_file(path, f"batch-{rows}-{path.name}") for path in (inputs, expected)]
        variant = TimedVariant.of(GraphVariant(ORIGINAL, graph), oracle, session)
        return Batch(rows, variant, kept[0], kept[1], bound, oracle.bound)

    def _check_rows(self, arrays: Mapping[str, Any], graph: Graph, rows: int) -> None:
        together = self._evaluate(graph.model, arrays, dtype=np.float64)
        single = bound_to_rows(self._opened, 1).graph
        for row in (0, rows - 1):
            alone = self._evaluate(single.model, {n: a[row : row + 1] for n, a in arrays.items()}, dtype=np.float64)
            for name in (info.name for info in graph.outputs):
                whole = np.asarray(together[name], np.float64)
                if whole.shape[:1] != (rows,):
                    raise NotBatched(f"output '{name}' has the shape {whole.shape} for {rows} rows")
                actual, expected = whole[row], np.asarray(alone[name], np.float64)[0]
                if actual.shape != expected.shape or np.linalg.norm(actual - expected) > _SAME * np.linalg.norm(
                    expected
                ):
                    raise NotBatched(f"a row's answer in '{name}' depends on the other rows")


def rows_of(opened: Source, rows: int) -> dict[str, np.ndarray] | None:
    """That many rows of the inputs that the user gave, again and again where they are fewer; None where none were given."""
    if opened.inputs is None or not opened.batch:
        return None if opened.inputs is None else dict(opened.inputs)
    overridden = opened.buckets[0].overridden
    return {
        name: array if name in overridden else np.asarray(array)[np.arange(rows) % len(array)]
        for name, array in opened.inputs.items()
    }


def bound_to_rows(opened: Source, rows: int) -> PreparedBucket:
    """The graph of a batch size, its weights in the store."""
    base = opened.buckets[0]
    if not opened.batch or base.sizes[opened.batch] == rows:
        return base
    sizes = {**base.sizes, opened.batch: rows}
    graph = prepare(opened.model, sizes, base.overridden)
    opened.store.share([graph.model], f"weights-{rows}.data")
    return PreparedBucket(sizes, graph, base.overridden)


def batch_sizes(opened: Source, options: Options) -> tuple[int, ...]:
    """To try, ascending: what the user names, else 1, 2, 4 and so on."""
    if not opened.batch:
        return (1,)
    named = options.shapes.get(opened.batch)
    return tuple(sorted(set(named))) if named else tuple(1 << p for p in range(_MOST_ROWS.bit_length()))


def _copy_file(path: Path, name: str) -> Path:
    target = path.with_name(name)
    shutil.copyfile(path, target)
    return target
