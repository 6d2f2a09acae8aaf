"""What a model takes and returns: as files say it, and in a form that no pass can change by accident.

ONNX lets an input have a default (it is an initializer, too), and lets a model return one of its inputs, a weight, or one value
twice. Inside, an input with a default is an input like any other, so that nothing computes with its default as if it were a weight;
and every output is computed by an operator of its own, an Identity where need be, under a name of its own. The graph remembers the
rest, and its clones do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

_KEY = "bricolage.interface"
_OVERRIDABLE_SINCE = 4
"""IR version from which on an initializer need not be an input: one that is, is a default. Before, all weights are inputs."""


@dataclass(frozen=True)
class Interface:
    """What the form inside does not show."""

    defaults: Mapping[str, ir.TensorProtocol] = field(default_factory=dict)
    """By the names of inputs that a caller may leave out."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs, in order; two may be one."""


def interface(model: ir.Model) -> Interface:
    """Of a model in the form inside."""
    stored: Interface | None = model.graph.meta.get(_KEY)
    return stored if stored is not None else Interface({}, tuple(value.name or "" for value in model.graph.outputs))


def read_written_model(path: Path) -> ir.Model:
    """A model that was written in the form of files."""
    model = ir.load(path)
    internalise(model)
    return model


def internalise(model: ir.Model) -> None:
    """Brings a model from the form of files into the one inside, in place."""
    for graph in model.graphs():
        if graph is not model.graph or model.ir_version < _OVERRIDABLE_SINCE:
            _drop_constant_inputs(graph)
    defaults = {value.name or "": _take_default(model.graph, value) for value in _overridable(model.graph)}
    names = tuple(value.name or "" for value in model.graph.outputs)
    if give_own_outputs(model) or defaults:
        model.graph.meta[_KEY] = Interface(defaults, names)


def externalise_model(model: ir.Model, like: ir.Model | None = None) -> ir.Model:
    """A copy in the form of files, with the interface of `like` where it was made of that model. Weights are shared."""
    declared, copy = interface(like or model), model.clone()
    graph = copy.graph
    for index, (value, name) in enumerate(zip(list(graph.outputs), declared.outputs, strict=True)):
        if value.name == name:
            continue
        producer = value.producer()
        source = producer.inputs[0] if producer is not None and producer.op_type == "Identity" else None
        if source is not None and source.name == name:
            graph.outputs[index] = source
            if not value.uses() and not value.is_graph_output():
                assert producer is not None
                graph.remove(producer, safe=True)
        else:
            _rename(copy, value, name)
    for value in graph.inputs:
        tensor = declared.defaults.get(value.name or "")
        if tensor is not None:
            value.const_value = tensor
            graph.register_initializer(value)
    graph.meta.pop(_KEY, None)
    return copy


def give_defaults(model: ir.Model, tensors: Mapping[str, ir.TensorProtocol]) -> None:
    """Gives inputs of a model these defaults, in place. Symbolic dimensions that they have are of the defaults' sizes, for all
    inputs and outputs."""
    sizes: dict[str, int] = {}
    for value in model.graph.inputs:
        tensor = tensors.get(value.name or "")
        if tensor is not None:
            given = tensor.shape.numpy()
            for dimension, size in zip(value.shape or (), given, strict=False):
                if isinstance(dimension, ir.SymbolicDim) and dimension.value:
                    sizes[str(dimension.value)] = size
            value.shape = ir.Shape(given)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and sizes:
            value.shape = ir.Shape(
                [
                    dimension if isinstance(dimension, int) else sizes.get(str(dimension.value), dimension)
                    for dimension in value.shape
                ]
            )
    declared = interface(model)
    model.graph.meta[_KEY] = Interface({**declared.defaults, **tensors}, declared.outputs)


def settle_defaults(model: ir.Model, given: Mapping[str, Sequence[int]], only: Collection[str] | None = None) -> None:
    """Makes weights of the defaults, or of these `only`, in place, but of inputs in `given`: these have the shapes that stand
    there."""
    declared = interface(model)
    for value in list(model.graph.inputs):
        name = value.name or ""
        if only is not None and name not in only:
            continue
        if name in given and name in declared.defaults:
            value.shape = ir.Shape(list(given[name]))
        elif name in declared.defaults:
            tensor = declared.defaults[name]
            model.graph.inputs.remove(value)
            value.const_value, value.type, value.shape = (
                tensor,
                ir.TensorType(tensor.dtype),
                ir.Shape(tensor.shape.numpy()),
            )
            model.graph.register_initializer(value)
    if declared.defaults:
        left = {} if only is None else {name: tensor for name, tensor in declared.defaults.items() if name not in only}
        model.graph.meta[_KEY] = Interface(left, declared.outputs)


def _overridable(graph: ir.Graph) -> list[ir.Value]:
    return [value for value in graph.inputs if value.name in graph.initializers]


def _take_default(graph: ir.Graph, value: ir.Value) -> ir.TensorProtocol:
    """Takes the default from an input."""
    del graph.initializers[value.name or ""]
    tensor, value.const_value = value.const_value, None
    assert tensor is not None
    value.type = value.type or ir.TensorType(tensor.dtype)
    value.shape = value.shape if value.shape is not None else ir.Shape(tensor.shape.numpy())
    return tensor


def _drop_constant_inputs(graph: ir.Graph) -> None:
    kept = [value for value in graph.inputs if value.name not in graph.initializers]
    if len(kept) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(kept)


def give_own_outputs(model: ir.Model) -> bool:
    """Gives an operator of its own to each output that has none, in place; whether there were any."""
    graph, seen = model.graph, set[ir.Value]()
    changed = False
    for index, value in enumerate(list(graph.outputs)):
        if value in seen or value.producer() is None:
            node = ir.node("Identity", [value], name=f"{value.name}.returned.{index}")
            (returned,) = node.outputs
            returned.name, returned.type, returned.shape = (
                _fresh(model, f"{value.name}_returned"),
                value.type,
                value.shape,
            )
            graph.append(node)
            graph.outputs[index] = value = returned
            changed = True
        seen.add(value)
    return changed


def _rename(model: ir.Model, value: ir.Value, name: str) -> None:
    """Gives an output the name that it has outside, and a fresh one to the value that has it now."""
    graph = model.graph
    for other in (*graph.initializers.values(), *(result for node in graph.all_nodes() for result in node.outputs)):
        if other.name == name and other is not value:
            other.name = _fresh(model, name)
    value.name = name


def _fresh(model: ir.Model, wanted: str) -> str:
    """`wanted`, or with a number behind it, whatever no value of the model is called."""
    taken = {
        value.name
        for graph in model.graphs()
        for value in (
            *graph.inputs,
            *graph.initializers.values(),
            *(result for node in graph for result in node.outputs),
        )
    }
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name
