"""Proves or refutes that two graphs compute the same.

Both are evaluated in exact arithmetic at random points of a finite field. Where they agree, they are equal as rational
functions, up to a stated chance of error; where they differ, float64 evaluation looks for real numbers that show it.
See docs/design/proofs.md for what that means.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.errors import NoReference
from bricolage.lowering.common import static_shape
from bricolage.rulemaking.proof.field import ZeroDivisor
from bricolage.rulemaking.proof.field_evaluation import Givens, evaluate_over_field
from bricolage.rulemaking.proof.lattice import RandomOrder
from bricolage.rulemaking.proof.random_point import NotModelled, RandomPoint
from bricolage.rulemaking.proof.tensor import FieldTensor
from bricolage.verify.reference import evaluate as evaluate_float64

_ATTEMPTS = 8
_SCALES = (1.0, 0.3, 3.0, 10.0, 1.0, 0.1)
_ORDERED_ERROR = 1e-9
_ORDERED_TRIALS = 1 << 13
_ROUNDING = 1e-6
"""Two float64 answers further apart than this, relative to their size, differ by more than the rounding of literals."""


@dataclass(frozen=True)
class Proved:
    """The graphs are equal at every real point where both are defined, unless the draws were unlucky."""

    error_bound: float
    """The chance that graphs that differ pass as equal, over all trials."""
    trials: int
    degree: int
    """Bound on the total degree of the polynomial that was tested for zero."""
    functions: tuple[str, ...]
    """Functions that took part through their laws alone; see `functions` and `extremes` for the laws."""
    readings: tuple[str, ...]
    """Literals that mean a number that no float is; the proof holds up to their rounding."""


@dataclass(frozen=True)
class Disproved:
    """Real inputs, within float32, on which the graphs differ."""

    inputs: Mapping[str, np.ndarray]
    output: str
    index: tuple[int, ...]
    """Index of the element that differs most; empty where the shapes differ already."""
    left: float
    right: float
    reason: str


@dataclass(frozen=True)
class Unprovable:
    """No verdict: something has no exact model, or no law that is modelled makes the graphs equal."""

    reason: str


Verdict = Proved | Disproved | Unprovable


def prove(
    left: ir.Model,
    right: ir.Model,
    *,
    free: Collection[str] = (),
    nonnegative: Collection[str] = (),
    values: Mapping[str, np.ndarray] | None = None,
    trials: int = 2,
    seed: int = 0,
) -> Verdict:
    """Whether `left` and `right` give the same outputs for all inputs, in real arithmetic.

    Args:
        left, right: graphs with fixed input shapes. Inputs and free initializers are matched by name, outputs by order.
        free: floating-point initializers that are any weights; all others are the numbers they hold.
        nonnegative: inputs and free initializers that are never negative.
        values: of integer inputs, which have no exact model as variables.
        trials: independent draws; each multiplies the chance of error by the bound of one.
        seed: the same seed gives the same verdict.
    """
    givens = Givens(free, nonnegative, values or {})
    contradiction = _signature(left, right, givens)
    if contradiction:
        return Unprovable(contradiction)
    for attempt in range(_ATTEMPTS):
        point = RandomPoint(seed * _ATTEMPTS + attempt, trials)
        try:
            results = [evaluate_over_field(model, point, givens) for model in (left, right)]
        except ZeroDivisor:
            continue
        except NotModelled as error:
            return Unprovable(str(error))
        proof = _compare(results, point, trials)
        if proof is not None and proof.error_bound >= 1:
            return Unprovable(f"the degree of {proof.degree} is too high for this field; take smaller shapes")
        return proof or _prove_in_order(left, right, point, givens, seed) or _refute(left, right, point, givens, seed)
    return Unprovable("a divisor is zero at every point")


def _signature(left: ir.Model, right: ir.Model, givens: Givens) -> str | None:
    """What the two sides say differently about their interface; None when they agree."""
    if len(left.graph.outputs) != len(right.graph.outputs):
        return f"the graphs have {len(left.graph.outputs)} and {len(right.graph.outputs)} outputs"
    seen: dict[str, tuple[Any, Any]] = {}
    for model in (left, right):
        for name, value in _variables(model, givens).items():
            facts = (static_shape(value), value.dtype)
            if seen.setdefault(name, facts) != facts:
                return f"'{name}' is {_words(seen[name])} on one side and {_words(facts)} on the other"
    missing = sorted({*givens.free, *givens.nonnegative} - set(seen))
    return f"no side has an input or free initializer '{missing[0]}'" if missing else None


def _words(facts: tuple[Any, Any]) -> str:
    return f"{facts[1].name if facts[1] is not None else 'untyped'}{list(facts[0]) if facts[0] is not None else ''}"


def _variables(model: ir.Model, givens: Givens) -> dict[str, ir.Value]:
    """Inputs and free initializers by name."""
    constants = model.graph.initializers
    graph_inputs = {v.name: v for v in model.graph.inputs if v.name and v.name not in constants}
    return graph_inputs | {name: constants[name] for name in givens.free if name in constants}


def _compare(results: list[list[Any]], point: RandomPoint, trials: int) -> Proved | None:
    """The proof that both sides agree at the point; None when they do not."""
    # Modulo Q the laws of exp do not hold; without exp, those rows are a second field to agree in.
    rows = slice(None, None, 2 if "exp" in point.functions else 1)
    degree = 0
    for a, b in zip(*results, strict=True):
        if isinstance(a, FieldTensor) and isinstance(b, FieldTensor):
            if a.dtype != b.dtype or a.shape != b.shape or (a.values[rows] != b.values[rows]).any():
                return None
            degree = max(degree, a.degree.plus(b.degree).total)
        elif type(a) is not type(b) or a.dtype != b.dtype or not np.array_equal(a, b):
            return None
    missed = 0.0 if point.order is None else 1 - point.order.chance()
    bound = min(missed + point.chance(degree), 1.0) ** trials
    return Proved(bound, trials, degree, tuple(sorted(point.functions)), tuple(sorted(point.readings)))


def _prove_in_order(left: ir.Model, right: ir.Model, point: RandomPoint, givens: Givens, seed: int) -> Proved | None:
    """A proof by the laws of lattices and of truth values, where maxima or truth values took part; None if there is none."""
    truths = any(v.dtype == ir.DataType.BOOL for v in (*left.graph.inputs, *right.graph.inputs))
    if not truths and not point.functions & {"max", "min", "is positive", "is zero"}:
        return None
    probe, trials = RandomOrder(), 1
    for order in (probe, None):  # the first evaluation finds what is compared, and how many trials that takes
        ordered = RandomPoint(seed, trials, order or RandomOrder(probe.met))
        try:
            results = [evaluate_over_field(model, ordered, givens) for model in (left, right)]
        except (ZeroDivisor, NotModelled):
            return None
        chance = probe.chance()
        if chance * _ORDERED_TRIALS < -math.log(_ORDERED_ERROR):
            return None
        trials = math.ceil(math.log(_ORDERED_ERROR) / math.log1p(-chance / 2))
    return _compare(results, ordered, trials)


# --- real counter-examples --------------------------------------------------------------------------------------


def _refute(left: ir.Model, right: ir.Model, point: RandomPoint, givens: Givens, seed: int) -> Verdict:
    """Searches real inputs on which the float64 answers differ by more than rounding."""
    closest = math.inf
    variables = _variables(left, givens) | _variables(right, givens)
    for attempt, scale in enumerate(_SCALES):
        generator = np.random.default_rng([seed, attempt])
        inputs = {name: _real(name, value, givens, generator, scale) for name, value in sorted(variables.items())}
        try:
            answers = [_answer(model, inputs, givens) for model in (left, right)]
        except NoReference as error:
            return Unprovable(f"the graphs differ in exact arithmetic, and float64 cannot evaluate them: {error}")
        difference = _difference(left, answers, inputs)
        if isinstance(difference, Disproved):
            return difference
        closest = min(closest, difference)
    used = ", ".join(sorted(point.functions)) or "none"
    return Unprovable(
        f"float64 answers agree to {closest:.0e}, but no law that is modelled makes the graphs equal (functions: {used})"
    )


def _real(name: str, value: ir.Value, givens: Givens, generator: np.random.Generator, scale: float) -> np.ndarray:
    shape = static_shape(value)
    if name in givens.values:
        return np.asarray(givens.values[name])
    assert shape is not None and value.dtype is not None  # else nothing could have been drawn
    if value.dtype == ir.DataType.BOOL:
        return generator.integers(0, 2, size=shape).astype(bool)
    drawn = (generator.standard_normal(shape) * scale).astype(np.float32)
    return (np.abs(drawn) if name in givens.nonnegative else drawn).astype(value.dtype.numpy())


def _answer(model: ir.Model, inputs: Mapping[str, Any], givens: Givens) -> list[np.ndarray]:
    """Outputs in float64, by the ONNX reference where it can: it shares nothing with the exact evaluation."""
    free = [name for name in givens.free if name in model.graph.initializers]
    if free:
        model = model.clone()
        for name in free:
            model.graph.initializers[name].const_value = ir.tensor(inputs[name], name=name)
    named = {name: inputs[name] for name in _variables(model, Givens())}
    try:
        outputs = evaluate_float64(model, named, library="onnx")
    except NoReference:
        outputs = evaluate_float64(model, named)
    return [np.asarray(outputs[value.name or ""]) for value in model.graph.outputs]


def _difference(left: ir.Model, answers: list[list[np.ndarray]], inputs: Mapping[str, np.ndarray]) -> Disproved | float:
    """The refutation, or how close the answers are, relative to the largest element."""
    closest = 0.0
    for value, a, b in zip(left.graph.outputs, *answers, strict=True):
        name = value.name or ""
        if a.shape != b.shape or a.dtype != b.dtype:
            reason = (
                f"output '{name}' is {a.dtype}{list(a.shape)} on the left and {b.dtype}{list(b.shape)} on the right"
            )
            return Disproved(inputs, name, (), math.nan, math.nan, reason)
        if not a.size:
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            apart = np.where((x == y) | ~np.isfinite(x) | ~np.isfinite(y), 0.0, np.abs(x - y))
        size = max((float(np.abs(v[np.isfinite(v)]).max(initial=0)) for v in (x, y)), default=0.0)
        closest = max(closest, float(apart.max()) / size if size else 0.0)
        if closest > _ROUNDING:
            index = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
            reason = (
                f"output '{name}' differs at {list(index)}: {x[index]:.9g} on the left, {y[index]:.9g} on the right"
            )
            return Disproved(inputs, name, index, float(x[index]), float(y[index]), reason)
    return closest
