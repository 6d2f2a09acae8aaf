"""Other inputs that an answer must be right on: faults between operators show only on particular data.

A runtime that fuses a Pad into the pool behind it pads with another number, which no positive value shows; one that fuses
two bounds shows it only beyond them. So whatever may ship is run on a few kinds of inputs other than those it is measured on, each
derived from these: all negative, both large and small, ties and zeros, saturated, a little moved.

What float32 cannot answer is not asked: an output is judged on a variation only as far as noise in the place of rounding
(`bricolage.verify.bound`), and the same model evaluated in its own types, leave it where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.base.options import BOUNDS
from bricolage.errors import BricolageError, InvalidGraph, NoReference, ReferenceLimit
from bricolage.graph.graph import Graph, Operator
from bricolage.graph.operator_kinds import RANDOM
from bricolage.graph.store import Store
from bricolage.graph.work import flops
from bricolage.verify.bound import FACTOR, REGION_DRAWS, error_limits, rounding_errors
from bricolage.verify.compare import Deviation, errors, relative_error, usual_size
from bricolage.verify.inputs import draw_inputs
from bricolage.verify.named_arrays import save_expected, save_tensors
from bricolage.verify.quantised import is_quantised
from bricolage.verify.reference import Evaluate
from bricolage.verify.roles import role
from bricolage.work.values import ModelValue

_LOG = logging.getLogger(__name__)
Inputs = dict[str, ModelValue]

COUNTS = ((1e8, 5), (4e9, 3), (float("inf"), 2))
"""Variations by the floating-point operations of the model: (up to, variations). Each costs an evaluation of the reference, and
a few more only for an answer that is farther off than rounding moved it on the first inputs."""
_UNTOLD = 0.1
"""Where rounding moves an output farther than this, a variation says nothing of it."""
_WORSE = 1000.0
"""Where rounding moves an output this many times farther than on the first inputs, neither: a few draws do not tell its limit.
(A normalisation of a row of equal numbers divides rounding by rounding.)"""
_LARGE = 64.0


@dataclass(frozen=True)
class Allowance:
    """How far one output may be off on a variation."""

    limit: float
    """The error that is still float32's own, as `bound.error_limits` gives it."""
    factor: float = 1.0
    """How many times as far as on the first inputs rounding moves it: what is left of an error counts divided by this."""


@dataclass(frozen=True)
class Variation:
    """Inputs of one kind, with the float64 outputs that they give."""

    kind: str
    inputs: Path
    expected: Path
    """With the limits that hold for the first inputs: what is within them is right here, too."""
    allowances: Callable[[], Mapping[str, Allowance]]
    """By output; costs evaluations of the reference, the first time."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Of outputs on the first inputs: where one is smaller here, an error is relative to that size."""

    def excess(
        self, actual: Mapping[str, ModelValue], reference: Mapping[str, ModelValue], allowed: Mapping[str, Allowance]
    ) -> float:
        """The largest error of an output that rounding does not explain, on the scale of the first inputs; 0 where none is."""
        names = list(reference)
        sizes = [self.sizes.get(name, 0.0) for name in names]
        return excess([actual[name] for name in names], list(reference.values()), [allowed[n] for n in names], sizes)


def excess(
    actual: Sequence[ModelValue],
    reference: Sequence[ModelValue],
    allowed: Sequence[Allowance],
    sizes: Sequence[float] = (),
) -> float:
    """See `Variation.excess`; `sizes` as for `compare.errors`."""
    deviations = errors(actual, reference, sizes)
    if len(deviations) != len(allowed):
        return float("inf")
    return max((e / a.factor for e, a in zip(deviations, allowed, strict=True) if e > a.limit), default=0.0)


@dataclass(frozen=True, eq=False)
class Varied:
    """Inputs of one kind, and the float64 outputs that they give, by name."""

    kind: str
    inputs: Inputs
    outputs: Inputs


def evaluate_variations(graph: Graph, inputs: Inputs, reference: Inputs, evaluate: Evaluate) -> tuple[Varied, ...]:
    """The variations of a model with their outputs; none where its answers are random.

    Args:
        graph: the model.
        inputs: those on which it is measured.
        reference: its float64 outputs for them.
        evaluate: computes references.
    """
    varied: list[Varied] = []
    names = list(reference)
    for kind, drawn in kinds(graph, inputs):
        try:
            outputs = {name: evaluate(graph.model, drawn, dtype=np.float64)[name] for name in names}
        except (NoReference, InvalidGraph) as error:
            _LOG.debug("no variation of the kind '%s': %s", kind, error)
            continue
        except ReferenceLimit as error:
            _LOG.debug("no more variations: %s", error)
            break
        if not all(_as_finite(outputs[name], reference[name]) for name in names):
            _LOG.debug("no variation of the kind '%s': outputs are not finite", kind)
            continue
        varied.append(Varied(kind, drawn, outputs))
    return tuple(varied)


