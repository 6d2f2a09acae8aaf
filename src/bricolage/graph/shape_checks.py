"""Operators that cannot be computed as they stand, whatever the inputs are: the model's own faults, told before anything runs.

Onnx's strict shape inference finds most of them; what it passes over is looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import onnx
import onnx_ir as ir

from bricolage.errors import InvalidGraph
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import describe
from bricolage.graph.inference import format_complaint, inferable, propagates

_WITHIN_BYTES = 1024  # of constants that inference sees
_NOT_FAULTS = ("instead is null", "existing shape differ", "existing type differ", "must be specified for a Constant")
"""What strict inference says where it lacks a type, where a stated shape is stale, or inside an operator's own definition."""


def check_shapes(model: ir.Model) -> None:
    """Looks at every operator of the main graph; shapes must have been inferred. `model` is not changed.

    Raises:
        InvalidGraph: naming the operator and what is wrong with it.
    """
    for node in model.graph:
        reason = _wrong(node)
        if reason is not None:
            raise InvalidGraph(reason=f"operator '{node.name}' ({node.op_type}): {reason}")
    for line in _faulty_lines(model):
        if line.count("(op_type:") == 1:
            raise InvalidGraph(reason=format_complaint(line))


def faults(model: ir.Model) -> list[str]:
    """What strict inference finds wrong with operators of a model, bodies of control flow included. `model` is not changed."""
    return [format_complaint(line) for line in _faulty_lines(model)]


def _faulty_lines(model: ir.Model) -> list[str]:
    return [line for line in _inference_errors(model) if not any(words in line for words in _NOT_FAULTS)]


