"""What a model should answer, and what is wrong with an answer: float64, a second opinion, and what the model itself declares.

How much rounding may do to an answer is judged apart from `verify.bound`, with a factor and draws of its own: the product
accepts answers by that bound, and a fuzz campaign that judged by it alone would find nothing wrong with it. Here the model is
evaluated in its own types, and in float64 on inputs that are half a unit in the last place off. Only a small error that is
above this is right where the product's bound, which knows in how many orders a long sum can be added up, allows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from bricolage.errors import NoReference
from bricolage.graph.graph import TensorInfo, describe
from bricolage.verify.bound import error_limits, rounding_errors
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import Evaluator, evaluate
from bricolage.work.values import ModelValue

BOUND = 2e-6
"""Relative error of float32 over a dozen operators, or the same on values of size one where results cancel."""
OWN_ERROR_FACTOR = 8.0
"""An answer may be this many times as far from float64 as the model itself is, evaluated in its own types."""
SMALL = 1e-3
"""Up to here an error may be that of another order of a long sum."""
OPINION_BOUND = 1e-9
"""How far two evaluations in float64 may be apart, relative to the values and to one."""
_UNIT = 2.0**-23
_DRAWS = 3
_ROUNDING_DRAWS = 4


@dataclass(frozen=True)
class Wrong:
    """One thing that is wrong with an output."""

    output: str
    what: str
    """`missing`, `type`, `shape` or `value`."""
    error: float
    """Relative error of the values; infinite for the others."""
    text: str
    """In words."""

    def __str__(self) -> str:
        return f"{self.output}: {self.text}"


@dataclass(frozen=True, eq=False)
class Truth:
    """The answer of a model of fixed shapes to given inputs.

    `model` has types and shapes of its outputs; `inputs` are by name, in the model's own types; `bound` is that of the relative
    error; `rounded` is the same model with operators that round where the arithmetic judged does, where that is coarser than the
    model's own types.
    """

    model: ir.Model
    inputs: Mapping[str, ModelValue]
    bound: float = BOUND
    rounded: ir.Model | None = None
    _own: dict[str, ModelValue] = field(default_factory=dict, init=False)

    @cached_property
    def expected(self) -> dict[str, ModelValue]:
        """Outputs in float64, by name.

        Raises:
            NoReference: an operator can be evaluated by no library.
            InvalidGraph: an output is not of the type or the shape that the model states.
        """
        return evaluate(self.model, self.inputs, dtype=np.float64)

    @property
    def declared(self) -> dict[str, TensorInfo]:
        """What the model says of its outputs, by name."""
        return {value.name or "": describe(value) for value in self.model.graph.outputs}

    @property
    def finite(self) -> bool:
        """Whether no output holds NaN or infinity."""
        return all(
            bool(np.isfinite(value).all())
            for value in self.expected.values()
            if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        )

    def wrong(self, found: Mapping[str, ModelValue]) -> list[Wrong]:
        """What is wrong with an answer: outputs that are missing, types and shapes that are not the declared ones, values whose
        error is above both the bound (relative to the values and, since sums cancel, to one per element) and eight times what
        the model's own types, and inputs that differ in their last place, make of it. Integers and booleans are equal, unless
        the model's own types make them differ.

        Raises:
            NoReference, InvalidGraph: as `expected`.
        """
        mistakes: list[Wrong] = []
        for name, info in self.declared.items():
            if name not in found:
                mistakes.append(Wrong(name, "missing", np.inf, "is missing"))
                continue
            value, right = found[name], self.expected[name]
            if isinstance(value, np.ndarray) and isinstance(right, np.ndarray):
                reason = _declared_otherwise(info, value, right)
                if reason is not None:
                    mistakes.append(Wrong(name, reason[0], np.inf, reason[1]))
                    continue
            error = self._excess(name, value, right)
            if error is not None:
                mistakes.append(Wrong(name, "value", error, f"its error is {error:.1e}"))
        return mistakes

    def disputed(self) -> list[Wrong]:
        """Outputs for which the ONNX reference implementation, in float64 too, answers something else; none where it lacks an
        operator. What it is known to get wrong (docs/reference/backend-bugs.md) is put right before.

        Raises:
            NoReference, InvalidGraph: as `expected`.
        """
        disputes: list[Wrong] = []
        expected = self.expected
        try:
            other = evaluate(self.model, self.inputs, dtype=np.float64, library="onnx")
        except NoReference:
            return disputes
        for name, right in expected.items():
            if not _agree(other[name], right, OPINION_BOUND):
                error = relative_error([other[name]], [right])
                disputes.append(Wrong(name, "value", error, f"the ONNX reference differs by {error:.1e}"))
        return disputes

    def _excess(self, name: str, value: ModelValue, right: ModelValue) -> float | None:
        """The error of a value that is too far from the right one."""
        if _agree(value, right, self.bound):
            return None
        error = relative_error([value], [right])
        if not np.isfinite(error):
            return error
        if error <= OWN_ERROR_FACTOR * self._spread(name) or (error <= SMALL and error <= self._limits[name]):
            return None
        return error

    @cached_property
    def _limits(self) -> dict[str, float]:
        """The product's."""
        moved = rounding_errors(self.rounded or self.model, self.inputs, self.expected, _ROUNDING_DRAWS)
        return error_limits(moved, self.expected)

    def _spread(self, name: str) -> float:
        """The largest relative error that the model's own types, or inputs rounded otherwise, give an output."""
        if not self._own:
            evaluations = [evaluate(self.rounded or self.model, self.inputs, dtype=np.float32)]
            exact = Evaluator(self.model)
            evaluations += [exact(_nudge_inputs(self.inputs, draw)) for draw in range(_DRAWS)]
            for output, right in self.expected.items():
                self._own[output] = max(relative_error([evaluation[output]], [right]) for evaluation in evaluations)
        return float(self._own[name])


