"""Element-wise functions over the engine's nodes, by their names in numpy: the module `lib` of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable

from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.lowerings.traced import TracedArray, apply
from bricolage.native.ir.tensors import FLOATS

_FUNCTIONS = {
    **{name: name for name in ("exp", "expm1", "log", "tanh", "sqrt", "sin", "cos", "floor", "ceil", "round")},
    **{f"arc{name}": f"a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    **{name: name for name in ("cosh", "sinh", "tan")},
    "negative": "neg",
    "reciprocal": "reciprocal",
}
"""Element-wise functions of floats by their names in numpy."""


class ElementwiseFunctions:
    """The module `lib` of element-wise functions."""

    def __getattr__(self, name: str) -> Callable[[TracedArray], TracedArray]:
        if name not in _FUNCTIONS:
            raise NoLowering(f"the function {name}")

        def function(x: TracedArray) -> TracedArray:
            if x.dtype not in FLOATS:
                raise NoLowering(f"{name} of {x.dtype}")
            return apply(_FUNCTIONS[name], x)

        return function

    @staticmethod
    def abs(x: TracedArray) -> TracedArray:
        return abs(x)

    @staticmethod
    def sign(x: TracedArray) -> TracedArray:
        return apply("sign", x)

    @staticmethod
    def logical_not(x: TracedArray) -> TracedArray:
        return ~x

    @staticmethod
    def bitwise_not(x: TracedArray) -> TracedArray:
        return ~x

    @staticmethod
    def isnan(x: TracedArray) -> TracedArray:
        return x != x

    @staticmethod
    def isinf(x: TracedArray) -> TracedArray:
        return abs(x) == math.inf
