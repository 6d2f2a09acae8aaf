"""The language in which the left side of a rule is written.

`op.Transpose(op.Transpose(x), name="outer")` looks like the call that computes it and builds a pattern: operators with
their inputs, down to variables. `AnyValue("x")` matches every value, and the same value wherever its name stands again;
`Weight("w")` a value that is known before running; `Number(0.5)` a known value of one element. A pattern describes
operators of the default domain, in one graph: a value that another graph computes is matched by a variable only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class ValuePattern:
    """Anything that may stand as an input of an operator."""


@dataclass(frozen=True)
class AnyValue(ValuePattern):
    """Any value; `optional` matches an omitted input too."""

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Weight(ValuePattern):
    """A value that is known before running: an initializer."""

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Number(ValuePattern):
    """A constant of one element (whatever its rank) that equals `value` up to the rounding of its own type."""

    value: float


@dataclass(frozen=True)
class Either(ValuePattern):
    """One of several patterns, tried in order. All of them name the same variables."""

    choices: tuple[ValuePattern, ...]

    def __init__(self, *choices: ValuePattern) -> None:
        object.__setattr__(self, "choices", choices)


@dataclass(frozen=True)
class Op(ValuePattern):
    """An operator and its inputs. Inputs that follow those written here must be absent; `inputs=None` leaves them open,
    for operators that take any number of them."""

    types: frozenset[str]
    inputs: tuple[ValuePattern, ...] | None
    name: str = ""
    """Under which `check` and `rewrite` find the operator."""
    output: int = 0
    """Which of its outputs is meant."""

    def __str__(self) -> str:
        return "|".join(sorted(self.types))


Roots = Op | tuple[Op, ...]
"""The left side of a rule: one operator, or several that share variables; what they compute is replaced unless the rule says that
it stays."""


class _Operators:
    """`op.Relu(x)` is a pattern of the operator Relu."""

    def __getattr__(self, op_type: str) -> Callable[..., Op]:
        return self.one_of(op_type)

    def one_of(self, *op_types: str) -> Callable[..., Op]:
        """An operator that is any of several: `op.one_of("Relu", "Tanh")(x)`."""

        def build(*inputs: ValuePattern, name: str = "", output: int = 0) -> Op:
            return Op(frozenset(op_types), inputs, name, output)

        return build

    def variadic(self, op_type: str, *, name: str) -> Op:
        """An operator with any inputs, which the rule reads off the matched node."""
        return Op(frozenset([op_type]), None, name)


op = _Operators()