def _inference_errors(model: ir.Model) -> Iterator[str]:
    lean = model.clone()  # large constants matter by shape alone, and would not fit into one message beyond 2 GB
    for name, value in list(lean.graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > _WITHIN_BYTES:
            lean.graph.initializers.pop(name)
            value.const_value = None
            lean.graph.inputs.append(value)
    try:
        with inferable(lean):
            onnx.shape_inference.infer_shapes(ir.to_proto(lean), strict_mode=True, data_prop=propagates(lean))
    except onnx.shape_inference.InferenceError as error:
        yield from (line.strip() for line in str(error).splitlines() if "(op_type:" in line)


def _wrong(node: ir.Node) -> str | None:
    check = _CHECKS.get(node.op_type) if not node.domain else None
    return check(node) if check is not None else None


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """A shape that is known in full."""
    if value is None:
        return None
    info = describe(value)
    return info.sizes if info.static else None


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _number(node: ir.Node, name: str, default: int) -> int:
    return int(node.attributes[name].as_int()) if name in node.attributes else default


def _reshape(node: ir.Node) -> str | None:
    source, target = _sizes(_input(node, 0)), _input(node, 1)
    array = constant_elements(target) if target is not None else None
    if source is None or array is None:
        return None
    wanted = [int(size) for size in array.reshape(-1)]
    if not _number(node, "allowzero", 0):
        if any(size == 0 and i >= len(source) for i, size in enumerate(wanted)):
            return f"the shape {wanted} keeps a dimension that {list(source)} does not have"
        wanted = [source[i] if size == 0 else size for i, size in enumerate(wanted)]
    count, stated = math.prod(source), math.prod(size for size in wanted if size != -1)
    if wanted.count(-1) > 1 or any(size < -1 for size in wanted):
        return f"{wanted} is no shape"
    if count != stated if -1 not in wanted else (count % stated if stated else count):
        return f"{list(source)} has {count} elements, which do not fit {wanted}"
    return None


def _gather(node: ir.Node) -> str | None:
    source, indices = _sizes(_input(node, 0)), _input(node, 1)
    array = constant_elements(indices) if indices is not None else None
    axis = _number(node, "axis", 0)
    if source is None or array is None or not array.size or not -len(source) <= axis < len(source):
        return None
    extent = source[axis]
    low, high = int(array.min()), int(array.max())
    if low < -extent or high >= extent:
        return f"the index {high if high >= extent else low} lies outside a dimension of {extent}"
    return None


def _gather_nd(node: ir.Node) -> str | None:
    """Dimensions of a batch are the same in both, and an index has no more places than there are dimensions left."""
    source, indices, batch = _sizes(_input(node, 0)), _sizes(_input(node, 1)), _number(node, "batch_dims", 0)
    if source is None or indices is None or not indices:
        return None
    if source[:batch] != indices[:batch]:
        return f"the first {batch} dimensions of {list(source)} and of the indices {list(indices)} differ"
    if indices[-1] > len(source) - batch:
        return f"indices of {indices[-1]} places for {list(source)}"
    return None


def _scatter_nd(node: ir.Node) -> str | None:
    source, indices, updates = (_sizes(_input(node, place)) for place in range(3))
    if source is None or indices is None or updates is None or not indices:
        return None
    if indices[-1] > len(source):
        return f"indices of {indices[-1]} places for {list(source)}"
    wanted = (*indices[:-1], *source[indices[-1] :])
    return f"updates of {list(updates)} where {list(wanted)} are placed" if updates != wanted else None


def _elements(node: ir.Node) -> str | None:
    """Of GatherElements and ScatterElements: indices reach no further than the data on other axes, and updates are as many."""
    if (reason := _axis(node)) is not None:
        return reason
    source, indices, updates = (_sizes(_input(node, place)) for place in range(3))
    if source is None or indices is None:
        return None
    axis = _number(node, "axis", 0) % max(1, len(source))
    if len(source) != len(indices) or any(
        i > size for at, (i, size) in enumerate(zip(indices, source, strict=True)) if at != axis
    ):
        return f"indices of {list(indices)} for {list(source)}"
    return f"updates of {list(updates)} for indices of {list(indices)}" if updates not in (None, indices) else None


def _compress(node: ir.Node) -> str | None:
    source, condition = _sizes(_input(node, 0)), _sizes(_input(node, 1))
    if source is None or condition is None or len(condition) != 1:
        return None
    size = source[_number(node, "axis", 0)] if "axis" in node.attributes else math.prod(source)
    return f"a condition of {condition[0]} for {size} elements" if condition[0] > size else None


def _lengths(node: ir.Node) -> str | None:
    """Of recurrences and ReverseSequence: one length for each entry of the batch."""
    reverses = node.op_type == "ReverseSequence"
    source, lengths = _sizes(_input(node, 0)), _sizes(_input(node, 1 if reverses else 4))
    axis = _number(node, "batch_axis", 1) if reverses else 1 - _number(node, "layout", 0)
    if source is None or lengths is None or not -len(source) <= axis < len(source):
        return None
    return f"lengths of {list(lengths)} for a batch of {source[axis]}" if lengths != (source[axis],) else None


def _conv(node: ir.Node) -> str | None:
    source, weight = _sizes(_input(node, 0)), _sizes(_input(node, 1))
    group = _number(node, "group", 1)
    if group < 1:
        return f"{group} groups"
    if source is None or weight is None or len(source) < 2 or len(weight) != len(source):
        return None
    transposed = node.op_type == "ConvTranspose"
    channels = weight[0] if transposed else weight[1] * group
    if channels != source[1] or (weight[0] % group if not transposed else channels % group):
        return f"weights of {list(weight)} in {group} groups do not fit the channels of {list(source)}"
    target = _sizes(node.outputs[0])
    if target is not None and min(target) < 1 <= min(source):
        return f"kernels of {list(weight[2:])} are larger than {list(source[2:])} with its padding"
    return None


def _blocks(node: ir.Node) -> str | None:
    source = _sizes(_input(node, 0))
    block = _number(node, "blocksize", 0)
    if block < 1:
        return f"blocks of {block}"
    if source is None or len(source) != 4:
        return None
    to_space = node.op_type == "DepthToSpace"
    uneven = source[1] % block**2 if to_space else source[2] % block or source[3] % block
    return f"{list(source)} cannot be divided into blocks of {block}" if uneven else None


def _axis(node: ir.Node) -> str | None:
    source = _sizes(_input(node, 0))
    axis = _number(node, "axis", 0)
    if source is None or -len(source) <= axis < max(len(source), 1):
        return None
    return f"axis {axis} lies outside a tensor of rank {len(source)}"


def _per_channel(node: ir.Node) -> str | None:
    source = _sizes(_input(node, 0))
    if source is None or len(source) < 2:
        return None
    for index in (1, 2):
        given = _sizes(_input(node, index))
        if given is not None and given != (source[1],):
            return f"a scale or bias of {list(given)} for {source[1]} channels"
    return None


_CHECKS: Mapping[str, Callable[[ir.Node], str | None]] = {
    "Reshape": _reshape,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Compress": _compress,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "ReverseSequence"), _lengths),
    **dict.fromkeys(("GatherElements", "ScatterElements"), _elements),
    "Conv": _conv,
    "ConvTranspose": _conv,
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
    "InstanceNormalization": _per_channel,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "LogSoftmax", "Softmax"), _axis),
}
"""By operator type: why it cannot be computed, or None."""
