"""Where the shape inference of the onnx package is wrong, and how it is made to be right: the one place that corrects it.

Onnx infers from a graph whose operators are, for the time being, written in another form whose shapes it gets right. A graph
that is prepared keeps that form where it computes the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from bricolage.graph.contributed_shapes import contributes, infer_behind
from bricolage.graph.extents import is_explicit, pairs, pool_size
from bricolage.graph.graph import bodies
from bricolage.graph.operator_kinds import operator_types

_ALIKE = {
    "GroupNormalization": "LayerNormalization",
    "MeanVarianceNormalization": "Softplus",
    "SimplifiedLayerNormalization": "LayerNormalization",
}
"""Of the first, onnx 1.23 infers no shape where another operator reads them, or does not know them; of the second, which take as
many inputs of the same types, it does, and that is their first input's, too."""
_POOLS = frozenset(operator_types("pool"))
_PROPAGATING, _OF_EQUAL_SHAPE = frozenset(["Add", "Mul", "Sub"]), "Max"
"""Of the first, onnx writes out every element of a result of rank 1, known or not, at more than a microsecond each; not of the
second, which takes the same types and broadcasts alike."""
_LONG = 1 << 16
"""Elements from which on that is not waited for: nothing so long is a shape."""
_REPAIRS = 64
"""Times that shapes are inferred again behind one that was wrong; each time at least one more is right."""
_ENUMERATING, _TOO_LONG = frozenset(["Cast", "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze"]), 1 << 22
"""The other operators of which onnx writes out every element, and how many are not waited for: they are seconds, and 2^31 of them
take more memory than machines have."""
_TYPE_OF = re.compile(r"(\w+) typestr: (\w+), has unsupported type: (\S+)")
_RIGHT_SINCE = 22
"""The opset from which on onnx leaves out a pool's last window where that would lie in the padding alone. Runtimes do for all."""


def infer(model: ir.Model, once: Callable[[ir.Model], object] | None = None) -> None:
    """Changes `model` in place: types and shapes are inferred. What cannot be inferred stays open. A default of which onnx is wrong
    is stated.

    Args:
        model: is written in the form of `inferable` while `once` is at work.
        once: what infers with the onnx package, and writes down what it finds; by default without checks of types.
    """
    once = once or _infer_unchecked
    _write_sides(model)
    for _ in range(_REPAIRS):
        with inferable(model):
            once(model)
        wrong = _forget_wrong(model)
        if not wrong and not (contributes(model) and infer_behind(model)):
            break


def correct_stated(model: ir.Model, once: Callable[[ir.Model], object] | None = None) -> bool:
    """Changes `model` in place: shapes are inferred (`once` as for `infer`) without those that it states of what its operators
    compute. They may be wrong, and inference would believe them. What it contradicts is replaced. True if something that it
    does not find is still believed. In bodies of control flow nothing is: each run of them may have other shapes."""
    computed = (value for node in model.graph for value in node.outputs)
    stated = {value: value.shape for value in computed if value.shape is not None}
    for value in (*stated, *(value for body in model.graph.subgraphs() for node in body for value in node.outputs)):
        value.shape = None
    infer(model, once)
    believed = False
    for value, shape in stated.items():
        inferred = value.shape if value.shape is not None else _of_rank(value)
        value.shape = _merge_shapes(shape, inferred)
        believed = believed or inferred is None or value.shape != inferred
    return believed


def _of_rank(value: ir.Value) -> ir.Shape | None:
    """Of a Reshape to a shape that is computed: onnx leaves open even of how many dimensions."""
    node = value.producer()
    target = node.inputs[1] if node is not None and node.op_type == "Reshape" and len(node.inputs) > 1 else None
    length = target.shape[0] if target is not None and target.shape is not None and len(target.shape) == 1 else None
    return ir.Shape([None] * length) if isinstance(length, int) else None


def _merge_shapes(stated: ir.Shape, found: ir.Shape | None) -> ir.Shape:
    if found is None:
        return stated
    if len(found) != len(stated):
        return found
    pairs = zip(stated, found, strict=True)
    return ir.Shape([new if isinstance(new, int) or _is_unnamed(old) else old for old, new in pairs])


def _is_unnamed(dimension: int | ir.SymbolicDim) -> bool:
    return not isinstance(dimension, int) and dimension.value is None


def _infer_unchecked(model: ir.Model) -> None:
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=propagates(model))(model)


def propagates(model: ir.Model) -> bool:
    """Whether onnx may pass on what it knows of elements (its `data_prop`). Where it may not, shapes that are computed inside the
    model stay open until their parts are folded."""
    behind = _behind(model, model.graph.all_nodes(), _TOO_LONG)
    return not any(node.op_type in _ENUMERATING and not node.domain for node in behind)


