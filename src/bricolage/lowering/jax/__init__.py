"""ONNX graphs as JAX functions.

    fn, constants = lower(model)
    with jax.enable_x64(True):                 # ONNX has 64-bit integers; without it JAX narrows them
        outputs = jax.jit(fn)(constants, *inputs)

`constants` holds the weights, so that they are arguments of the compiled program and not literals in it. Values that
decide shapes are resolved while tracing: from small constants, and from the shapes of the traced inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from bricolage.errors import UnsupportedOperator
from bricolage.lowering import operators
from bricolage.lowering.common import (
    Array,
    Dtype,
    constant_node_value,
    element_types,
    is_static,
    opset_for,
    refusal,
    subgraphs_of,
    widen_constant,
)
from bricolage.lowering.jax.arrays import DTYPES
from bricolage.lowering.jax.interpreter import Interpreter, is_program
from bricolage.lowering.jax.pooling import REGISTRY

__all__ = ["DTYPES", "lower", "supported"]

_REGISTERED = operators
_CONTROL = frozenset({"If", "Loop", "Scan"})


def _type_refusal(node: ir.Node) -> str | None:
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    for value in values:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return f"{type(value.type).__name__} values have no lowering"
    types = element_types(node)
    target = node.attributes.get("to")
    if target is not None and node.op_type in ("Cast", "BitCast"):
        types.append(int(target.value))
    unknown = next((t for t in types if t and t not in DTYPES), None)
    return None if unknown is None else f"JAX is not used with {ir.DataType(unknown).name} here"


def find_refusal(node: ir.Node, opset: int) -> str | None:
    """Why the node cannot be lowered; None when it can. `opset` is that of the node's own domain."""
    bodies = subgraphs_of(node)
    if bodies:
        if node.op_type not in _CONTROL or node.domain:
            return f"{node.op_type} has no lowering"
        if node.op_type == "Scan" and opset < 9:
            return "Scan of opset 8 has no lowering"
        if node.op_type == "Loop" and not all(is_static(v) for v in node.inputs[:2]):
            return "the number of rounds must be known when the model is compiled"
        reasons = (find_refusal(inner, opset) for body in bodies.values() for inner in body)
        return next((reason for reason in reasons if reason), None)
    if node.op_type == "Constant" and not node.domain:
        return _type_refusal(node) if constant_node_value(node) is not None else "the constant is no dense tensor"
    reason = refusal(REGISTRY, node, opset) or _type_refusal(node)
    if reason:
        return reason
    entry = REGISTRY.find("" if node.domain == "ai.onnx" else node.domain, node.op_type, opset)
    if entry is None:
        return f"{node.op_type} has no lowering"
    if entry.data_dependent and not all(is_static(v) for v in node.inputs):
        return entry.data_dependent
    for i, value in enumerate(node.inputs):
        if entry.is_host(i) and not is_static(value):
            return f"input '{entry.input_name(i)}' must be known when the model is compiled"
    return None


def lower(
    model: ir.Model, *, float_dtype: Dtype = None
) -> tuple[Callable[..., tuple[Array, ...]], dict[str, np.ndarray]]:
    """(fn, constants): `fn(constants, *inputs)` returns the tuple of outputs and can be traced by `jax.jit`. With `float_dtype`,
    a narrower type, float32 is computed in that; inputs and outputs keep theirs.

    Trace and call it under `jax.enable_x64(True)`. Raises UnsupportedOperator at the first node that `supported`
    refuses.
    """
    imports = {str(k): int(v) for k, v in model.graph.opset_imports.items()}
    for node in model.graph:
        opset = opset_for(node, imports)
        reason = find_refusal(node, opset)
        if reason:
            raise UnsupportedOperator(library="JAX", op_type=node.op_type, opset=opset, reason=reason)
    interpreter = Interpreter(imports, float_dtype)
    given = interpreter.xp.given
    initializers = {
        v: widen_constant(v.const_value.numpy()) for v in model.graph.initializers.values() if v.const_value
    }
    needed = _host_initializers(model.graph, imports)
    program = {v: a for v, a in initializers.items() if v in needed or is_program(a)}
    data = {v: str(v.name) for v in initializers if v not in program}
    inputs = [v for v in model.graph.inputs if v not in initializers]
    outputs = list(model.graph.outputs)

    def fn(constants: dict[str, Array], *arguments: Array) -> tuple[Array, ...]:
        env: dict[ir.Value, Array] = dict(program)
        env.update((value, constants[name]) for value, name in data.items())
        env.update(zip(inputs, map(given, arguments), strict=True))
        interpreter.run(model.graph, env)
        computed = [jnp.asarray(interpreter.read(v, env)) for v in outputs]
        if float_dtype is None:
            return tuple(computed)
        return tuple(
            y.astype(np.float32) if v.dtype == ir.DataType.FLOAT else y for y, v in zip(computed, outputs, strict=True)
        )

    weights = {name: initializers[value] for value, name in data.items()}
    if float_dtype is not None:
        weights = {name: w.astype(float_dtype) if w.dtype == np.float32 else w for name, w in weights.items()}
    return fn, weights


def _host_initializers(graph: ir.Graph, imports: dict[str, int]) -> set[ir.Value]:
    """Initializers that decide shapes, at any depth."""
    host_initializers: set[ir.Value] = set()
    for node in graph:
        entry = REGISTRY.find(node.domain, node.op_type, opset_for(node, imports))
        host_initializers.update(
            value
            for i, value in enumerate(node.inputs)
            if entry is not None and value is not None and entry.is_host(i) and value.is_initializer()
        )
        for body in subgraphs_of(node).values():
            host_initializers |= _host_initializers(body, imports)
    return host_initializers