def write_variations(
    graph: Graph,
    varied: Sequence[Varied],
    reference: Mapping[str, ModelValue],
    rounding: Mapping[str, float],
    store: Store,
    evaluate: Evaluate,
    prefix: str = "",
) -> tuple[Variation, ...]:
    """Variations as files in the folder of `store`.

    Args:
        graph: the model.
        varied: its variations.
        reference: its float64 outputs for the inputs on which it is measured.
        rounding: how far rounding moves these, by output.
        store: of the decision.
        evaluate: computes references.
        prefix: of the names of the files.
    """
    variations: list[Variation] = []
    quantised = is_quantised(graph.model)
    limits = error_limits(rounding, reference, borrowed=bool(getattr(reference, "borrowed", ())), quantised=quantised)
    sizes = {name: usual_size(value) for name, value in reference.items()}
    for variation in varied:
        given, wanted = (
            store.directory / f"{prefix}variation-{variation.kind}-{what}.npz" for what in ("inputs", "expected")
        )
        save_tensors(given, variation.inputs)
        save_expected(wanted, variation.outputs, limits)
        allowances = Allowances(graph.model, variation.inputs, variation.outputs, rounding, evaluate, sizes)
        variations.append(Variation(variation.kind, given, wanted, allowances, sizes))
    return tuple(variations)


def kinds(graph: Graph, inputs: Mapping[str, ModelValue]) -> Iterator[tuple[str, Inputs]]:
    """Inputs of each kind, as many as the model's size allows. The same arguments give the same values. Only floating-point
    numbers change; of a model that has none, all are drawn once more."""
    operators = list(graph.operators)
    if any(operator.op_type in RANDOM for operator in operators):
        return
    count = next(count for limit, count in COUNTS if sum(map(flops, operators)) <= limit)
    moving = [value for value in graph.model.graph.inputs if value.name in inputs and role(value).kind == "float"]
    if not any(_holds_elements(inputs[value.name or ""]) for value in moving):
        fresh = _drawn_again(graph.model)
        if fresh is not None and fresh.keys() == inputs.keys():
            yield "drawn again", fresh
        return
    narrow = any(map(_narrows, operators))
    for kind, change in list(_KINDS.items())[-2:] if narrow else list(_KINDS.items())[:count]:
        rng = np.random.default_rng([len(kind), *kind.encode()])
        changed = {value.name or "": _change_floats(inputs[value.name or ""], change, rng) for value in moving}
        yield kind, {**inputs, **changed}


def _narrows(operator: Operator) -> bool:
    """Whether an operator means nothing for large or negative numbers, or may not end: a cast to integers, a loop."""
    if operator.op_type == "Loop":
        return True
    read, written = operator.inputs[0] if operator.inputs else None, operator.outputs[0]
    return bool(
        operator.op_type in ("Cast", "CastLike")
        and read is not None
        and read.dtype is not None
        and read.dtype.is_floating_point()
        and written.dtype is not None
        and written.dtype.is_integer()
    )


def _drawn_again(model: ir.Model) -> Inputs | None:
    try:
        return draw_inputs(model, 1)
    except (BricolageError, TypeError, ValueError) as error:  # of a type of given arrays that cannot be drawn
        _LOG.debug("inputs cannot be drawn again: %s", error)
        return None


def _holds_elements(value: ModelValue) -> bool:
    return any(map(_holds_elements, value)) if isinstance(value, list | tuple) else np.asarray(value).size > 0


def _change_floats(
    value: ModelValue, change: Callable[[np.ndarray, np.random.Generator], np.ndarray], rng: np.random.Generator
) -> ModelValue:
    if isinstance(value, list | tuple):
        return [_change_floats(member, change, rng) for member in value]
    array = np.asarray(value)
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        changed = change(array.astype(np.float64), rng).astype(array.dtype)
    return np.where(np.isfinite(array.astype(np.float64)), changed, array).astype(array.dtype)


def _scale(x: np.ndarray) -> float:
    """Root mean square of the finite elements; 1 where there are none but zeros."""
    finite = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(finite**2))) or 1.0 if finite.size else 1.0