def _declared_otherwise(info: TensorInfo, value: np.ndarray, right: np.ndarray) -> tuple[str, str] | None:
    """What of `type` and `shape` of a value is not as declared, or not as the right value's, and in words; None where all is. The
    right value's shape is a declared one, or it would have been refused."""
    if info.dtype is not None and value.dtype != info.numpy:
        return "type", f"type {value.dtype} where {info.numpy} is declared"
    if value.shape != right.shape:
        return "shape", f"shape {value.shape} instead of {right.shape}"
    return None


def _agree(value: ModelValue, right: ModelValue, bound: float) -> bool:
    if isinstance(right, list) or right is None or value is None:
        return relative_error([value], [right]) <= bound
    value, right = np.asarray(value), np.asarray(right)
    if value.shape != right.shape:
        return False
    if right.dtype.kind != "f" or value.dtype.kind in "OUSb":
        return bool(np.array_equal(value, right))
    exact, close = right.astype(np.float64), value.astype(np.float64)
    special = ~np.isfinite(exact)
    if special.any():
        same = (exact == close) | (np.isnan(exact) & np.isnan(close))
        if not same[special].all():
            return False
        exact, close = exact[~special], close[~special]
    with np.errstate(all="ignore"):
        error = float(np.linalg.norm((close - exact).reshape(-1)))
        return error <= bound * (float(np.linalg.norm(exact.reshape(-1))) + math.sqrt(max(exact.size, 1)))


def _nudge_inputs(inputs: Mapping[str, ModelValue], draw: int) -> dict[str, ModelValue]:
    """Floats half a unit in the last place of float32 away: all up, all down, or each by chance."""
    chance = np.random.default_rng(draw)
    nudged: dict[str, ModelValue] = {}
    for name, value in inputs.items():
        if isinstance(value, np.ndarray) and value.dtype == np.float32:
            ways = {0: np.ones(value.shape), 1: -np.ones(value.shape)}
            way = ways[draw] if draw in ways else chance.choice([-1.0, 1.0], value.shape)
            nudged[name] = value.astype(np.float64) * (1 + _UNIT / 2 * way)
        else:
            nudged[name] = value
    return nudged
