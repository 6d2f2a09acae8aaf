"""Algebraic properties of ONNX operators of the default domain."""

from __future__ import annotations

COMMUTATIVE = frozenset(
    ["Add", "Mul", "Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"]
)
"""Operators that compute the same where two inputs change places; those that take any number of them, too, when they have two."""
SYMBOLIC_SIZE = 16
"""Taken for a symbolic dimension that has no size."""
