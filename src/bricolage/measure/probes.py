"""Tiny regions of our own that measure what is not in the model: entry costs of engines and costs of boundaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.graph.extract import write_model
from bricolage.verify.named_arrays import save_tensors

_OPSET = 18


def relu_region(directory: Path, source: str, target: str, elements: int) -> Path:
    """Writes a region of one Relu on a float32 vector, from tensor `source` to tensor `target`."""
    path = directory / f"relu-{source}-{target}-{elements}.onnx"
    if path.exists():
        return path
    shape, kind = ir.Shape([elements]), ir.TensorType(ir.DataType.FLOAT)
    value = ir.Value(name=source, shape=shape, type=kind)
    node = ir.node("Relu", [value], outputs=[ir.Value(name=target, shape=shape, type=kind)], name=f"relu_{source}")
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": _OPSET}, name="region")
    write_model(ir.Model(graph, ir_version=10), path)
    return path


def vector(directory: Path, names: tuple[str, ...], elements: int, *, rectified: bool = False) -> Path:
    """Writes an .npz with the same random float32 vector under each name (its Relu in float64 where `rectified`)."""
    path = directory / f"vector-{'-'.join(names)}-{elements}{'-rectified' * rectified}.npz"
    if not path.exists():
        values = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
        if rectified:
            values = np.maximum(values, 0).astype(np.float64)
        save_tensors(path, dict.fromkeys(names, values))
    return path