def _negative(x: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """All below zero, so that windows of nothing but padding, and of padding and values, tell zeros from -infinity."""
    return np.asarray(-np.abs(x) - 0.1 * _scale(x))


def _wide(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Both signs, from a thousandth to ten times their size."""
    return np.asarray(x * np.exp(rng.uniform(np.log(1e-3), np.log(10.0), x.shape)) * rng.choice([-1.0, 1.0], x.shape))


def _saturate_array(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """So large that what has bounds is at them."""
    return np.asarray(_LARGE * _scale(x) * rng.choice([-1.0, 1.0], x.shape) * rng.uniform(0.5, 1.0, x.shape))


def _ties(x: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """Few different values, zeros among them."""
    scale = _scale(x)
    return np.asarray(np.round(x / scale) * scale)


def _perturb_array(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each element by a few percent: what was given may lie on a point where two ways to compute agree."""
    return np.asarray(x + 0.05 * (np.abs(x) + _scale(x)) * rng.standard_normal(x.shape))


_KINDS: Mapping[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "negative": _negative,
    "wide": _wide,
    "saturated": _saturate_array,
    "ties": _ties,
    "moved": _perturb_array,
}
"""The most telling first; the last two leave values in the range that they had."""


def _as_finite(value: ModelValue, first: ModelValue) -> bool:
    """Whether an output is finite, or was not on the first inputs either."""
    if isinstance(value, list | tuple) and isinstance(first, list | tuple):
        members = [first[min(i, len(first) - 1)] for i in range(len(value))] if first else []
        return all(map(_as_finite, value, members))
    current, before = np.asarray(value), np.asarray(first)
    if current.dtype.kind not in "fc" or before.dtype.kind not in "fc":
        return True
    return bool(np.isfinite(current).all()) or not bool(np.isfinite(before).all())


def beyond_rounding(model: ir.Model, inputs: Inputs, answer: Mapping[str, ModelValue], evaluate: Evaluate) -> Deviation:
    """How far an answer is from the float64 reference, and what of that rounding on these inputs does not explain.

    Raises:
        NoReference, InvalidGraph: the model cannot be evaluated.
    """
    computed = evaluate(model, inputs, dtype=np.float64)
    wanted = {value.name or "": computed[value.name or ""] for value in model.graph.outputs}
    actual, expected = [answer[name] for name in wanted], list(wanted.values())
    error = relative_error(actual, expected)
    if error <= BOUNDS["highest"]:
        return Deviation(error, 0.0)
    allowed = Allowances(model, inputs, wanted, {}, evaluate)()
    return Deviation(error, excess(actual, expected, list(allowed.values())))


class Allowances:
    """What rounding does on a variation, evaluated when it is asked for."""

    def __init__(
        self,
        model: ir.Model,
        inputs: Inputs,
        outputs: Mapping[str, ModelValue],
        rounding: Mapping[str, float],
        evaluate: Evaluate,
        sizes: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._model, self._inputs, self._outputs = model, inputs, outputs
        self._sizes = sizes
        self._rounding, self._evaluate = rounding, evaluate
        self._quantised = is_quantised(model)
        self._allowances: dict[str, Allowance] | None = None

    def __call__(self) -> Mapping[str, Allowance]:
        """By output."""
        if self._allowances is None:
            here = rounding_errors(self._model, self._inputs, self._outputs, REGION_DRAWS, self._evaluate, self._sizes)
            typed_errors = self._in_own_types()
            self._allowances = {
                name: self._allowance(name, max(here[name], typed_errors[name])) for name in self._outputs
            }
        return self._allowances

    def _allowance(self, name: str, moved: float) -> Allowance:
        before = max(self._rounding.get(name, 0.0), float(np.finfo(np.float32).eps))
        if not moved <= min(_UNTOLD, _WORSE * before):
            return Allowance(float("inf"))
        if self._quantised:
            moved = max(moved, error_limits({name: moved}, self._outputs, quantised=True)[name] / FACTOR)
        # Twice, since the reference may rest on a backend for operators without float64 semantics (`verify.reference.Values`).
        return Allowance(2 * FACTOR * moved, max(1.0, moved / before))

    def _in_own_types(self) -> Mapping[str, float]:
        """Errors of the model evaluated in the types that it states: infinite where a value on the way does not fit."""
        names = list(self._outputs)
        try:
            computed = self._evaluate(self._model, self._inputs, dtype=np.float32)
        except (NoReference, ReferenceLimit, InvalidGraph) as error:
            _LOG.debug("a variation cannot be evaluated in the model's own types: %s", error)
            return dict.fromkeys(names, 0.0)
        sizes = [self._sizes.get(name, 0.0) for name in names]
        measured = errors([computed[name] for name in names], [self._outputs[name] for name in names], sizes)
        return dict(zip(names, measured, strict=True)) if len(measured) == len(names) else dict.fromkeys(names, 0.0)
