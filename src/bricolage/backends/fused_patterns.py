"""What engines are known to compute as one: patterns that a backend names in its claims."""

from __future__ import annotations

from bricolage.backends.claims import ANY, Pattern, Shared, op

Roots = tuple[Pattern, ...]
"""One region, by its last operators."""


def _attention() -> list[Roots]:
    """softmax(q·k, scaled, masked)·v, as exporters write it."""
    product = op("MatMul")
    scaled = [product, op("Mul|Div", product, ANY)]
    masked = [variant for score in scaled for variant in (score, op("Add", score, ANY), op("Where", ANY, score, ANY))]
    return [(op("MatMul", op("Softmax", score), ANY),) for score in masked]


def _siblings() -> list[Roots]:
    """Two or three products of one value, with their biases or without: queries, keys and values; gate and input."""
    plain = op("MatMul|Gemm", Shared("x"), ANY)
    biased = op("Add", op("MatMul", Shared("x"), ANY), ANY)
    return [(pattern,) * count for pattern in (plain, biased) for count in (2, 3)]


def _layer_norm() -> list[Roots]:
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + ε) · weight + bias, written out."""
    mean = op("ReduceMean", Shared("x"))
    difference = op("Sub", Shared("x"), mean, label="difference")
    again = op("Sub", label="difference")
    patterns: list[Roots] = []
    for square in (op("Pow", again, ANY), op("Mul", again, op("Sub", label="difference"))):
        quotient = op("Div", difference, op("Sqrt", op("Add", op("ReduceMean", square), ANY)))
        patterns += [(quotient,), (op("Add", op("Mul", quotient, ANY), ANY),)]
    return patterns


ATTENTION, SIBLINGS, LAYER_NORM = _attention(), _siblings(), _layer_norm()
