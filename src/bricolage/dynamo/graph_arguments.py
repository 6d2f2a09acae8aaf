"""What the arguments of one of Dynamo's graphs are, and the graph as a module of its own that takes its inputs alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bricolage.errors import LeftToPyTorch


@dataclass(frozen=True)
class Arguments:
    """Places of the arguments of a graph."""

    weights: tuple[int, ...]
    """Parameters and buffers of modules, which Dynamo hands over at each call."""
    inputs: tuple[int, ...]
    """Other tensors that the graph reads."""
    sizes: Mapping[int, tuple[int, int]]
    """Numbers that are the size of an input: which, and of which dimension."""
    dynamic: tuple[tuple[int, ...], ...]
    """For each of `inputs`, its dimensions that may change from call to call."""


def arguments_of(module: torch.fx.GraphModule, examples: Sequence[object]) -> Arguments:
    """Reads off what the arguments are.

    Raises:
        LeftToPyTorch: there is one that is neither a tensor in this machine's memory nor the size of one, or no input.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    numbers: dict[str, int] = {}
    weights, inputs, dynamic = list[int](), list[int](), list[tuple[int, ...]]()
    origins: dict[str, tuple[int, int]] = {}
    for place, (node, example) in enumerate(zip(placeholders, examples, strict=True)):
        if isinstance(example, torch.SymInt):
            if node.users:
                numbers[str(example.node.expr)] = place
            continue
        if not isinstance(example, torch.Tensor):
            if node.users:
                raise LeftToPyTorch(reason=f"an argument is of type {type(example).__name__}")
            continue
        _check(example)
        if isinstance(example, torch.nn.Parameter) or getattr(example, "_dynamo_static_input_type", None):
            weights.append(place)
            continue
        changing = [(d, size) for d, size in enumerate(_shape(node, example)) if isinstance(size, torch.SymInt)]
        for dimension, size in changing:
            origins.setdefault(str(size.node.expr), (place, dimension))
        if node.users or any(origins[str(size.node.expr)][0] == place for _, size in changing):
            inputs.append(place)
            dynamic.append(tuple(dimension for dimension, _ in changing))
    alone = [name for name in numbers if name not in origins]
    if alone:
        raise LeftToPyTorch(reason=f"an argument is a number that changes from call to call ({', '.join(alone)})")
    if not inputs:
        raise LeftToPyTorch(reason="it has no inputs")
    sizes = {place: origins[name] for name, place in numbers.items()}
    return Arguments(tuple(weights), tuple(inputs), sizes, tuple(dynamic))


def _shape(node: torch.fx.Node, example: torch.Tensor) -> Sequence[Any]:
    """As Dynamo sees it: with symbols where a size may change."""
    seen = node.meta.get("example_value")
    return tuple(seen.shape if isinstance(seen, torch.Tensor) else example.shape)


def _check(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise LeftToPyTorch(reason=f"a tensor is on the device '{tensor.device}'")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise LeftToPyTorch(reason=f"a tensor is {'quantized' if tensor.is_quantized else tensor.layout}")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise LeftToPyTorch(reason=f"a tensor is of the type {type(tensor).__name__}")


def with_weights(module: torch.fx.GraphModule, places: Arguments, weights: Sequence[torch.Tensor]) -> torch.nn.Module:
    """The graph with its weights in it and sizes read off its inputs, which alone it takes, in their order. Memory of the
    weights is shared; `module` is not changed."""
    graph_module = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    nodes = graph_module.graph.find_nodes(op="placeholder")
    first = next(node for node in graph_module.graph.nodes if node.op != "placeholder")
    for place, tensor in zip(places.weights, weights, strict=True):
        name = f"weight_{place}"
        graph_module.register_buffer(name, tensor.detach())
        with graph_module.graph.inserting_before(first):
            _replace(nodes[place], graph_module.graph.get_attr(name))
    for place, (of, dimension) in places.sizes.items():
        with graph_module.graph.inserting_before(first):
            size = graph_module.graph.call_function(torch.ops.aten.sym_size.int, (nodes[of], dimension))
        _replace(nodes[place], size)
    for place, node in enumerate(nodes):
        if place not in places.inputs and place not in places.weights and place not in places.sizes:
            graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module.eval()


def _replace(old: torch.fx.Node, new: torch.fx.Node) -> None:
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
