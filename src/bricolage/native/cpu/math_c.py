"""C of the element-wise functions (`ir.elementwise_functions`), and the C library of vectorisable mathematics that it uses.

The functions of `MATHS` have no branches and no calls, and conditions compare numbers as wide as those that they choose between, so
that C compilers vectorise the loops around them. Errors are
stated in units in the last place (ulp) of float32, found by comparing with float64 over the whole range (see the tests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bricolage.native.c import read_header
from bricolage.native.cpu.wide import UNSIGNED, WIDE

FUNCTIONS: Mapping[str, str] = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "maximum": "({1} <= {0} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} <= {1} || {0} != {0} ? {0} : {1})",
    "neg": "(-{0})",
    "abs": "nat_abs({0})",
    "square": "({0} * {0})",
    "cube": "({0} * {0} * {0})",
    "relu": "({0} < 0 ? 0 : {0})",
    "leaky": "({0} < 0 ? {0} * {p0} : {0})",
    "prelu": "({0} < 0 ? {0} * {1} : {0})",
    "elu": "({0} < 0 ? {p0} * nat_expm1({0}) : {0})",
    "clip": "nat_clip({0}, {p0}, {p1})",
    "hardsigmoid": "nat_clamp({p0} * {0} + {p1}, 0.0f, 1.0f)",
    "hardswish": "({0} * nat_clamp({0} * 0.166666667f + 0.5f, 0.0f, 1.0f))",
    "pow": "nat_pow({0}, {1})",
    "sqrt": "nat_sqrt({0})",
    "reciprocal": "(1.0f / {0})",
    "exp": "nat_exp({0})",
    "expm1": "nat_expm1({0})",
    "log": "nat_log({0})",
    "erf": "nat_erf({0})",
    "tanh": "nat_tanh({0})",
    "sigmoid": "nat_sigmoid({0})",
    "silu": "({0} * nat_sigmoid({0}))",
    "softplus": "nat_softplus({0})",
    "gelu": "(0.5f * {0} * (1.0f + nat_erf({0} * 0.707106781f)))",
    "gelu_tanh": "(0.5f * {0} * (1.0f + nat_tanh(0.797884561f * ({0} + 0.044715f * {0} * {0} * {0}))))",
    "sin": "nat_sin({0})",
    "cos": "nat_cos({0})",
    **{
        name: f"(float)__builtin_{name}((double){{0}})"
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")
    },
    "sign": "({0} < 0 ? -1 : {0} > 0 ? 1 : {0})",
    "floor": "__builtin_floorf({0})",
    "ceil": "__builtin_ceilf({0})",
    "round": "__builtin_rintf({0})",
    "where": "({0} ? {1} : {2})",
    "equal": "({0} == {1})",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "greater": "({0} > {1})",
    "greater_equal": "({0} >= {1})",
    "quotient": "nat_quotient({0}, {1})",
    "remainder": "nat_remainder({0}, {1})",
    "modulo": "nat_modulo({0}, {1})",
    "fmod": "__builtin_fmodf({0}, {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "not": "(!{0})",
    "bit_not": "(~{0})",
    "shift_left": "({1} < 8 * sizeof({type}) ? ({type}){0} << {1} : 0)",
    "shift_right": "({0} >> ({1} < 8 * sizeof({type}) ? {1} : 8 * sizeof({type}) - 1))",
    "cast": "({type}){0}",
    "narrow_float32": "{0}",
    "narrow_float16": "wide_from_half(wide_to_half({0}))",
    "narrow_bfloat16": "nat_widen(nat_narrow({0}))",
    "cast_int32": "nat_int32({0})",
    "cast_int64": "nat_int64({0})",
    **{f"cast_{name}": "({type})nat_int64({0})" for name in ("int8", "int16", "uint8", "uint16", "uint32")},
    "cast_uint64": "wide_uint64({0})",
    "to_bool": "({0} != 0)",
    "identity": "{0}",
    "dequantise": "(((float){0} - {1}) * {2})",
    "steps": "nat_steps({0}, {1}, {2})",
    "finite_steps": "nat_finite_steps({0}, {1}, {2})",
    "saturate": "nat_saturate({0}, {1}, {p0}, {p1})",
    "flip_sign": "({type})({0} ^ 0x80)",
}
"""C of one element: `{0}`, `{1}` … are the inputs, `{p0}` … parameters, `{type}` is the type of the result."""


def function_of(name: str, dtypes: Sequence[str]) -> str:
    """C of a function of inputs of these types, in the form of `FUNCTIONS`."""
    if "float64" in dtypes:
        return WIDE[name]
    if name in UNSIGNED and dtypes[0].startswith("uint"):
        return UNSIGNED[name]
    if name.startswith("narrow_") and dtypes[0] not in ("float32", "float16", "bfloat16"):
        return WIDE[name]  # a float does not hold all integers
    return FUNCTIONS[name]


MATHS = read_header("maths")
