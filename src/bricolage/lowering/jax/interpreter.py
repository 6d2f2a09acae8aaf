"""Runs an ONNX graph operator by operator while JAX traces it.

Values are of two kinds: numpy arrays, known while tracing (small constants, shapes, and whatever follows from them),
and traced arrays. An operator whose inputs are all numpy is computed at once, so shape arithmetic never reaches XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from bricolage.errors import UnsupportedOperator
from bricolage.lowering.common import (
    SCALAR_LIMIT,
    Array,
    Attributes,
    Dtype,
    OperatorLowering,
    attributes_of,
    constant_node_value,
    opset_for,
    subgraphs_of,
    to_host,
    widen_constant,
)
from bricolage.lowering.jax import static
from bricolage.lowering.jax.arrays import JaxArrays
from bricolage.lowering.jax.pooling import REGISTRY

Env = dict[ir.Value, Array]


def is_static_array(value: Array) -> bool:
    return value is None or isinstance(value, np.ndarray)


def as_tuple(result: Array, convert: Callable[[Array], Array] = lambda r: r) -> tuple[Array, ...]:
    return tuple(convert(r) for r in (result if isinstance(result, (tuple, list)) else (result,)))


class Interpreter:
    """One model's interpreter; it holds no values, so that one instance serves every trace."""

    def __init__(self, imports: dict[str, int], float_dtype: Dtype = None) -> None:
        self.imports = imports
        self.xp = JaxArrays(float_dtype)
        self.static = static.StaticArrays()

    def refuse(self, node: ir.Node, reason: str) -> UnsupportedOperator:
        return UnsupportedOperator(
            library="JAX", op_type=node.op_type, opset=opset_for(node, self.imports), reason=reason
        )

    def run(self, nodes: Sequence[ir.Node] | ir.Graph, env: Env) -> None:
        for node in nodes:
            results = self.node(node, env)
            for value, item in zip(node.outputs, results, strict=False):
                env[value] = item

    def read(self, value: ir.Value | None, env: Env) -> Array:
        if value is None:
            return None
        if value not in env and value.const_value is not None:
            env[value] = widen_constant(value.const_value.numpy())
        return env[value]

    def node(self, node: ir.Node, env: Env) -> tuple[Array, ...]:
        if node.op_type == "Constant" and not node.domain:
            return (constant_node_value(node),)
        inputs = [self.read(v, env) for v in node.inputs]
        if subgraphs_of(node):
            return self.control(node, inputs, env)
        if not node.domain and node.op_type == "Shape":
            options = attributes_of(node)
            return (np.asarray(np.shape(inputs[0])[options.get("start", 0) : options.get("end")], np.int64),)
        if not node.domain and node.op_type == "Size":
            return (np.asarray(np.size(inputs[0]), np.int64),)
        domain = "" if node.domain == "ai.onnx" else node.domain
        entry = REGISTRY.find(domain, node.op_type, opset_for(node, self.imports))
        if entry is None:
            raise self.refuse(node, "it is not known")
        words = attributes_of(node)
        if "_outputs" in entry.internal:
            words["_outputs"] = len(node.outputs)
        if "_types" in entry.internal:
            words["_types"] = tuple(int(v.dtype) if v is not None and v.dtype else None for v in node.inputs)
        if all(is_static_array(x) for x in inputs) and not self.is_large(node, inputs):
            if not domain and node.op_type in static.OPERATORS:
                host_inputs = [
                    None if x is None else to_host(x) if entry.is_host(i) else x for i, x in enumerate(inputs)
                ]
                return as_tuple(entry.function(self.static, *host_inputs, **words), np.asarray)
            with jax.ensure_compile_time_eval():
                return tuple(np.asarray(r) for r in self.apply(entry, node, inputs, words))
        return self.apply(entry, node, inputs, words)

    def is_large(self, node: ir.Node, inputs: list[Array]) -> bool:
        """Whether computing now could make a large literal out of small constants."""
        if node.op_type in ("ConstantOfShape", "Expand", "Tile", "Range"):
            numbers = [x for x in inputs if x is not None]
            return any(float(np.prod(np.abs(x.astype(np.float64)))) > 1 << 16 for x in numbers if x.dtype.kind in "iu")
        return bool(sum(x.size for x in inputs if x is not None) > 1 << 16)

    def argument(self, entry: OperatorLowering, node: ir.Node, index: int, value: Array) -> Array:
        if value is None:
            return None
        if not entry.is_host(index):
            return self.xp.given(value)
        if not isinstance(value, np.ndarray):
            raise self.refuse(node, f"input '{entry.input_name(index)}' must be known when the model is compiled")
        return to_host(value)

    def apply(
        self, entry: OperatorLowering, node: ir.Node, inputs: list[Array], words: Attributes
    ) -> tuple[Array, ...]:
        arguments = [self.argument(entry, node, i, x) for i, x in enumerate(inputs)]
        return as_tuple(entry.function(self.xp, *arguments, **words))

    # --- control flow

    def body(self, graph: ir.Graph, arguments: Sequence[Array], env: Env) -> tuple[Array, ...]:
        inner = env | dict(zip(graph.inputs, arguments, strict=True))
        self.run(graph, inner)
        return tuple(self.read(v, inner) for v in graph.outputs)

    def control(self, node: ir.Node, inputs: list[Array], env: Env) -> tuple[Array, ...]:
        bodies = subgraphs_of(node)
        if node.op_type == "If":
            if isinstance(inputs[0], np.ndarray):
                return self.body(bodies["then_branch" if bool(inputs[0].reshape(())) else "else_branch"], (), env)

            def branch(name: str) -> Array:
                return lambda: tuple(jnp.asarray(r) for r in self.body(bodies[name], (), env))

            return tuple(lax.cond(inputs[0].reshape(()), branch("then_branch"), branch("else_branch")))
        if node.op_type == "Scan":
            return self.scan(node, inputs, bodies["body"], env)
        return self.loop(node, inputs, bodies["body"], env)

    def loop(self, node: ir.Node, inputs: list[Array], graph: ir.Graph, env: Env) -> tuple[Array, ...]:
        """Loop with a static trip count, unrolled for as long as its condition is static."""
        trips, going, state = inputs[0], inputs[1], list(inputs[2:])
        if not is_static_array(trips) or not is_static_array(going):
            raise self.refuse(node, "the number of rounds must be known when the model is compiled")
        limit = None if trips is None else int(trips.reshape(()))
        running = True if going is None else bool(going.reshape(()))
        collected: list[list[Array]] = [[] for _ in range(len(node.outputs) - len(state))]
        i = 0
        while running and (limit is None or i < limit):
            results = self.body(graph, (np.asarray(i, np.int64), np.asarray(True), *state), env)
            if not isinstance(results[0], np.ndarray):
                raise self.refuse(node, "its condition depends on data")
            running = bool(results[0].reshape(()))
            state = list(results[1 : 1 + len(state)])
            for store, item in zip(collected, results[1 + len(state) :], strict=True):
                store.append(item)
            i += 1
        return (*state, *[jnp.stack(items) if items else jnp.zeros((0,)) for items in collected])

    def scan(self, node: ir.Node, inputs: list[Array], graph: ir.Graph, env: Env) -> tuple[Array, ...]:
        options = attributes_of(node)
        count = options["num_scan_inputs"]
        split = len(inputs) - count
        axes = options.get("scan_input_axes", (0,) * count)
        backwards = options.get("scan_input_directions", (0,) * count)
        columns = []
        for x, axis, reverse in zip(inputs[split:], axes, backwards, strict=True):
            moved = jnp.moveaxis(jnp.asarray(x), axis, 0)
            columns.append(jnp.flip(moved, 0) if reverse else moved)
        state = tuple(jnp.asarray(x) for x in inputs[:split])

        def step(carry: Array, slices: Array) -> tuple[Array, Array]:
            results = tuple(jnp.asarray(r) for r in self.body(graph, (*carry, *slices), env))
            return results[:split], results[split:]

        final, produced = lax.scan(step, state, tuple(columns))
        out_axes = options.get("scan_output_axes", (0,) * len(produced))
        out_back = options.get("scan_output_directions", (0,) * len(produced))
        stacked = [
            jnp.moveaxis(jnp.flip(y, 0) if reverse else y, 0, axis)
            for y, axis, reverse in zip(produced, out_axes, out_back, strict=True)
        ]
        return (*final, *stacked)


def is_program(value: np.ndarray) -> bool:
    """Whether a constant is part of the program (and stays numpy) rather than data handed to it."""
    return value.size <= SCALAR_LIMIT
