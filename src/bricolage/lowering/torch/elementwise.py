"""Element-wise operators as single ATen calls."""

from __future__ import annotations

import math
import operator as py
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from bricolage.lowering.operators.elementwise import UNARY
from bricolage.lowering.torch.arrays import DTYPES
from bricolage.lowering.torch.fused import EMITTERS, Emitter, NodeView, emitter
from bricolage.lowering.torch.known_values import Emitted

_BINARY: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "Add": (torch.add, py.add),
    "Sub": (torch.sub, py.sub),
    "Mul": (torch.mul, py.mul),
    "Equal": (torch.eq, py.eq),
    "Greater": (torch.gt, py.gt),
    "GreaterOrEqual": (torch.ge, py.ge),
    "Less": (torch.lt, py.lt),
    "LessOrEqual": (torch.le, py.le),
}
"""(ATen function for a tensor first, Python operator for a number first)"""


def _register_tables() -> None:
    def unary(function: Callable[..., object]) -> Emitter:
        return lambda v: v.call(function, v.tensor(0))

    for name, function in UNARY.items():
        EMITTERS[name] = unary(getattr(torch, function))
    for name, plain in {
        "And": torch.logical_and,
        "Or": torch.logical_or,
        "Xor": torch.logical_xor,
        "BitwiseAnd": torch.bitwise_and,
        "BitwiseOr": torch.bitwise_or,
        "BitwiseXor": torch.bitwise_xor,
    }.items():
        EMITTERS[name] = (lambda f: lambda v: v.call(f, v.tensor(0), v.tensor(1)))(plain)
    for name, activation in {
        "Relu": torch.relu,
        "Sigmoid": torch.sigmoid,
        "Erf": torch.erf,
        "HardSwish": F.hardswish,
        "Mish": F.mish,
        "Softsign": F.softsign,
    }.items():
        EMITTERS[name] = unary(activation)


_register_tables()


@emitter("Sign")
def sign(v: NodeView) -> Emitted | None:
    return v.call(signum, v.tensor(0))


def signum(x: torch.Tensor) -> torch.Tensor:
    """NaN of NaN, where torch has 0."""
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


@emitter(*_BINARY)
def binary(v: NodeView) -> Emitted | None:
    """A constant operand of one element is written as a number."""
    function, first_is_number = _BINARY[v.node.op_type]
    right = v.scalar(1)
    if right is not None:
        return v.call(function, v.tensor(0), right)
    left = v.scalar(0)
    if left is not None:
        return v.call(first_is_number, left, v.tensor(1))
    return v.call(function, v.tensor(0), v.tensor(1))


@emitter("Div")
def div(v: NodeView) -> Emitted | None:
    if not v.is_float(0):
        return None
    right, left = v.scalar(1), v.scalar(0)
    if right is not None:
        return v.call(torch.div, v.tensor(0), right)
    if left is not None:
        return v.call(py.truediv, left, v.tensor(1))
    return v.call(torch.div, v.tensor(0), v.tensor(1))


@emitter("Pow")
def pow_(v: NodeView) -> Emitted | None:
    exponent = v.scalar(1)
    if not v.is_float(0) or exponent is None:
        return None
    return v.call(torch.sqrt, v.tensor(0)) if exponent == 0.5 else v.call(torch.pow, v.tensor(0), exponent)


@emitter("Where")
def where(v: NodeView) -> Emitted | None:
    return v.call(torch.where, v.tensor(0), v.tensor(1), v.tensor(2))


@emitter("Clip")
def clip(v: NodeView) -> Emitted | None:
    if v.opset < 11:
        return v.call(torch.clamp, v.tensor(0), v.get("min", -math.inf), v.get("max", math.inf))
    low, high = (None if bound is None else bound.reshape(()).item() for bound in (v.const(1), v.const(2)))
    if (v.given(1) and low is None) or (v.given(2) and high is None):
        return None
    if low is None and high is None:
        return v.inputs[0]
    return v.call(torch.clamp, v.tensor(0), low, high)


@emitter("Identity")
def identity(v: NodeView) -> Emitted | None:
    return v.inputs[0]


@emitter("Dropout")
def dropout(v: NodeView) -> Emitted | None:
    training = v.const(2)
    if v.outputs > 1 or (v.given(2) and (training is None or bool(training))):
        return None
    return v.inputs[0]


@emitter("Cast")
def cast(v: NodeView) -> Emitted | None:
    wanted = v.builder.xp.dtype(v.get("to"))
    return v.inputs[0] if v.dtype(0) is wanted else v.builder.method("to", v.tensor(0), wanted)


@emitter("CastLike")
def cast_like(v: NodeView) -> Emitted | None:
    wanted = v.dtype(1)
    return None if wanted is None else v.builder.method("to", v.tensor(0), wanted)


@emitter("LeakyRelu")
def leaky_relu(v: NodeView) -> Emitted | None:
    return v.call(F.leaky_relu, v.tensor(0), v.get("alpha", 0.01))


@emitter("Elu")
def elu(v: NodeView) -> Emitted | None:
    return v.call(F.elu, v.tensor(0), v.get("alpha", 1.0))


@emitter("Gelu")
def gelu(v: NodeView) -> Emitted | None:
    return v.call(F.gelu, v.tensor(0), approximate=v.get("approximate", "none"))


@emitter("Swish")
def swish(v: NodeView) -> Emitted | None:
    return v.call(F.silu, v.tensor(0)) if v.get("alpha", 1.0) == 1 else None


@emitter("HardSigmoid")
def hard_sigmoid(v: NodeView) -> Emitted | None:
    exact = math.isclose(v.get("alpha", 0.2), 1 / 6, rel_tol=1e-7) and v.get("beta", 0.5) == 0.5
    return v.call(F.hardsigmoid, v.tensor(0)) if exact else None


@emitter("Softplus")
def softplus(v: NodeView) -> Emitted | None:
    # Its switch to the identity above 20 is exact to float32 but not to float64.
    return v.call(F.softplus, v.tensor(0)) if v.dtype(0) is DTYPES[1] else None


_VARIADIC: Mapping[str, Callable[..., torch.Tensor]] = {"Max": torch.maximum, "Min": torch.minimum, "Sum": torch.add}


@emitter(*_VARIADIC)
def variadic(v: NodeView) -> Emitted | None:
    function = _VARIADIC[v.node.op_type]
    total = v.tensor(0)
    for i in range(1, len(v.inputs)):
        total = v.call(function, total, v.tensor(i))
    return total
