"""Functions of single numbers that alone read a value: what bytes have to keep of it is what they make of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import Graph
from bricolage.quantization.observers import Function


def functions_behind(graph: Graph) -> dict[str, Function]:
    """By name of a value, where all that reads it is one function: HardSwish, Sigmoid, HardSigmoid, or x · sigmoid(x)."""
    functions: dict[str, Function] = {}
    for operator in graph.operators:
        for value in operator.outputs:
            function = None if graph.is_output(value) else _function(value)
            if function is not None:
                functions[value.name or ""] = function
    return functions


def _function(value: ir.Value) -> Function | None:
    readers = [node for node, _ in value.uses()]
    kinds = sorted(node.op_type for node in readers)
    if any(node.domain for node in readers):
        return None
    if len(readers) == 1:
        if kinds == ["HardSigmoid"]:
            alpha, beta = (readers[0].attributes.get_float(*attribute) for attribute in (("alpha", 0.2), ("beta", 0.5)))
            return lambda x: np.clip(alpha * x + beta, 0.0, 1.0)
        return _KNOWN.get(kinds[0])
    if kinds == ["Mul", "Sigmoid"]:
        product, gate = sorted(readers, key=lambda node: node.op_type)
        return silu if gate.outputs[0] in product.inputs and len(gate.outputs[0].uses()) == 1 else None
    return None


def hard_swish(x: np.ndarray) -> np.ndarray:
    """x · clip(x / 6 + 1/2, 0, 1)."""
    activation: np.ndarray = x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)
    return activation


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    activation: np.ndarray = 0.5 * (1.0 + np.tanh(0.5 * x))
    return activation


def silu(x: np.ndarray) -> np.ndarray:
    """x · sigmoid(x)."""
    activation: np.ndarray = x * sigmoid(x)
    return activation


_KNOWN: Mapping[str, Function] = {"HardSwish": hard_swish, "Sigmoid": sigmoid, "Swish": silu}
