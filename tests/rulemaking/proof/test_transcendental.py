# ruff: noqa: ARG005 -- all sides take all inputs
"""The laws of every function: true ones that hold, false ones that must not, and true ones that are not modelled.

A false equation is proved only if a function is given a law that it lacks; so this file is what stands between a wrong rule
and a proof.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from bricolage.rulemaking.proof import Disproved, Proved, Unprovable, prove
from tests.rulemaking.proof.models import Build, model

SHAPE = (2, 5)
INPUTS: dict[str, Any] = dict.fromkeys(("x", "y", "z", "b", "c"), SHAPE)
INPUTS |= dict.fromkeys(("p", "q"), (SHAPE, ir.DataType.BOOL))
Equation = tuple[Build, Build]
"""Two functions of the graph and of an object with the inputs x, y, z (any), b, c (not negative), p, q (truth values)."""


class _Inputs:
    def __init__(self, values: tuple[ir.Value, ...]) -> None:
        for name, value in zip(INPUTS, values, strict=True):
            setattr(self, name, value)


def verdict(equation: Equation) -> Any:
    sides = [model(INPUTS, lambda t, *values, side=side: side(t, _Inputs(values))) for side in equation]
    return prove(*sides, nonnegative={"b", "c"})


TRUE: dict[str, Equation] = {
    # maxima
    "max commutes": (lambda t, i: t.Max(i.x, i.y), lambda t, i: t.Max(i.y, i.x)),
    "max associates": (lambda t, i: t.Max(t.Max(i.x, i.y), i.z), lambda t, i: t.Max(i.x, t.Max(i.y, i.z))),
    "max is idempotent": (lambda t, i: t.Max(i.x, i.x), lambda t, i: i.x),
    "max of a repeated member": (lambda t, i: t.Max(t.Max(i.x, i.y), i.x), lambda t, i: t.Max(i.x, i.y)),
    "min mirrors max": (lambda t, i: t.Min(i.x, i.y), lambda t, i: t.Neg(t.Max(t.Neg(i.x), t.Neg(i.y)))),
    "min associates": (lambda t, i: t.Min(t.Min(i.x, i.y), i.z), lambda t, i: t.Min(i.z, i.x, i.y)),
    "relu is idempotent": (lambda t, i: t.Relu(t.Relu(i.x)), lambda t, i: t.Relu(i.x)),
    "relu joins max": (lambda t, i: t.Max(t.Relu(i.x), i.y), lambda t, i: t.Relu(t.Max(i.x, i.y))),
    "relu joins max through a transpose": (
        lambda t, i: t.Transpose(t.Relu(t.Transpose(t.Relu(i.x), perm=[1, 0])), perm=[1, 0]),
        lambda t, i: t.Relu(i.x),
    ),
    "max of a concatenation": (
        lambda t, i: t.ReduceMax(t.Concat(i.x, i.y, axis=1), t.ints(1)),
        lambda t, i: t.Max(t.ReduceMax(i.x, t.ints(1)), t.ReduceMax(i.y, t.ints(1))),
    ),
    "max shifts": (
        lambda t, i: t.Add(t.Max(i.x, i.y), i.z),
        lambda t, i: t.Max(t.Add(i.x, i.z), t.Add(i.y, i.z)),
    ),
    "max and min add up": (lambda t, i: t.Add(t.Max(i.x, i.y), t.Min(i.x, i.y)), lambda t, i: t.Add(i.x, i.y)),
    "max shifts within a maximum": (
        lambda t, i: t.Max(t.Add(t.Max(i.x, i.y), i.z), i.b),
        lambda t, i: t.Max(t.Add(i.x, i.z), i.b, t.Add(i.y, i.z)),
    ),
    "a difference from a maximum is a minimum": (
        lambda t, i: t.Min(t.Sub(i.z, t.Max(i.x, i.y)), i.b),
        lambda t, i: t.Min(t.Sub(i.z, i.x), i.b, t.Sub(i.z, i.y)),
    ),
    "relu of both signs": (lambda t, i: t.Sub(t.Relu(i.x), t.Relu(t.Neg(i.x))), lambda t, i: i.x),
    "equal arguments": (lambda t, i: t.Relu(t.Add(i.x, i.y)), lambda t, i: t.Relu(t.Add(i.y, i.x))),
    # exp and its family
    "exp of a sum": (lambda t, i: t.Mul(t.Exp(i.x), t.Exp(i.y)), lambda t, i: t.Exp(t.Add(i.x, i.y))),
    "exp of a difference": (lambda t, i: t.Div(t.Exp(i.x), t.Exp(i.y)), lambda t, i: t.Exp(t.Sub(i.x, i.y))),
    "exp of a negative": (lambda t, i: t.Exp(t.Neg(i.x)), lambda t, i: t.Reciprocal(t.Exp(i.x))),
    "exp of twice": (lambda t, i: t.Exp(t.Mul(i.x, 2.0)), lambda t, i: t.Pow(t.Exp(i.x), 2.0)),
    "exp of a half": (lambda t, i: t.Pow(t.Exp(t.Mul(i.x, 0.5)), 2.0), lambda t, i: t.Exp(i.x)),
    "exp of a third": (lambda t, i: t.Pow(t.Exp(t.Div(i.x, 3.0)), 3.0), lambda t, i: t.Exp(i.x)),
    "exp of products": (
        lambda t, i: t.Mul(t.Exp(t.Mul(i.x, i.y)), t.Exp(t.Mul(i.x, i.z))),
        lambda t, i: t.Exp(t.Mul(i.x, t.Add(i.y, i.z))),
    ),
    "exp of zero": (lambda t, i: t.Add(i.x, t.Exp(t.Sub(i.y, i.y))), lambda t, i: t.Add(i.x, 1.0)),
    "exp of exp": (
        lambda t, i: t.Mul(t.Exp(t.Exp(i.x)), t.Exp(t.Exp(i.y))),
        lambda t, i: t.Exp(t.Add(t.Exp(i.y), t.Exp(i.x))),
    ),
    "sigmoid mirrors": (lambda t, i: t.Sigmoid(t.Neg(i.x)), lambda t, i: t.Sub(1.0, t.Sigmoid(i.x))),
    "sigmoid by exp": (
        lambda t, i: t.Sigmoid(i.x),
        lambda t, i: t.Div(t.Exp(i.x), t.Add(t.Exp(i.x), 1.0)),
    ),
    "tanh is odd": (lambda t, i: t.Tanh(t.Neg(i.x)), lambda t, i: t.Neg(t.Tanh(i.x))),
    "tanh is sinh over cosh": (lambda t, i: t.Tanh(i.x), lambda t, i: t.Div(t.Sinh(i.x), t.Cosh(i.x))),
    "cosh squared": (
        lambda t, i: t.Sub(t.Pow(t.Cosh(i.x), 2.0), t.Pow(t.Sinh(i.x), 2.0)),
        lambda t, i: t.Add(t.Sub(i.x, i.x), 1.0),
    ),
    "softmax shifts": (lambda t, i: t.Softmax(t.Add(i.x, 3.0)), lambda t, i: t.Softmax(i.x)),
    "softmax of two is a sigmoid": (
        lambda t, i: t.Slice(t.Softmax(t.Slice(i.x, [0], [2], [1])), [0], [1], [1]),
        lambda t, i: t.Sigmoid(t.Sub(t.Slice(i.x, [0], [1], [1]), t.Slice(i.x, [1], [2], [1]))),
    ),
    "log-softmax": (lambda t, i: t.LogSoftmax(i.x), lambda t, i: t.Log(t.Softmax(i.x))),
    "softplus": (lambda t, i: t.Softplus(i.x), lambda t, i: t.Log(t.Add(t.Exp(i.x), 1.0))),
    "mish": (lambda t, i: t.Mish(i.x), lambda t, i: t.Mul(i.x, t.Tanh(t.Softplus(i.x)))),
    # roots and powers
    "root of what is not negative": (lambda t, i: t.Mul(t.Sqrt(i.b), t.Sqrt(i.b)), lambda t, i: i.b),
    "root through a transpose": (
        lambda t, i: t.Pow(t.Transpose(t.Sqrt(t.Transpose(i.b, perm=[1, 0])), perm=[1, 0]), 2.0),
        lambda t, i: i.b,
    ),
    "root in a quotient": (lambda t, i: t.Div(i.b, t.Sqrt(i.b)), lambda t, i: t.Sqrt(i.b)),
    "root as a power": (lambda t, i: t.Sqrt(i.x), lambda t, i: t.Pow(i.x, 0.5)),
    "inverse root": (lambda t, i: t.Pow(i.x, -0.5), lambda t, i: t.Reciprocal(t.Sqrt(i.x))),
    "power of one and a half": (lambda t, i: t.Pow(i.b, 1.5), lambda t, i: t.Mul(i.b, t.Sqrt(i.b))),
    "root of a literal": (lambda t, i: t.Div(i.x, t.Sqrt(t.constant(64.0))), lambda t, i: t.Mul(i.x, 0.125)),
    "root of two": (
        lambda t, i: t.Mul(t.Mul(i.x, t.Sqrt(t.constant(2.0))), 2.0**-0.5),
        lambda t, i: i.x,
    ),
    "powers add": (lambda t, i: t.Mul(t.Pow(i.x, 3.0), t.Pow(i.x, 2.0)), lambda t, i: t.Pow(i.x, 5.0)),
    "negative power": (lambda t, i: t.Pow(i.x, -2.0), lambda t, i: t.Reciprocal(t.Mul(i.x, i.x))),
    "power of integer type": (lambda t, i: t.Pow(i.x, 2), lambda t, i: t.Mul(i.x, i.x)),
    "power of data": (lambda t, i: t.Pow(i.x, t.Add(i.y, i.z)), lambda t, i: t.Pow(i.x, t.Add(i.z, i.y))),
    # absolute values
    "abs of a product": (lambda t, i: t.Abs(t.Mul(i.x, i.y)), lambda t, i: t.Mul(t.Abs(i.y), t.Abs(i.x))),
    "abs of a quotient": (lambda t, i: t.Abs(t.Div(i.x, i.y)), lambda t, i: t.Div(t.Abs(i.x), t.Abs(i.y))),
    "abs of a negative": (lambda t, i: t.Abs(t.Sub(i.x, i.y)), lambda t, i: t.Abs(t.Sub(i.y, i.x))),
    "abs of what is not negative": (lambda t, i: t.Abs(i.b), lambda t, i: i.b),
    "abs of a power": (lambda t, i: t.Abs(t.Pow(i.x, 3.0)), lambda t, i: t.Pow(t.Abs(i.x), 3.0)),
    # predicates
    "greater is less, swapped": (
        lambda t, i: t.Where(t.Greater(i.x, i.y), i.z, i.b),
        lambda t, i: t.Where(t.Less(i.y, i.x), i.z, i.b),
    ),
    "greater is not less or equal": (
        lambda t, i: t.Where(t.Greater(i.x, i.y), i.z, i.b),
        lambda t, i: t.Where(t.LessOrEqual(i.x, i.y), i.b, i.z),
    ),
    "comparison of a difference": (
        lambda t, i: t.Greater(i.x, i.y),
        lambda t, i: t.Greater(t.Sub(i.x, i.y), 0.0),
    ),
    "equality is symmetric": (lambda t, i: t.Equal(i.x, i.y), lambda t, i: t.Equal(i.y, i.x)),
    "equal to itself": (lambda t, i: t.Where(t.Equal(i.x, i.x), i.y, i.z), lambda t, i: i.y),
    "both branches alike": (lambda t, i: t.Where(i.p, i.x, i.x), lambda t, i: i.x),
    "function of a choice of arguments moved": (
        lambda t, i: t.Where(t.Not(i.p), i.x, i.y),
        lambda t, i: t.Where(i.p, i.y, i.x),
    ),
    "or": (lambda t, i: t.Or(i.p, i.q), lambda t, i: t.Not(t.And(t.Not(i.p), t.Not(i.q)))),
    "xor commutes": (lambda t, i: t.Xor(i.p, i.q), lambda t, i: t.Xor(i.q, i.p)),
    "a truth value as a number": (
        lambda t, i: t.Mul(t.Cast(i.p, to=1), i.x),
        lambda t, i: t.Where(i.p, i.x, t.constant(0.0)),
    ),
}

FALSE: dict[str, Equation] = {
    # maxima
    "max is its first argument": (lambda t, i: t.Max(i.x, i.y), lambda t, i: i.x),
    "max is min": (lambda t, i: t.Max(i.x, i.y), lambda t, i: t.Min(i.x, i.y)),
    "max of three is max of two": (lambda t, i: t.Max(i.x, i.y, i.z), lambda t, i: t.Max(i.x, i.y)),
    "max of negatives": (lambda t, i: t.Max(t.Neg(i.x), t.Neg(i.y)), lambda t, i: t.Neg(t.Max(i.x, i.y))),
    "max is linear": (lambda t, i: t.Max(t.Add(i.x, i.z), i.y), lambda t, i: t.Add(t.Max(i.x, i.y), i.z)),
    "max scales by anything": (
        lambda t, i: t.Max(t.Mul(i.x, i.z), t.Mul(i.y, i.z)),
        lambda t, i: t.Mul(t.Max(i.x, i.y), i.z),
    ),
    "max of squares": (
        lambda t, i: t.Pow(t.Max(i.x, i.y), 2.0),
        lambda t, i: t.Max(t.Pow(i.x, 2.0), t.Pow(i.y, 2.0)),
    ),
    "max is a sum": (lambda t, i: t.Max(i.x, i.y), lambda t, i: t.Add(i.x, i.y)),
    "min joins max": (lambda t, i: t.Min(t.Max(i.x, i.y), i.z), lambda t, i: t.Max(t.Min(i.y, i.z), i.x)),
    "max of three and min of three add up": (
        lambda t, i: t.Add(t.Max(i.x, i.y, i.z), t.Min(i.x, i.y, i.z)),
        lambda t, i: t.Mul(t.Sum(i.x, i.y, i.z), 2 / 3),
    ),
    "max is the mean": (lambda t, i: t.Max(i.x, i.y), lambda t, i: t.Mean(i.x, i.y)),
    "a maximum shifts twice": (
        lambda t, i: t.Max(t.Add(i.x, i.z), t.Add(i.y, i.z)),
        lambda t, i: t.Add(t.Add(t.Max(i.x, i.y), i.z), i.z),
    ),
    "a difference from a maximum is a maximum": (
        lambda t, i: t.Sub(i.z, t.Max(i.x, i.y)),
        lambda t, i: t.Max(t.Sub(i.z, i.x), t.Sub(i.z, i.y)),
    ),
    "relu is additive": (lambda t, i: t.Relu(t.Add(i.x, i.y)), lambda t, i: t.Add(t.Relu(i.x), t.Relu(i.y))),
    "relu is odd": (lambda t, i: t.Relu(t.Neg(i.x)), lambda t, i: t.Neg(t.Relu(i.x))),
    "relu is even": (lambda t, i: t.Relu(t.Neg(i.x)), lambda t, i: t.Relu(i.x)),
    "relu is multiplicative": (
        lambda t, i: t.Relu(t.Mul(i.x, i.y)),
        lambda t, i: t.Mul(t.Relu(i.x), t.Relu(i.y)),
    ),
    "relu is nothing": (lambda t, i: t.Relu(i.x), lambda t, i: i.x),
    "relu is an absolute value": (lambda t, i: t.Relu(i.x), lambda t, i: t.Abs(i.x)),
    "relu squares to the square": (lambda t, i: t.Pow(t.Relu(i.x), 2.0), lambda t, i: t.Pow(i.x, 2.0)),
    "clips with other bounds": (lambda t, i: t.Clip(i.x, 0.0, 6.0), lambda t, i: t.Clip(i.x, 0.0, 1.0)),
    # exp and its family
    "exp is additive": (lambda t, i: t.Exp(t.Add(i.x, i.y)), lambda t, i: t.Add(t.Exp(i.x), t.Exp(i.y))),
    "exp is multiplicative": (lambda t, i: t.Exp(t.Mul(i.x, i.y)), lambda t, i: t.Mul(t.Exp(i.x), t.Exp(i.y))),
    "exp of a product and a sum": (
        lambda t, i: t.Mul(t.Exp(t.Mul(i.x, i.y)), t.Exp(i.z)),
        lambda t, i: t.Exp(t.Mul(i.x, t.Add(i.y, i.z))),
    ),
    "exp is homogeneous": (lambda t, i: t.Exp(t.Mul(i.x, 2.0)), lambda t, i: t.Mul(t.Exp(i.x), 2.0)),
    "exp is odd": (lambda t, i: t.Exp(t.Neg(i.x)), lambda t, i: t.Neg(t.Exp(i.x))),
    "exp is even": (lambda t, i: t.Exp(t.Neg(i.x)), lambda t, i: t.Exp(i.x)),
    "exp of three is exp of two": (lambda t, i: t.Exp(t.Mul(i.x, 3.0)), lambda t, i: t.Pow(t.Exp(i.x), 2.0)),
    "exp of a difference is of a sum": (
        lambda t, i: t.Mul(t.Exp(i.x), t.Exp(i.y)),
        lambda t, i: t.Exp(t.Sub(i.x, i.y)),
    ),
    "exp is a polynomial": (lambda t, i: t.Exp(i.x), lambda t, i: t.Add(i.x, 1.0)),
    "exp of exp is a product": (
        lambda t, i: t.Exp(t.Add(t.Exp(i.x), t.Exp(i.y))),
        lambda t, i: t.Exp(t.Exp(t.Add(i.x, i.y))),
    ),
    "exp of one is two": (lambda t, i: t.Exp(t.Add(i.x, 1.0)), lambda t, i: t.Mul(t.Exp(i.x), 2.0)),
    "sigmoid is odd": (lambda t, i: t.Sigmoid(t.Neg(i.x)), lambda t, i: t.Neg(t.Sigmoid(i.x))),
    "sigmoid is tanh": (lambda t, i: t.Sigmoid(i.x), lambda t, i: t.Tanh(i.x)),
    "tanh of twice": (lambda t, i: t.Tanh(t.Mul(i.x, 2.0)), lambda t, i: t.Mul(t.Tanh(i.x), 2.0)),
    "softmax scales": (lambda t, i: t.Softmax(t.Mul(i.x, 2.0)), lambda t, i: t.Softmax(i.x)),
    "softmax over another axis": (lambda t, i: t.Softmax(i.x, axis=0), lambda t, i: t.Softmax(i.x, axis=1)),
    "softmax twice": (lambda t, i: t.Softmax(t.Softmax(i.x)), lambda t, i: t.Softmax(i.x)),
    "swish with another slope": (
        lambda t, i: t.Mul(i.x, t.Sigmoid(i.x)),
        lambda t, i: t.Mul(i.x, t.Sigmoid(t.Mul(i.x, 1.702))),
    ),
    # roots and powers
    "root of a sum": (lambda t, i: t.Sqrt(t.Add(i.b, i.c)), lambda t, i: t.Add(t.Sqrt(i.b), t.Sqrt(i.c))),
    "root is nothing": (lambda t, i: t.Sqrt(i.b), lambda t, i: i.b),
    "root of four times": (lambda t, i: t.Sqrt(t.Mul(i.b, 4.0)), lambda t, i: t.Mul(t.Sqrt(i.b), 4.0)),
    "root with the other sign": (lambda t, i: t.Sqrt(t.Mul(i.b, 9.0)), lambda t, i: t.Mul(t.Sqrt(i.b), -3.0)),
    "root is negative": (lambda t, i: t.Sqrt(i.b), lambda t, i: t.Neg(t.Sqrt(i.b))),
    "root of a square of any sign": (lambda t, i: t.Sqrt(t.Mul(i.x, i.x)), lambda t, i: i.x),
    "roots of two numbers are one": (lambda t, i: t.Mul(t.Sqrt(i.b), t.Sqrt(i.c)), lambda t, i: i.b),
    "root of a product is of a sum": (
        lambda t, i: t.Mul(t.Sqrt(i.b), t.Sqrt(i.c)),
        lambda t, i: t.Sqrt(t.Add(i.b, i.c)),
    ),
    "root of two is of three": (lambda t, i: t.Mul(i.x, 2.0**0.5), lambda t, i: t.Mul(i.x, 3.0**0.5)),
    "cube is a square": (lambda t, i: t.Pow(i.x, 3.0), lambda t, i: t.Pow(i.x, 2.0)),
    "power of a sum": (
        lambda t, i: t.Pow(t.Add(i.x, i.y), 2.0),
        lambda t, i: t.Add(t.Pow(i.x, 2.0), t.Pow(i.y, 2.0)),
    ),
    "fractional powers are alike": (lambda t, i: t.Pow(i.b, 0.75), lambda t, i: t.Pow(i.b, 0.5)),
    "power commutes": (lambda t, i: t.Pow(i.b, i.c), lambda t, i: t.Pow(i.c, i.b)),
    # absolute values
    "abs is additive": (lambda t, i: t.Abs(t.Add(i.x, i.y)), lambda t, i: t.Add(t.Abs(i.x), t.Abs(i.y))),
    "abs is nothing": (lambda t, i: t.Abs(i.x), lambda t, i: i.x),
    "abs is odd": (lambda t, i: t.Abs(t.Neg(i.x)), lambda t, i: t.Neg(t.Abs(i.x))),
    "abs drops a factor": (lambda t, i: t.Abs(t.Mul(i.x, 2.0)), lambda t, i: t.Abs(i.x)),
    "abs with the other sign": (lambda t, i: t.Abs(t.Mul(i.x, 3.0)), lambda t, i: t.Mul(t.Abs(i.x), -3.0)),
    "abs of half a product": (lambda t, i: t.Mul(t.Abs(i.x), i.y), lambda t, i: t.Abs(t.Mul(i.x, i.y))),
    "abs of a cube": (lambda t, i: t.Abs(t.Pow(i.x, 3.0)), lambda t, i: t.Pow(i.x, 3.0)),
    "abs is its own cube": (lambda t, i: t.Abs(i.x), lambda t, i: t.Pow(t.Abs(i.x), 3.0)),
    "abs is a square": (lambda t, i: t.Abs(i.x), lambda t, i: t.Mul(i.x, i.x)),
    # predicates
    "greater commutes": (
        lambda t, i: t.Where(t.Greater(i.x, i.y), i.z, i.b),
        lambda t, i: t.Where(t.Greater(i.y, i.x), i.z, i.b),
    ),
    "greater is equal": (
        lambda t, i: t.Where(t.Greater(i.x, i.y), i.z, i.b),
        lambda t, i: t.Where(t.Equal(i.x, i.y), i.z, i.b),
    ),
    "greater of a scaled difference": (
        lambda t, i: t.Cast(t.Greater(i.x, i.y), to=1),
        lambda t, i: t.Cast(t.Greater(t.Mul(i.x, i.z), t.Mul(i.y, i.z)), to=1),
    ),
    "branches swapped": (lambda t, i: t.Where(i.p, i.x, i.y), lambda t, i: t.Where(i.p, i.y, i.x)),
    "condition ignored": (lambda t, i: t.Where(i.p, i.x, i.y), lambda t, i: t.Where(i.q, i.x, i.y)),
    "and is or": (lambda t, i: t.And(i.p, i.q), lambda t, i: t.Or(i.p, i.q)),
    "xor is or": (lambda t, i: t.Xor(i.p, i.q), lambda t, i: t.Or(i.p, i.q)),
    "not is nothing": (lambda t, i: t.Not(i.p), lambda t, i: t.Or(i.p, i.p)),
}

ODD = ("Asin", "Asinh", "Atan", "Atanh", "Erf", "Round", "Sign", "Sin", "Sinh", "Tan", "Tanh")
EVEN = ("Cos", "Cosh", "Abs")
PLAIN = ("Acos", "Acosh", "Ceil", "Exp", "Floor", "Log", "Sqrt")
for name in (*ODD, *EVEN, *PLAIN):
    f = lambda t, x, name=name: getattr(t, name)(x)  # noqa: E731
    TRUE[f"{name} of equal arguments"] = (
        lambda t, i, f=f: f(t, t.Mul(i.x, t.Add(i.y, i.z))),
        lambda t, i, f=f: f(t, t.Add(t.Mul(i.x, i.y), t.Mul(i.x, i.z))),
    )
    FALSE[f"{name} adds"] = (
        (
            lambda t, i, f=f: f(t, t.Add(i.b, i.c)),
            lambda t, i, f=f: t.Add(f(t, i.b), f(t, i.c)),
        )
        if name != "Abs"
        else (lambda t, i, f=f: f(t, i.x), lambda t, i, f=f: t.Mul(f(t, i.x), 2.0))
    )
    FALSE[f"{name} is another"] = (
        lambda t, i, f=f: f(t, i.x),
        lambda t, i, f=f, name=name: t.Tanh(i.x) if name != "Tanh" else t.Erf(i.x),
    )
for name in ODD:
    TRUE[f"{name} is odd"] = (
        lambda t, i, name=name: getattr(t, name)(t.Sub(i.x, i.y)),
        lambda t, i, name=name: t.Neg(getattr(t, name)(t.Sub(i.y, i.x))),
    )
    FALSE[f"{name} is even"] = (
        lambda t, i, name=name: getattr(t, name)(t.Neg(i.x)),
        lambda t, i, name=name: getattr(t, name)(i.x),
    )
for name in EVEN:
    TRUE[f"{name} is even"] = (
        lambda t, i, name=name: getattr(t, name)(t.Sub(i.x, i.y)),
        lambda t, i, name=name: getattr(t, name)(t.Sub(i.y, i.x)),
    )
    FALSE[f"{name} is odd"] = (
        lambda t, i, name=name: getattr(t, name)(t.Neg(i.x)),
        lambda t, i, name=name: t.Neg(getattr(t, name)(i.x)),
    )

BEYOND: dict[str, Equation] = {
    # True over the reals, and not derivable from the laws that are modelled.
    "relu scales": (lambda t, i: t.Relu(t.Mul(i.x, 2.0)), lambda t, i: t.Mul(t.Relu(i.x), 2.0)),
    "relu of what is not negative": (lambda t, i: t.Relu(i.b), lambda t, i: i.b),
    "relu as a choice": (lambda t, i: t.Relu(i.x), lambda t, i: t.Where(t.Greater(i.x, 0.0), i.x, 0.0)),
    "log of exp": (lambda t, i: t.Log(t.Exp(i.x)), lambda t, i: i.x),
    "log of a product": (lambda t, i: t.Log(t.Mul(i.b, i.c)), lambda t, i: t.Add(t.Log(i.b), t.Log(i.c))),
    "exp within exp": (
        lambda t, i: t.Exp(t.Mul(t.Exp(i.x), t.Exp(i.y))),
        lambda t, i: t.Exp(t.Exp(t.Add(i.x, i.y))),
    ),
    "root of a product": (lambda t, i: t.Sqrt(t.Mul(i.b, i.c)), lambda t, i: t.Mul(t.Sqrt(i.b), t.Sqrt(i.c))),
    "root of a square": (lambda t, i: t.Sqrt(t.Mul(i.x, i.x)), lambda t, i: t.Abs(i.x)),
    "abs takes out a literal": (lambda t, i: t.Abs(t.Mul(i.x, 3.0)), lambda t, i: t.Mul(t.Abs(i.x), 3.0)),
    "abs twice": (lambda t, i: t.Abs(t.Abs(i.x)), lambda t, i: t.Abs(i.x)),
    "sine and cosine": (
        lambda t, i: t.Add(t.Pow(t.Sin(i.x), 2.0), t.Pow(t.Cos(i.x), 2.0)),
        lambda t, i: t.Add(t.Sub(i.x, i.x), 1.0),
    ),
    # False, but only where random numbers never are: what is never zero at random points may be zero in life.
    "nothing is ever equal": (lambda t, i: t.Where(t.Equal(i.x, i.y), i.z, i.b), lambda t, i: i.b),
    "nothing is ever zero": (lambda t, i: t.Where(t.Equal(i.x, 0.0), i.z, i.x), lambda t, i: i.x),
    "greater is greater or equal": (lambda t, i: t.Greater(i.x, i.y), lambda t, i: t.GreaterOrEqual(i.x, i.y)),
}


ORDERED: dict[str, Equation] = {
    # True by the laws of lattices or of truth values: by evaluations in which maxima choose and truth values are 0 or 1.
    "max absorbs min": (lambda t, i: t.Max(i.x, t.Min(i.x, i.y)), lambda t, i: i.x),
    "min distributes": (
        lambda t, i: t.Min(t.Max(i.x, i.y), i.z),
        lambda t, i: t.Max(t.Min(i.x, i.z), t.Min(i.y, i.z)),
    ),
    "clips merge": (lambda t, i: t.Clip(t.Clip(i.x, 0.0, 6.0), -1.0, 3.0), lambda t, i: t.Clip(i.x, 0.0, 3.0)),
    "relu after a clip": (lambda t, i: t.Relu(t.Clip(i.x, 0.0, 6.0)), lambda t, i: t.Clip(i.x, 0.0, 6.0)),
    "relu before a clip": (lambda t, i: t.Clip(t.Relu(i.x), -1.0, 6.0), lambda t, i: t.Clip(i.x, 0.0, 6.0)),
    "hard sigmoid in the other order": (
        lambda t, i: t.HardSigmoid(i.x, alpha=0.5, beta=0.5),
        lambda t, i: t.Max(t.Min(t.Add(t.Mul(i.x, 0.5), 0.5), 1.0), 0.0),
    ),
    "a constant maximum": (lambda t, i: t.Add(i.x, t.Max(t.constant(2.0), 3.0)), lambda t, i: t.Add(i.x, 3.0)),
    "product of max and min": (lambda t, i: t.Mul(t.Max(i.x, i.y), t.Min(i.x, i.y)), lambda t, i: t.Mul(i.x, i.y)),
    "and with itself": (lambda t, i: t.And(i.p, i.p), lambda t, i: t.Or(i.p, i.p)),
    "a condition within itself": (
        lambda t, i: t.Where(i.p, t.Where(i.p, i.x, i.y), i.z),
        lambda t, i: t.Where(i.p, i.x, i.z),
    ),
    "exclusive or": (
        lambda t, i: t.Xor(i.p, i.q),
        lambda t, i: t.Or(t.And(i.p, t.Not(i.q)), t.And(i.q, t.Not(i.p))),
    ),
    "a comparison within itself": (
        lambda t, i: t.Where(t.Greater(i.x, i.y), t.Where(t.Greater(i.x, i.y), i.x, i.z), i.y),
        lambda t, i: t.Where(t.Greater(i.x, i.y), i.x, i.y),
    ),
}
WRONG_ORDER: dict[str, Equation] = {
    "clips merge with the wrong bound": (
        lambda t, i: t.Clip(t.Clip(i.x, 0.0, 6.0), -1.0, 3.0),
        lambda t, i: t.Clip(i.x, -1.0, 3.0),
    ),
    "clips merge with the looser bound": (
        lambda t, i: t.Clip(t.Clip(i.x, 0.0, 6.0), -1.0, 3.0),
        lambda t, i: t.Clip(i.x, 0.0, 6.0),
    ),
    "relu after a clip below zero": (lambda t, i: t.Relu(t.Clip(i.x, -1.0, 6.0)), lambda t, i: t.Clip(i.x, -1.0, 6.0)),
    "min does not absorb": (lambda t, i: t.Min(i.x, t.Max(i.z, i.y)), lambda t, i: i.x),
    "a constant minimum": (lambda t, i: t.Add(i.x, t.Min(t.constant(2.0), 3.0)), lambda t, i: t.Add(i.x, 3.0)),
    "or for and": (
        lambda t, i: t.Xor(i.p, i.q),
        lambda t, i: t.Or(t.And(i.p, t.Not(i.q)), t.Or(i.q, t.Not(i.p))),
    ),
    "median of three as a maximum": (
        lambda t, i: t.Max(t.Min(i.x, i.y), t.Min(i.y, i.z), t.Min(i.x, i.z)),
        lambda t, i: t.Max(t.Min(i.x, i.y), t.Min(i.y, i.z)),
    ),
}


def small(equation: Equation) -> Any:
    """One number of each input: an order of few numbers is met in few trials."""
    shapes = dict.fromkeys(INPUTS, (1,)) | dict.fromkeys(("p", "q"), ((1,), ir.DataType.BOOL))
    sides = [model(shapes, lambda t, *values, side=side: side(t, _Inputs(values))) for side in equation]
    return prove(*sides, nonnegative={"b", "c"})


@pytest.mark.parametrize("name", ORDERED)
def test_a_law_of_order_holds(name: str) -> None:
    found = small(ORDERED[name])
    assert isinstance(found, Proved), found
    assert found.error_bound < 1e-8


CHOOSING = ("max", "min", "relu", "clips", "greater", "branches", "condition", "and", "xor", "not")
WRONG_ORDER |= {name: equation for name, equation in FALSE.items() if name.split()[0] in CHOOSING}


@pytest.mark.parametrize("name", WRONG_ORDER)
def test_a_law_of_order_that_does_not_hold_is_refuted(name: str) -> None:
    found = small(WRONG_ORDER[name])
    assert not isinstance(found, Proved), found
    assert isinstance(verdict(WRONG_ORDER[name]), Disproved)


@pytest.mark.parametrize("name", BEYOND)
def test_no_order_helps_where_the_laws_are_missing(name: str) -> None:
    assert not isinstance(small(BEYOND[name]), Proved)


@pytest.mark.parametrize("name", TRUE)
def test_a_law_holds(name: str) -> None:
    found = verdict(TRUE[name])
    assert isinstance(found, Proved), found
    assert found.error_bound < 1e-12


@pytest.mark.parametrize("name", FALSE)
def test_a_law_that_does_not_hold_is_refuted(name: str) -> None:
    found = verdict(FALSE[name])
    assert isinstance(found, Disproved), found
    assert found.left != found.right


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_not_modelled_is_neither_proved_nor_refuted(name: str) -> None:
    found = verdict(BEYOND[name])
    assert isinstance(found, Unprovable), found
    assert "no law that is modelled" in found.reason


def test_every_function_of_the_table_has_its_laws_tested() -> None:
    from bricolage.lowering.operators.elementwise import UNARY as OPERATORS
    from bricolage.rulemaking.proof.transcendental import UNARY

    plain = {"Neg", "Not", "Reciprocal"}  # arithmetic
    named = {operator for operator, function in OPERATORS.items() if function in UNARY}
    assert named - plain == {*ODD, *EVEN, *PLAIN} - {"Erf"}  # which array libraries name for themselves
