"""Small graphs written as expressions: `t.MatMul(a, b)`, with lists of integers and plain numbers as constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from onnx_ir.tape import Tape

OPSET = 23
Build = Callable[..., Any]


class Graph:
    """Every ONNX operator is a method; `outputs=n` makes several outputs; other keywords are attributes."""

    def __init__(self) -> None:
        self.tape = Tape()
        self._count = 0

    def constant(self, value: Any, dtype: Any = None) -> ir.Value:
        array = np.asarray(value)
        if dtype is None:
            dtype = np.int64 if array.dtype.kind == "i" else np.float32 if array.dtype.kind == "f" else array.dtype
        self._count += 1
        return self.tape.initializer(ir.tensor(array.astype(dtype)), name=f"constant{self._count}")

    def ints(self, *values: int) -> ir.Value:
        return self.constant(np.asarray(values, np.int64))

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        def call(*inputs: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
            values = [x if isinstance(x, ir.Value) or x is None else self.constant(x) for x in inputs]
            results = self.tape.op_multi_out(op_type, values, attributes, num_outputs=outputs, domain=domain)
            return results[0] if outputs == 1 else tuple(results)

        return call


def model(shapes: Mapping[str, Any], build: Build, *, infer: bool = True) -> ir.Model:
    """`shapes`: input name -> shape (float32), or (shape, ir.DataType). `build(graph, *inputs)` returns the outputs.

    Without `infer` the graph may be one that shape inference refuses.
    """
    inputs = []
    for name, shape in shapes.items():
        plain = all(isinstance(d, int) for d in shape)
        dims, dtype = (shape, ir.DataType.FLOAT) if plain else shape
        inputs.append(ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(dtype)))
    graph = Graph()
    results = build(graph, *inputs)
    outputs: Sequence[ir.Value] = list(results) if isinstance(results, (tuple, list)) else [results]
    if any(v.producer() is None for v in outputs) or len(set(outputs)) < len(outputs):
        outputs = [graph.Identity(v) for v in outputs]
    for i, value in enumerate(outputs):
        value.name = f"y{i}"
    made = ir.Model(
        ir.Graph(
            inputs,
            outputs,
            nodes=graph.tape.nodes,
            initializers=graph.tape.initializers,
            opset_imports={"": OPSET},
            name="g",
        ),
        ir_version=10,
    )
    return ShapeInferencePass()(made).model if infer else made
