"""Lengths that shape inference leaves open: of tables that are cut to the length of a sequence.

A model adds the first s of n learnt positions to s embeddings. Inference cannot say how many those are, min(n, s), and so not how
many rows the sum has, nor anything behind it. They are s: for s > n the model does not run, unless n is 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from bricolage.device.tensor_form import Dimension
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import describe

_BROADCASTING = ("Add", "And", "Div", "Equal", "Max", "Min", "Mul", "Or", "Sub", "Where")
_ONE_ELEMENT = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that hand one number on, whatever its shape."""
_INVENTED = "unk__"
"""How names begin that inference gives to dimensions it does not know."""


def settle(model: ir.Model) -> bool:
    """Names dimensions that follow from lengths of inputs, in place; whether there were any. Operators behind them are to be
    inferred again."""
    cut: dict[str, str] = {}
    renames: dict[str, str] = {}
    for node in model.graph:
        if node.domain or not node.outputs:
            continue
        if node.op_type == "Slice":
            _take_cuts(node, cut)
        elif node.op_type in _BROADCASTING:
            renames.update(_broadcast(node, renames, cut))
    if renames:
        for graph in model.graphs():
            for node in graph:
                for value in node.outputs:
                    _rename(value, renames)
    return bool(renames)


def _take_cuts(node: ir.Node, cut: dict[str, str]) -> None:
    """Remembers which dimensions of a Slice are the first of known ones, and writes down those that it leaves alone."""
    before, after = describe(node.inputs[0]).shape if node.inputs[0] else None, describe(node.outputs[0]).shape
    starts, axes, steps = (_numbers(node, index) for index in (1, 3, 4))
    if before is None or after is None or starts is None or axes is None or len(axes) != 1 or len(before) != len(after):
        return
    axis, length = axes[0] % len(before), _length(node.inputs[2])
    name = after[axis]
    if starts != [0] or steps not in (None, [1]) or length is None or not isinstance(before[axis], int):
        return
    if isinstance(name, str) and name.startswith(_INVENTED):
        cut[name] = length
        node.outputs[0].shape = ir.Shape([name if i == axis else size for i, size in enumerate(before)])


def _broadcast(node: ir.Node, found: dict[str, str], cut: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Names of dimensions of a result, with the length that they are."""
    shapes = [describe(value).shape if value is not None else None for value in node.inputs]
    output_shape = describe(node.outputs[0]).shape
    if output_shape is None or any(shape is None for shape in shapes):
        return
    for back, name in enumerate(reversed(output_shape), 1):
        if not isinstance(name, str) or not name.startswith(_INVENTED):
            continue
        sizes: set[Dimension] = {shape[-back] for shape in shapes if shape is not None and len(shape) >= back} - {1}
        settled = {found.get(size, size) if isinstance(size, str) else size for size in sizes}
        lengths = {cut.get(size, size) if isinstance(size, str) else size for size in settled}
        length = next(iter(lengths), None)
        named = isinstance(length, str) and length != "?" and not length.startswith(_INVENTED)
        if len(lengths) == 1 and isinstance(length, str) and named and length in settled:
            yield name, length


def _length(value: ir.Value | None) -> str | None:
    """The symbolic dimension that a value of one element is."""
    while value is not None and (node := value.producer()) is not None:
        if node.domain or not node.inputs or node.inputs[0] is None:
            return None
        if node.op_type in _ONE_ELEMENT:
            value = node.inputs[0]
            continue
        source, index = node, 0
        if node.op_type == "Gather":
            chosen, producer = _numbers(node, 1), node.inputs[0].producer()
            if chosen is None or len(chosen) != 1 or producer is None:
                return None
            source, index = producer, chosen[0]
        if source.op_type != "Shape" or source.domain or not source.inputs or source.inputs[0] is None:
            return None
        shape = describe(source.inputs[0]).shape
        part = (shape or ())[source.attributes.get_int("start", 0) : source.attributes.get_int("end", None)]
        if source is node and len(part) != 1:
            return None
        name = part[index] if -len(part) <= index < len(part) else None
        return name if isinstance(name, str) and name != "?" else None
    return None


def _numbers(node: ir.Node, index: int) -> list[int] | None:
    """The constant integers of an input; None where it is absent or computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    array = constant_elements(value) if value is not None else None
    return None if array is None else [int(number) for number in array.reshape(-1)]


def _rename(value: ir.Value, names: dict[str, str]) -> None:
    shape = value.shape
    if shape is not None:
        sizes = [size if isinstance(size, int) else size.value for size in shape]
        if any(isinstance(size, str) and size in names for size in sizes):
            value.shape = ir.Shape([names.get(size, size) if isinstance(size, str) else size for size in sizes])
