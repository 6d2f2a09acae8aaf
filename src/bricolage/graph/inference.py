"""Where the shape inference of the onnx package is wrong, and how it is made to be right: the one place that corrects it.

Onnx infers from a graph whose operators are, for the time being, written in another form whose shapes it gets right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from bricolage.graph.extents import is_explicit, pairs, pool_size

_GROUPED, _ALIKE = "GroupNormalization", "InstanceNormalization"
"""onnx 1.23 infers no shape of the first where another operator reads it; of the second it does, and that is its input's, too."""
_POOLS = frozenset(["MaxPool", "AveragePool", "LpPool"])
_RIGHT_SINCE = 22
"""The opset from which on onnx leaves out a pool's last window where that would lie in the padding alone. Runtimes do for all."""


@contextmanager
def inferable(model: ir.Model) -> Iterator[None]:
    """Within it, operators have a form of which onnx infers the right shapes; what they compute may differ."""
    nodes = list(model.graph.all_nodes())
    grouped = [node for node in nodes if node.op_type == _GROUPED and not node.domain]
    pools = [(node, dict(node.attributes), found) for node in _ceiled(model, nodes) if (found := _counts(node))]
    try:
        for node in grouped:
            node.op_type = _ALIKE
        for node, _, counts in pools:
            _write_floored(node, counts)
        yield
    finally:
        for node in grouped:
            node.op_type = _GROUPED
        for node, attributes, _ in pools:
            node.attributes.clear()
            node.attributes.update(attributes)


def forget_wrong(model: ir.Model) -> bool:
    """Drops inferred shapes that are wrong, and all that rest on them, in place; whether there were any."""
    wrong = [
        node
        for node in _ceiled(model, model.graph.all_nodes())
        if (counts := _counts(node)) and _differ(node.outputs[0], counts)
    ]
    if wrong:
        _forget(model, wrong)
    return bool(wrong)


def _ceiled(model: ir.Model, nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    if model.graph.opset_imports.get("", _RIGHT_SINCE) < _RIGHT_SINCE:
        for node in nodes:
            if node.op_type in _POOLS and not node.domain and bool(node.attributes.get_int("ceil_mode", False)):
                yield node


def _counts(node: ir.Node) -> list[int] | None:
    """Windows along each spatial axis; None where a size is not known, or the attributes make no sense."""
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    kernel = node.attributes.get_ints("kernel_shape", ())
    sizes = list(shape)[2:] if shape is not None else []
    strides, dilations, pads, auto_pad = _geometry(node, len(kernel))
    fits = 0 < len(kernel) == len(sizes) == len(strides) == len(dilations) and len(pads) in (0, 2 * len(kernel))
    if not fits or min(*strides, *dilations, *kernel) < 1 or not is_explicit(auto_pad):
        return None
    around = pairs(pads, len(kernel)) if auto_pad != "VALID" else pairs(None, len(kernel))
    counts: list[int] = []
    for i, size in enumerate(sizes):
        if not isinstance(size, int):
            return None
        counts.append(pool_size(size, kernel[i], strides[i], dilations[i], around[i], ceil=True))
    return counts if min(counts) > 0 else None


def _geometry(node: ir.Node, dims: int) -> tuple[list[int], list[int], list[int], str]:
    """Strides, dilations, pads and their rule."""
    ones = [1] * dims
    attributes = node.attributes
    strides, dilations = (list(attributes.get_ints(name, ())) or ones for name in ("strides", "dilations"))
    return strides, dilations, list(attributes.get_ints("pads", ())), attributes.get_string("auto_pad", "NOTSET")


def _write_floored(node: ir.Node, counts: list[int]) -> None:
    """The same number of windows without the ceiling, by as much padding at the end as they take."""
    kernel, shape = node.attributes.get_ints("kernel_shape", ()), node.inputs[0].shape  # type: ignore[union-attr]
    strides, dilations, pads, auto_pad = _geometry(node, len(kernel))
    begins, ends = [], []
    for i, (begin, end) in enumerate(pairs(pads if auto_pad != "VALID" else None, len(kernel))):
        size = shape[2 + i]  # type: ignore[index]
        assert isinstance(size, int)
        reach = (counts[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
        begins.append(begin)
        ends.append(max(end, reach - size - begin))
    node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
    node.attributes["auto_pad"] = ir.AttrString("auto_pad", "NOTSET")
    node.attributes["pads"] = ir.AttrInt64s("pads", [*begins, *ends])


def _differ(value: ir.Value, counts: list[int]) -> bool:
    shape = list(value.shape) if value.shape is not None else []
    return len(shape) == len(counts) + 2 and any(
        isinstance(found, int) and found != count for found, count in zip(shape[2:], counts, strict=True)
    )


def _forget(model: ir.Model, nodes: Iterable[ir.Node]) -> None:
    """Drops the shapes of all that depends on these nodes, also through bodies of control flow."""
    around = {body: node for node in model.graph.all_nodes() for body in _bodies(node)}
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


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()
