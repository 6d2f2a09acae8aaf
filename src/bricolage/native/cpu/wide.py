"""C of elements that are neither float32 nor signed integers: functions of float64, unsigned quotients, half-precision numbers.

Functions of float64 are those of the C library, which no compiler vectorises: float64 is for the little that networks compute
in it, and for being right.
"""

from __future__ import annotations

from collections.abc import Mapping

from bricolage.native.c import read_header

_UNARY = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh")
_LIBRARY = (*_UNARY, "erf", "exp", "expm1", "log", "sqrt", "floor", "ceil")

WIDE: Mapping[str, str] = {
    **{name: f"__builtin_{name}({{0}})" for name in _LIBRARY},
    **{name: f"__builtin_{name}({{0}}, {{1}})" for name in ("fmod", "pow")},
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "maximum": "({1} <= {0} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} <= {1} || {0} != {0} ? {0} : {1})",
    "neg": "(-{0})",
    "abs": "__builtin_fabs({0})",
    "square": "({0} * {0})",
    "cube": "({0} * {0} * {0})",
    "relu": "({0} < 0 ? 0 : {0})",
    "leaky": "({0} < 0 ? {0} * {p0} : {0})",
    "prelu": "({0} < 0 ? {0} * {1} : {0})",
    "elu": "({0} < 0 ? {p0} * __builtin_expm1({0}) : {0})",
    "clip": "wide_clip({0}, {p0}, {p1})",
    "hardsigmoid": "wide_clamp({p0} * {0} + {p1}, 0.0, 1.0)",
    "hardswish": "({0} * wide_clamp({0} / 6.0 + 0.5, 0.0, 1.0))",
    "reciprocal": "(1.0 / {0})",
    "sigmoid": "(1.0 / (1.0 + __builtin_exp(-{0})))",
    "silu": "({0} / (1.0 + __builtin_exp(-{0})))",
    "softplus": "(({0} < 0 ? 0.0 : {0}) + __builtin_log1p(__builtin_exp(-__builtin_fabs({0}))))",
    "gelu": "(0.5 * {0} * (1.0 + __builtin_erf({0} * 0.70710678118654752)))",
    "gelu_tanh": "(0.5 * {0} * (1.0 + __builtin_tanh(0.79788456080286536 * ({0} + 0.044715 * {0} * {0} * {0}))))",
    "sign": "({0} < 0 ? -1 : {0} > 0 ? 1 : {0})",
    "round": "__builtin_rint({0})",
    "where": "({0} ? {1} : {2})",
    "equal": "({0} == {1})",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "greater": "({0} > {1})",
    "greater_equal": "({0} >= {1})",
    "narrow_float32": "(float){0}",
    "narrow_float16": "wide_from_half(wide_to_half(wide_to_odd((double){0})))",
    "narrow_bfloat16": "nat_widen(nat_narrow(wide_to_odd((double){0})))",
    **{f"cast_{name}": "({type})wide_int64({0})" for name in ("int8", "int16", "uint8", "uint16", "uint32", "int64")},
    "cast_int32": "wide_int32({0})",
    "cast_uint64": "wide_uint64({0})",
    "to_bool": "({0} != 0)",
    "identity": "{0}",
}
"""Functions of float64 inputs, as in `math_c.FUNCTIONS`, and roundings of integers that a float32 does not hold."""

UNSIGNED: Mapping[str, str] = {
    "quotient": "({1} ? {0} / {1} : 0)",
    "remainder": "({1} ? {0} % {1} : 0)",
    "modulo": "({1} ? {0} % {1} : 0)",
    "shift_right": "({1} < 8 * sizeof({type}) ? {0} >> {1} : 0)",
}
"""Functions of unsigned integers that those of signed ones would not give."""

PREFIX = "wide_"
"""Of the functions of `HELPERS`, which are written only into libraries that call them."""

HELPERS = read_header("wide")

RUNS_SUFFIX = "_bytes("
"""Of the calls of the functions of `BYTE_RUNS`, which are written only into libraries that call them: their header takes long."""

BYTE_RUNS = read_header("byte_runs")
