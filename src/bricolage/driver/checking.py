"""How a rewritten model is checked: in float64, in a worker with limits, on the inputs that the original was given."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.base import scratch
from bricolage.base.options import BOUNDS
from bricolage.device.host import host
from bricolage.driver.sources import working_folder
from bricolage.errors import InvalidGraph, NoReference
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.measure.pool import Pool
from bricolage.measure.reference_worker import WorkerReference, reference_limit
from bricolage.verify.bound import draws_for, error_limits, rounding_errors
from bricolage.verify.compare import Deviation, deviation
from bricolage.verify.inputs import InputSample, choose_sample
from bricolage.verify.reference import Evaluate, Values


@contextmanager
def references(graph: Graph, budget_s: float, memory_limit_mb: int | None) -> Iterator[Evaluate]:
    """What evaluates a graph, and models made of it, in a worker with limits of time and memory.

    Raises:
        CacheNotWritable, UnsafeCache
    """
    with (
        scratch.using(working_folder()) as directory,
        Pool(memory_limit_mb << 20 if memory_limit_mb else None) as pool,
    ):
        worker = WorkerReference(pool, host(), directory, reference_limit(graph, budget_s))
        yield file_constants(worker, Store(directory))


def file_constants(evaluate: Evaluate, store: Store) -> Evaluate:
    """Evaluates as `evaluate` does, which reads constants from the folder of `store`. Those of a model that it is given lie
    there from then on."""
    numbers = itertools.count()

    def evaluate_filed(
        model: ir.Model,
        inputs: Mapping[str, Any],
        *,
        dtype: type[np.floating[Any]] = np.float64,
        keep: Collection[str] = (),
    ) -> Values:
        store.share([model], f"checked-{next(numbers)}.data")
        return evaluate(model, inputs, dtype=dtype, keep=keep)

    return evaluate_filed


class Check:
    """Compares rewritten models with the original in float64, on the same inputs."""

    def __init__(self, original: Graph, sizes: Mapping[str, int], seed: int, evaluate: Evaluate) -> None:
        self._sizes = sizes
        self._evaluate = evaluate
        self._sample: InputSample = choose_sample(original.model, seed, evaluator=partial(evaluate, original.model))
        self._original = original
        self._limits = dict.fromkeys(self._sample.reference, 0.0)
        self.bound = BOUNDS["highest"]

    def deviation(self, model: ir.Model) -> Deviation:
        """How far a rewritten model is off; infinitely where it cannot be evaluated. What rounding does to the original
        is measured when it is first needed."""
        reference = self._sample.reference
        try:
            outputs = self._evaluate(prepare(model, self._sizes).model, self._sample.inputs)
        except (NoReference, InvalidGraph):
            return Deviation(np.inf, np.inf)
        given, wanted = [outputs.get(name) for name in reference], list(reference.values())
        judged = deviation(given, wanted, list(self._limits.values()))
        if judged.excess <= BOUNDS["highest"] or any(self._limits.values()):
            return judged
        draws = draws_for(self._original)
        rounding = rounding_errors(self._original.model, self._sample.inputs, reference, draws, self._evaluate)
        borrowed = bool(reference.borrowed)
        self._limits = error_limits(rounding, reference, borrowed=borrowed)
        self.bound = max(self.bound, *self._limits.values())
        return deviation(given, wanted, list(self._limits.values()))
