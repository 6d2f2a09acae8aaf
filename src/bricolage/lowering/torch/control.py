"""If, Loop and Scan: subgraphs become modules of their own, run by small Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir
import torch
from torch import fx

from bricolage.lowering.common import Attributes, subgraphs_of
from bricolage.lowering.torch.fx_builder import Builder
from bricolage.lowering.torch.known_values import AbsentInput, Const, DeviceTensor, Emitted, Known

Lower = Callable[[Builder, ir.Node], None]
"""Lowers one node of a subgraph; its outputs become known to the builder."""
Tensors: TypeAlias = tuple[torch.Tensor, ...]
Body: TypeAlias = Callable[..., Tensors]
"""A subgraph as a module: its inputs, then the values that it captures."""


def run_if(
    condition: torch.Tensor,
    yes: Body,
    no: Body,
    captured_yes: Sequence[torch.Tensor],
    captured_no: Sequence[torch.Tensor],
) -> Tensors:
    """ONNX If: one of two bodies, each with the values that it captures."""
    return yes(*captured_yes) if bool(condition) else no(*captured_no)


def run_loop(
    trips: torch.Tensor | None,
    condition: torch.Tensor | None,
    body: Body,
    state: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    scanned: Sequence[tuple[tuple[int, ...], torch.dtype]],
) -> Tensors:
    """ONNX Loop: `body(i, condition, *state)` while the condition holds and fewer than `trips` rounds have run. `scanned`: sizes
    and type of each scan output in a round, for a loop of none."""
    limit = None if trips is None else int(trips)
    going = True if condition is None else bool(condition)
    values = list(state)
    collected: list[list[torch.Tensor]] = [[] for _ in scanned]
    i = 0
    while going and (limit is None or i < limit):
        results = body(torch.tensor(i, dtype=torch.int64), torch.tensor(going), *values, *captured)
        going = bool(results[0])
        values = list(results[1 : 1 + len(values)])
        for store, item in zip(collected, results[1 + len(values) :], strict=True):
            store.append(item)
        i += 1
    stacked = [
        torch.stack(items) if items else torch.empty((0, *sizes), dtype=dtype)
        for items, (sizes, dtype) in zip(collected, scanned, strict=True)
    ]
    return (*values, *stacked)


def _round(builder: Builder, value: ir.Value) -> tuple[tuple[int, ...], torch.dtype]:
    """Sizes and type of a scan output in one round, as far as the body states them; 0 and float32 where it does not."""
    sizes = tuple(size if isinstance(size, int) else 0 for size in value.shape or ())
    return sizes, builder.xp.dtype(int(value.dtype or ir.DataType.FLOAT))


def run_scan(
    body: Body,
    state: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    options: dict[str, tuple[int, ...]],
) -> Tensors:
    """ONNX Scan (opset 9 on): `body(*state, *slices)` for each position of the scanned axes."""
    axes = options["input_axes"]
    columns = [
        x.flip(axis).unbind(axis) if backwards else x.unbind(axis)
        for x, axis, backwards in zip(inputs, axes, options["input_directions"], strict=True)
    ]
    values = list(state)
    collected: list[list[torch.Tensor]] = [[] for _ in options["output_axes"]]
    for slices in zip(*columns, strict=True):
        results = body(*values, *slices, *captured)
        values = list(results[: len(values)])
        for store, item in zip(collected, results[len(values) :], strict=True):
            store.append(item)
    stacked = [
        torch.stack(items[::-1] if backwards else items, axis)
        for items, axis, backwards in zip(collected, options["output_axes"], options["output_directions"], strict=True)
    ]
    return (*values, *stacked)


def captured_values(graph: ir.Graph) -> list[ir.Value]:
    """Values of enclosing graphs that this graph or its subgraphs use, in the order of first use."""
    inside: set[ir.Value] = set(graph.inputs) | set(graph.initializers.values())
    captured: dict[ir.Value, None] = {}

    def use(value: ir.Value | None) -> None:
        if value is not None and value not in inside:
            captured[value] = None

    for node in graph:
        for value in node.inputs:
            use(value)
        for inner in subgraphs_of(node).values():
            for value in captured_values(inner):
                use(value)
        inside.update(node.outputs)
    for value in graph.outputs:
        use(value)
    return list(captured)


def _submodule(builder: Builder, graph: ir.Graph, lower: Lower) -> tuple[fx.Node, tuple[fx.Node | None, ...]]:
    """The subgraph as a module in the graph, and the nodes of the values that it captures."""
    captured = [v for v in captured_values(graph) if not _constant(builder, v)]
    constants: dict[ir.Value, Known] = {v: builder.known(v) for v in captured_values(graph) if _constant(builder, v)}
    root = torch.nn.Module()
    inner = Builder(builder.imports, builder.xp, root, outer=constants)
    for i, value in enumerate([*graph.inputs, *captured]):
        inner.env[value] = DeviceTensor(inner.graph.placeholder(f"x{i}"))
    for node in graph:
        lower(inner, node)
    inner.output(graph.outputs)
    module = inner.finish()
    name = f"body{len(list(builder.root.children()))}"
    builder.root.add_module(name, module)
    return builder.graph.get_attr(name), tuple(builder.tensor(builder.known(v)) for v in captured)


def _constant(builder: Builder, value: ir.Value) -> bool:
    return isinstance(builder.known(value), Const)


def lower_control(
    builder: Builder, node: ir.Node, inputs: list[Known], attributes: Attributes, lower: Lower
) -> Emitted:
    """The results of an If, Loop or Scan; nodes of its subgraphs are lowered by `lower`.

    Raises:
        UnsupportedOperator: a node with subgraphs that is none of them, or Scan as it was in opset 8.
    """
    bodies = subgraphs_of(node)
    if node.op_type == "If":
        return _lower_if(builder, node, inputs[0], bodies, lower)
    if node.op_type == "Loop":
        body, captured = _submodule(builder, bodies["body"], lower)
        tensors = [builder.tensor(k) for k in inputs]
        trips, condition, state = tensors[0], tensors[1], tensors[2:]
        scanned = tuple(_round(builder, value) for value in bodies["body"].outputs[1 + len(state) :])
        arguments = (trips, condition, body, tuple(state), captured, scanned)
        return builder.unpacked(builder.call(run_loop, arguments), node)
    if node.op_type == "Scan":
        return _lower_scan(builder, node, inputs, bodies["body"], attributes, lower)
    raise builder.refuse(node, "its subgraph has no lowering")


def _lower_if(builder: Builder, node: ir.Node, condition: Known, bodies: dict[str, ir.Graph], lower: Lower) -> Emitted:
    if isinstance(condition, Const):
        graph = bodies["then_branch" if bool(condition.tensor) else "else_branch"]
        for inner in graph:
            lower(builder, inner)
        return tuple(builder.known(v) for v in graph.outputs)
    yes, captured_yes = _submodule(builder, bodies["then_branch"], lower)
    no, captured_no = _submodule(builder, bodies["else_branch"], lower)
    arguments = (builder.tensor(condition), yes, no, captured_yes, captured_no)
    return builder.unpacked(builder.call(run_if, arguments), node)


def _lower_scan(
    builder: Builder, node: ir.Node, inputs: list[Known], graph: ir.Graph, attributes: Attributes, lower: Lower
) -> Emitted:
    count = attributes["num_scan_inputs"]
    if any(isinstance(k, AbsentInput) for k in inputs):
        raise builder.refuse(node, "Scan of opset 8 (with sequence lengths) has no lowering")
    body, captured = _submodule(builder, graph, lower)
    tensors = [builder.tensor(k) for k in inputs]
    state, scanned = tensors[: len(tensors) - count], tensors[len(tensors) - count :]
    produced = len(node.outputs) - len(state)
    options = {
        "input_axes": attributes.get("scan_input_axes", (0,) * count),
        "input_directions": attributes.get("scan_input_directions", (0,) * count),
        "output_axes": attributes.get("scan_output_axes", (0,) * produced),
        "output_directions": attributes.get("scan_output_directions", (0,) * produced),
    }
    arguments = (body, tuple(state), tuple(scanned), captured, options)
    return builder.unpacked(builder.call(run_scan, arguments), node)
