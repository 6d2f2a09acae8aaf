"""How far from float64 an answer in float32 may be: what rounding makes of this very model on these very inputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from bricolage.errors import InvalidGraph, NoReference, ReferenceLimit
from bricolage.graph.graph import Graph
from bricolage.graph.work import flops
from bricolage.verify.compare import errors
from bricolage.verify.quantised import TIES
from bricolage.verify.reference import Evaluate, evaluate
from bricolage.verify.rounding import Rounded, round_model, rounded_inputs
from bricolage.work.values import ModelValue

_LOG = logging.getLogger(__name__)

FACTOR = 4.0
"""An answer may be this many times as far from float64 as rounding moved it in the draws."""
DRAWS = ((1e8, 8), (4e9, 4), (float("inf"), 2))
"""Evaluations with noise, by the floating-point operations of the model: (up to, draws)."""
REGION_DRAWS = 2
"""For a region: they are many, and their outputs have many elements."""
_DISCRETE = 0.5
"""Largest fraction of indices, integers or truths that may differ, however undecided they are."""


def draws_for(graph: Graph) -> int:
    """How many evaluations with noise a whole model gets; the same on every machine."""
    amount = sum(map(flops, graph.operators))
    return next(draws for limit, draws in DRAWS if amount <= limit)


def rounding_errors(
    model: ir.Model,
    inputs: Mapping[str, ModelValue],
    reference: Mapping[str, ModelValue],
    draws: int,
    evaluate: Evaluate = evaluate,
    sizes: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:
    """How far rounding moves each output, by name: the largest error of the draws (as `compare.errors` measures it), each a
    float64 evaluation of the model with noise in the place of rounding (`bricolage.verify.rounding`). Zero where the
    model cannot be evaluated so.

    Args:
        model: as it was evaluated for the reference.
        inputs: by name, in the model's types.
        reference: float64 outputs by name.
        draws: number of evaluations.
        evaluate: what evaluates, here or in another process.
        sizes: of outputs, by name, the least that an error is relative to (`compare.errors`).
    """
    names = [value.name or "" for value in model.graph.outputs]
    expected = [reference[name] for name in names]
    largest = dict.fromkeys(names, 0.0)
    noisy = _Noisy(model, evaluate, [sizes.get(name, 0.0) for name in names])
    for draw in range(draws):
        for name, error in zip(names, noisy.of_draw(draw, inputs, names, expected), strict=False):
            largest[name] = max(largest[name], error)
    return largest


def error_limits(
    rounding: Mapping[str, float],
    reference: Mapping[str, ModelValue],
    *,
    borrowed: bool = False,
    quantised: bool = False,
) -> dict[str, float]:
    """The error that is still float32's own, for each output: `FACTOR` times what rounding does; for indices and truths
    never more than half of them. `borrowed`: a part of the reference was itself computed in the model's types, so that it is as
    far off as an answer may be, and both together twice as far apart. `quantised`: 8-bit outputs are steps of a scale, and a few
    elements may be on the other side of a tie."""
    factor = 2 * FACTOR if borrowed else FACTOR
    limits = {
        name: min(factor * error, _DISCRETE) if _discrete(reference[name]) else factor * error
        for name, error in rounding.items()
    }
    return {
        name: max(limit, TIES) if quantised and _in_steps(reference[name]) else limit for name, limit in limits.items()
    }


class _Noisy:
    """Evaluations of one model with noise: first as fast as can be, then with infinite values guarded, then with one sign a
    tensor. A way that failed is not tried again."""

    def __init__(self, model: ir.Model, evaluate: Evaluate, sizes: list[float]) -> None:
        self._model, self._evaluate, self._sizes = model, evaluate, sizes
        self._ways = [(False, True), (True, True), (True, False)]
        self._made: Rounded | None = None

    def of_draw(
        self, draw: int, inputs: Mapping[str, ModelValue], names: list[str], expected: list[ModelValue]
    ) -> list[float]:
        """Errors of one draw; none where it cannot be evaluated, or gives an infinite one."""
        while True:
            guarded, shaped = self._ways[0]
            try:
                self._made = self._made or round_model(self._model, shaped=shaped, guarded=guarded)
                given = {**rounded_inputs(inputs, draw), **self._made.noise(draw)}
                values = self._evaluate(self._made.model, given, dtype=np.float64)
                measured = errors([values[name] for name in names], expected, self._sizes)
                if all(np.isfinite(error) for error in measured):
                    return measured
            except (NoReference, ReferenceLimit, InvalidGraph) as error:  # noise can lengthen a loop, or change a shape
                _LOG.debug("no evaluation with noise (guarded %s, shaped %s): %s", guarded, shaped, error)
            if len(self._ways) == 1:
                return []
            self._ways.pop(0)
            self._made = None


def _in_steps(value: ModelValue) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.dtype.itemsize == 1


def _discrete(value: ModelValue) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuOSUT"