@contextmanager
def inferable(model: ir.Model) -> Iterator[None]:
    """Within it, operators have a form of which onnx infers the right shapes; what they compute may differ."""
    nodes = list(model.graph.all_nodes())
    enumerated = [(node, node.op_type) for node in _find_enumerated(model, nodes)]
    opaque = [(node, node.op_type) for node in nodes if node.op_type in _ALIKE and not node.domain]
    pools = [
        (node, dict(node.attributes), found) for node in _find_ceiled_pools(model, nodes) if (found := _axes(node))
    ]
    try:
        for node, op_type in opaque:
            node.op_type = _ALIKE[op_type]
        for node, _, axes in pools:
            _write_floored(node, axes)
        for node, _ in enumerated:
            node.op_type = _OF_EQUAL_SHAPE
        yield
    finally:
        for node, op_type in (*enumerated, *opaque):
            node.op_type = op_type
        for node, attributes, _ in pools:
            node.attributes.clear()
            node.attributes.update(attributes)


def write_inferable(model: ir.Model) -> None:
    """Writes pools, in place, in an equal form of which onnx infers the right shapes, where of theirs it infers others: it would
    take the graph, which has the right ones, for invalid."""
    for node in _find_ceiled_pools(model, list(model.graph.all_nodes())):
        axes = _axes(node)
        if any(axis.is_disputed for axis in axes) and _is_floored_alike(node, axes):
            _write_floored(node, axes)


def _write_sides(model: ir.Model) -> None:
    """States, in place, that transforms which say nothing are of one side: the default, for which onnx 1.23 takes both."""
    for node in model.graph.all_nodes():
        if node.op_type == "STFT" and not node.domain and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)


def _forget_wrong(model: ir.Model) -> bool:
    """Drops inferred shapes that are wrong, and all that rest on them, in place; whether there were any."""
    wrong = [
        node
        for node in _find_ceiled_pools(model, model.graph.all_nodes())
        if (counts := _counts(node)) and _differ(node.outputs[0], counts)
    ]
    if wrong:
        _forget(model, wrong)
    return bool(wrong)


