"""What a stretch of operators computes, found by computing it: parameters from chosen inputs, then a comparison on random ones.

A stretch is evaluated in float64. Its operators are analytic functions, so that two of them which agree on random inputs are the
same, however an exporter spelt them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.frontends.decoders.decoder_description import Activation
from bricolage.language.onnx_decoders.bound_graph import BoundGraph, read_sizes
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood

_LARGE, _SMALL = 1e6, 1e-3
_MAGNITUDES = (1.0, 30.0, 2e-3)


@dataclass(frozen=True)
class NormReading:
    """weight · x / sqrt(mean x² + epsilon)."""

    weight: np.ndarray
    """float32 [size of the last axis]."""
    epsilon: float

    def apply(self, x: np.ndarray) -> np.ndarray:
        """In float64, along the last axis."""
        return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * self.weight)


def draw_numbers(value: ir.Value, magnitude: float = 1.0) -> np.ndarray:
    """Random numbers in the shape of a value, the same in each run."""
    seed = zlib.crc32((value.name or "").encode())
    return np.random.default_rng(seed).standard_normal(read_sizes(value)) * magnitude


def are_alike(graph: BoundGraph, wanted: np.ndarray, computed: np.ndarray) -> bool:
    """Whether two arrays are the same but for rounding of the graph's constants."""
    difference = np.linalg.norm(wanted.reshape(-1) - computed.reshape(-1)) if wanted.size == computed.size else np.inf
    return bool(difference <= graph.tolerance * np.linalg.norm(wanted))


def is_unchanged(graph: BoundGraph, source: ir.Value, sink: ir.Value) -> bool:
    """Whether a value is another one as it is."""
    if source is sink:
        return True
    x = draw_numbers(source)
    return are_alike(graph, x, graph.evaluate([sink], {source: x})[0])


def read_norm(graph: BoundGraph, source: ir.Value, sink: ir.Value) -> NormReading:
    """The norm along the last axis that makes `sink` of `source`, of all rows or of the last one.

    Raises:
        NotUnderstood: it is another function.
    """
    sizes = read_sizes(source)
    failure = NotUnderstood(f"'{sink.name}' is not a root-mean-square norm of '{source.name}'")

    def compute(x: np.ndarray) -> np.ndarray:
        y = graph.evaluate([sink], {source: x})[0]
        if y.shape[-1:] != x.shape[-1:] or y.size not in (x.size, x.shape[-1]):
            raise failure
        return y.reshape(-1, x.shape[-1])

    exact = compute(np.full(sizes, _LARGE))[-1]
    largest = int(np.argmax(np.abs(exact)))
    ratio = compute(np.full(sizes, _SMALL))[-1][largest] / exact[largest] if exact[largest] else 0.0
    if not (np.isfinite(ratio) and 0 < ratio < 1):
        raise failure
    epsilon = _SMALL**2 * (ratio**-2 - 1)
    reading = NormReading(exact.astype(np.float32), float(np.float32(epsilon)))
    for magnitude in _MAGNITUDES:
        x = draw_numbers(source, magnitude)
        y = compute(x)
        if not are_alike(graph, reading.apply(x).reshape(-1, sizes[-1])[-len(y) :], y):
            raise failure
    return reading


def read_scaling(graph: BoundGraph, source: ir.Value, sink: ir.Value) -> float:
    """c of sink = c · source.

    Raises:
        NotUnderstood: it is another function.
    """
    if source is sink:
        return 1.0
    ones = graph.evaluate([sink], {source: np.ones(read_sizes(source))})[0]
    scale, x = float(ones.reshape(-1)[0]), draw_numbers(source)
    if not are_alike(graph, scale * x, graph.evaluate([sink], {source: x})[0]):
        raise NotUnderstood(f"'{sink.name}' is not '{source.name}' times a number")
    return scale


def read_cap(graph: BoundGraph, source: ir.Value, sink: ir.Value) -> float | None:
    """c of sink = c · tanh(source / c); None where both are the same.

    Raises:
        NotUnderstood: it is another function.
    """
    if is_unchanged(graph, source, sink):
        return None
    cap = float(graph.evaluate([sink], {source: np.full(read_sizes(source), _LARGE)})[0].reshape(-1)[0])
    for magnitude in (1.0, abs(cap)):
        x = draw_numbers(source, magnitude)
        if not (cap > 0 and are_alike(graph, np.tanh(x / cap) * cap, graph.evaluate([sink], {source: x})[0])):
            raise NotUnderstood(f"'{sink.name}' is neither '{source.name}' nor capped by tanh")
    return float(np.float32(cap))


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2)


_ACTIVATIONS: dict[Activation, Callable[[np.ndarray], np.ndarray]] = {"silu": _silu, "gelu_tanh": _gelu_tanh}


def read_gate(
    graph: BoundGraph, first: np.ndarray, second: np.ndarray, product: np.ndarray
) -> tuple[Activation, bool] | None:
    """The activation in product = activation(first) · second, and whether it is the first that is activated; None for neither."""
    for name, activate in _ACTIVATIONS.items():
        for first_is_gate, (gate, up) in ((True, (first, second)), (False, (second, first))):
            if are_alike(graph, activate(gate) * up, product):
                return name, first_is_gate
    return None
