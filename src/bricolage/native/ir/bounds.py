"""What is known of a tensor's elements before they are computed."""

from __future__ import annotations

import math

import numpy as np

from bricolage.native.ir.tensors import Constant, Node, Pointwise


def magnitude(node: Node) -> float:
    """What no element is larger than, as far as constants and the type of integers say; infinity where they say nothing."""
    match node:
        case Constant():
            sizes = np.abs(node.array.astype(np.float64))
            return float(sizes.max(initial=0)) if np.isfinite(sizes).all() else math.inf
        case Pointwise(function="mul"):
            return math.prod(map(magnitude, node.inputs))
        case Pointwise(function="add" | "sub"):
            return sum(map(magnitude, node.inputs))
        case Pointwise(function="relu"):
            return magnitude(node.inputs[0])
        case Pointwise(function="cast") if node.inputs[0].dtype == "int32":
            return 2.0**31
        case Pointwise(function="dequantise") if node.inputs[0].dtype == "uint8":
            return (255 + magnitude(node.inputs[1])) * magnitude(node.inputs[2])
    return math.inf


def single(node: Node) -> float | None:
    """The number that a constant of one element holds; None of anything else."""
    return float(node.array.reshape(-1)[0]) if isinstance(node, Constant) and node.elements == 1 else None