def _find_ceiled_pools(model: ir.Model, nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    if model.graph.opset_imports.get("", _RIGHT_SINCE) < _RIGHT_SINCE:
        for node in nodes:
            if node.op_type in _POOLS and not node.domain and bool(node.attributes.get_int("ceil_mode", False)):
                yield node


def _find_enumerated(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Operators behind long tensors of rank 1 whose elements onnx would write out."""
    return [node for node in _behind(model, nodes, _LONG) if node.op_type in _PROPAGATING and not node.domain]


def _behind(model: ir.Model, nodes: Iterable[ir.Node], length: int) -> set[ir.Node]:
    """Operators that read, through however many others, a tensor of rank 1 that is longer than that."""
    given = [value for graph in model.graphs() for value in (*graph.inputs, *graph.initializers.values())]
    long_results = [
        value for node in nodes for value in node.outputs if _is_long(value, length) or _length(node) > length
    ]
    todo, seen = [*(value for value in given if _is_long(value, length)), *long_results], set[ir.Node]()
    while todo:
        for use in todo.pop().uses():
            if use.node not in seen and use.node.op_type not in ("Shape", "Size"):
                seen.add(use.node)
                todo.extend(use.node.outputs)
    return seen


def _is_long(value: ir.Value, length: int) -> bool:
    shape = value.shape
    return shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] > length


def _length(node: ir.Node) -> float:
    """Of what a Range of constants, or a ConstantOfShape, makes; 0 for anything else."""
    if node.domain or node.op_type not in ("Range", "ConstantOfShape"):
        return 0
    given = [_scalar(value) for value in node.inputs]
    if None in given or len(given) not in (1, 3):
        return 0
    if len(given) == 1:
        return given[0] or 0
    start, limit, delta = (number or 0.0 for number in given)
    return (limit - start) / delta if delta else 0


def _scalar(value: ir.Value | None) -> float | None:
    """The one element of a constant, which may still be an operator."""
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        array = producer.attributes["value"].as_tensor().numpy()
    elif value is not None and value.const_value is not None and producer is None and not value.is_graph_input():
        array = value.const_value.numpy()
    else:
        return None
    return float(array.reshape(-1)[0]) if array.size == 1 else None


@dataclass(frozen=True)
class _PoolAxis:
    """One spatial axis of a pool whose last window may reach beyond the padding."""

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    """Padding before and behind."""

    @property
    def count(self) -> int:
        """Of windows, without one that would lie in the padding alone."""
        return pool_size(self.size, self.kernel, self.stride, self.dilation, (self.begin, self.end), ceil=True)

    @property
    def needed(self) -> int:
        """Padding behind that the last window takes."""
        reach = (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return reach - self.size - self.begin

    @property
    def floored_end(self) -> int:
        """Padding behind that makes as many windows without the ceiling."""
        return max(self.end, self.needed)

    @property
    def is_floored_alike(self) -> bool:
        """Whether it does: not where the padding has room for a window of its own."""
        around = (self.begin, self.floored_end)
        return pool_size(self.size, self.kernel, self.stride, self.dilation, around, ceil=False) == self.count

    @property
    def is_disputed(self) -> bool:
        """Whether onnx counts one window more."""
        span = self.size + self.begin + self.end - ((self.kernel - 1) * self.dilation + 1)
        return -(-span // self.stride) + 1 != self.count


def _counts(node: ir.Node) -> list[int] | None:
    """Windows along each spatial axis; None where a size is not known, or the attributes make no sense."""
    axes = _axes(node)
    return [axis.count for axis in axes] if axes else None


def _axes(node: ir.Node) -> list[_PoolAxis]:
    """Empty as `_counts` is None."""
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    kernel = node.attributes.get_ints("kernel_shape", ())
    sizes = list(shape)[2:] if shape is not None else []
    strides, dilations, pads, auto_pad = _geometry(node, len(kernel))
    fits = 0 < len(kernel) == len(sizes) == len(strides) == len(dilations) and len(pads) in (0, 2 * len(kernel))
    if not fits or min(*strides, *dilations, *kernel) < 1 or not is_explicit(auto_pad):
        return []
    around = pairs(pads, len(kernel)) if auto_pad != "VALID" else pairs(None, len(kernel))
    axes = [
        _PoolAxis(size, kernel[i], strides[i], dilations[i], *around[i])
        for i, size in enumerate(sizes)
        if isinstance(size, int)
    ]
    return axes if len(axes) == len(sizes) and min(axis.count for axis in axes) > 0 else []


def _geometry(node: ir.Node, dims: int) -> tuple[list[int], list[int], list[int], str]:
    """Strides, dilations, pads and their rule."""
    ones = [1] * dims
    attributes = node.attributes
    strides, dilations = (list(attributes.get_ints(name, ())) or ones for name in ("strides", "dilations"))
    return strides, dilations, list(attributes.get_ints("pads", ())), attributes.get_string("auto_pad", "NOTSET")


def _is_floored_alike(node: ir.Node, axes: Sequence[_PoolAxis]) -> bool:
    """Whether the form of `_write_floored` computes the same: an average may count padding, but not what lies beyond it."""
    counts_padding = node.op_type == "AveragePool" and bool(node.attributes.get_int("count_include_pad", 0))
    return all(axis.is_floored_alike and not (counts_padding and axis.needed > axis.end) for axis in axes)


def _write_floored(node: ir.Node, axes: Sequence[_PoolAxis]) -> None:
    """The same number of windows without the ceiling, by as much padding at the end as they take."""
    ends = [axis.floored_end for axis in axes]
    node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
    node.attributes["auto_pad"] = ir.AttrString("auto_pad", "NOTSET")
    node.attributes["pads"] = ir.AttrInt64s("pads", [*(axis.begin for axis in axes), *ends])


def _differ(value: ir.Value, counts: list[int]) -> bool:
    shape = list(value.shape) if value.shape is not None else []
    return len(shape) == len(counts) + 2 and any(
        isinstance(size, int) and size != count for size, count in zip(shape[2:], counts, strict=True)
    )


def _forget(model: ir.Model, nodes: Iterable[ir.Node]) -> None:
    """Drops the shapes of all that depends on these nodes, also through bodies of control flow."""
    around = {body: node for node in model.graph.all_nodes() for body in bodies(node)}
    todo, seen = list(nodes), set[ir.Node]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node.graph, ir.Graph) and node.graph in around:
            todo.append(around[node.graph])
        for value in node.outputs:
            value.shape = None
            todo.extend(use.node for use in value.uses())


def format_complaint(line: str) -> str:
    """What onnx finds wrong, `... (op_type:Softmax, node name: s): [ShapeInferenceError] axis ...`, as a sentence that names the
    operator."""
    before, opening, behind = line.partition("(op_type:")
    where, closed, what = behind.partition("):")
    if not opening or not closed:
        where, what = "", f"{before}{behind}"
    op_type, _, name = where.partition(", node name: ")
    for mark in ("[ShapeInferenceError]", "[TypeInferenceError]"):
        what = what.replace(mark, "")
    what = _TYPE_OF.sub(r"its \1 (of type \2) may not be \3", what.strip().rstrip("."))
    return f"operator '{name or op_type}' ({op_type}): {what}" if op_type else what
