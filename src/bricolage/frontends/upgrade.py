"""Upgrading operators of the default domain, to opset 18 or on to a later one, on `onnx_ir` itself.

Working on the IR rather than through a serialised model means that weights are never copied, control-flow bodies are
upgraded like everything else, and names stay. An operator whose definition changed without a rule here changed
compatibly: new attributes with the old behaviour as default, or more types. A test reads this off the schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

TARGET = 18
"""The opset that older models are brought to: axes are inputs everywhere from here on."""


class NotUpgradable(Exception):
    """No faithful translation; the model keeps its opset."""


@dataclass(frozen=True)
class Adapter:
    """Rewrites one operator from the opset before `to` to opset `to`, in place."""

    to: int
    apply: Callable[[ir.Node], None]


RULES: dict[str, list[Adapter]] = {}
"""Rules by operator type, in ascending order of opset."""


def upgrade(model: ir.Model, target: int = TARGET) -> bool:
    """Brings the default domain of `model` to at least `target`, in place. False if it is there already.

    Raises:
        NotUpgradable: one of its operators has no faithful translation; the model is as it was.
    """
    version = model.graph.opset_imports.get("")
    if version is None or version >= target:
        return False
    trial = model.clone()  # shares the weights
    upgrade_nodes(list(_all_nodes(trial.graph)), version, target)
    upgrade_nodes(list(_all_nodes(model.graph)), version, target)
    model.graph.opset_imports[""] = target
    return True


def upgrade_nodes(nodes: Iterable[ir.Node], version: int, target: int) -> None:
    """Upgrades nodes from opset `version` to `target`, in place.

    Raises:
        NotUpgradable: some node has no faithful translation.
    """
    for node in nodes:
        if node.domain:
            continue
        at = version
        while True:  # a rule may change the type (Upsample becomes Resize), so its later rules are looked up anew
            rule = next((r for r in RULES.get(node.op_type, ()) if at < r.to <= target), None)
            if rule is None:
                break
            rule.apply(node)
            at = rule.to


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from ir.traversal.RecursiveGraphIterator(graph)


def _rule(to: int, *types: str) -> Callable[[Callable[[ir.Node], None]], Callable[[ir.Node], None]]:
    def register(apply: Callable[[ir.Node], None]) -> Callable[[ir.Node], None]:
        for op_type in types:
            RULES.setdefault(op_type, []).append(Adapter(to, apply))
            RULES[op_type].sort(key=lambda rule: rule.to)
        return apply

    return register


# --- small edits ------------------------------------------------------------------------------------------------


def _pop(node: ir.Node, name: str) -> object:
    attribute = node.attributes.pop(name, None)
    return None if attribute is None else attribute.value


def _before(node: ir.Node, new: ir.Node) -> ir.Value:
    assert node.graph is not None
    node.graph.insert_before(node, new)
    return new.outputs[0]


def _constant(node: ir.Node, suffix: str, array: np.ndarray) -> ir.Value:
    """A Constant in front of `node` (not an initializer: a control-flow body keeps its own)."""
    name = f"{node.outputs[0].name}.{suffix}"
    tensor = ir.tensor(array, name=name)
    value = _before(node, ir.node("Constant", [], {"value": tensor}))
    value.name, value.shape, value.dtype = name, ir.Shape(array.shape), tensor.dtype
    return value


def _set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    while len(node.inputs) <= index:
        node.resize_inputs(len(node.inputs) + 1)
    node.replace_input_with(index, value)


def _integers(node: ir.Node, attribute: str, index: int, *, name: str = "") -> None:
    """Moves an integer-list attribute to input `index`, as int64."""
    listed = _pop(node, attribute)
    if listed is not None:
        _set_input(node, index, _constant(node, name or attribute, np.atleast_1d(np.asarray(listed, np.int64))))


def _read_constant(value: ir.Value | None) -> np.ndarray | None:
    """The value of an initializer or of a Constant node."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        return producer.attributes["value"].as_tensor().numpy()
    return None


def _numpy_type(node: ir.Node) -> np.dtype:
    first = node.inputs[0]
    dtype = first.dtype if first is not None else None
    dtype = dtype or (node.outputs[0].dtype if node.outputs else None)
    if dtype is None:
        raise NotUpgradable(f"the element type of {node.op_type} '{node.name}' is unknown")
    return np.dtype(dtype.numpy())


def _is_used(node: ir.Node, index: int) -> bool:
    if index >= len(node.outputs):
        return False
    value = node.outputs[index]
    return bool(value.uses()) or value.is_graph_output()


# --- opset 7 ----------------------------------------------------------------------------------------------------


_BROADCAST_7 = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")


@_rule(7, *_BROADCAST_7)
def _broadcast_7(node: ir.Node) -> None:
    """Before opset 7 the second operand is broadcast only where `broadcast` says so, and its dimensions lie from `axis` on; without
    `axis` they are the last ones, as they always are later."""
    allowed, axis = _pop(node, "broadcast"), _pop(node, "axis")
    if allowed and axis is not None:
        _from_axis(node, int(axis))  # type: ignore[call-overload]


@_rule(7, "PRelu")
def _prelu_7(node: ir.Node) -> None:
    """Before opset 7 a list of slopes is one for each channel, the second dimension."""
    slope = node.inputs[1]
    if slope is None or slope.shape is None or any(not isinstance(size, int) for size in slope.shape):
        raise NotUpgradable(f"the shape of the slopes of PRelu '{node.name}' is unknown")
    if len(slope.shape) == 1 and slope.shape[0] != 1:
        _from_axis(node, 1)


def _from_axis(node: ir.Node, axis: int) -> None:
    """Dimensions of one behind those of the second input, so that they lie from `axis` of the first on."""
    first, second = node.inputs[:2]
    if first is None or second is None or first.shape is None or second.shape is None:
        raise NotUpgradable(f"the ranks of what {node.op_type} '{node.name}' broadcasts are unknown")
    rank = len(first.shape)
    behind = rank - (axis + rank if axis < 0 else axis) - len(second.shape)
    sizes = list(second.shape)
    if behind < 0 or not all(isinstance(size, int) for size in sizes):
        raise NotUpgradable(f"the shapes of what {node.op_type} '{node.name}' broadcasts do not fit or are unknown")
    if behind:
        shape = _constant(node, "broadcast", np.asarray([*sizes, *[1] * behind], np.int64))
        spread = _before(node, ir.node("Reshape", [second, shape]))
        spread.name = f"{node.outputs[0].name}.spread"
        node.replace_input_with(1, spread)


@_rule(7, "BatchNormalization", "Dropout")
def _inference_7(node: ir.Node) -> None:
    if not _pop(node, "is_test"):
        raise NotUpgradable(f"{node.op_type} '{node.name}' is in training mode")


@_rule(7, "Gemm")
def _gemm_7(node: ir.Node) -> None:
    _pop(node, "broadcast")


@_rule(7, "LSTM", "GRU", "RNN")
def _recurrent_7(node: ir.Node) -> None:
    _pop(node, "output_sequence")


@_rule(7, "Upsample")
def _upsample_7(node: ir.Node) -> None:
    scales = [1.0, 1.0, *(float(_pop(node, name)) for name in ("height_scale", "width_scale"))]  # type: ignore[arg-type]
    node.attributes["scales"] = ir.AttrFloat32s("scales", scales)


# --- opset 9 and 10 ---------------------------------------------------------------------------------------------


@_rule(9, "BatchNormalization")
def _batch_normalization_9(node: ir.Node) -> None:
    if _pop(node, "spatial") == 0:
        raise NotUpgradable("BatchNormalization with spatial=0 has no successor")


@_rule(9, "Scan")
def _scan_9(node: ir.Node) -> None:
    raise NotUpgradable(f"Scan '{node.name}' of opset 8 has a batch dimension that later versions lack")


@_rule(9, "Upsample")
def _upsample_9(node: ir.Node) -> None:
    scales = _pop(node, "scales")
    _set_input(node, 1, _constant(node, "scales", np.asarray(scales, np.float32)))


@_rule(10, "Upsample")
def _upsample_10(node: ir.Node) -> None:
    node.op_type = "Resize"


@_rule(10, "Slice")
def _slice_10(node: ir.Node) -> None:
    for index, attribute in enumerate(("starts", "ends", "axes"), start=1):
        _integers(node, attribute, index)


@_rule(10, "TopK")
def _topk_10(node: ir.Node) -> None:
    _integers(node, "k", 1)


@_rule(10, "Dropout")
def _dropout_10(node: ir.Node) -> None:
    if _is_used(node, 1):
        raise NotUpgradable(f"Dropout '{node.name}' gives a mask of floats, which later versions do not")
    node.resize_outputs(1)


# --- opset 11 and 12 --------------------------------------------------------------------------------------------


@_rule(11, "Clip")
def _clip_11(node: ir.Node) -> None:
    for index, attribute in enumerate(("min", "max"), start=1):
        limit = _pop(node, attribute)
        if limit is not None:
            _set_input(node, index, _constant(node, attribute, np.asarray(limit, _numpy_type(node))))


@_rule(11, "Pad")
def _pad_11(node: ir.Node) -> None:
    _integers(node, "pads", 1)
    value = _pop(node, "value")
    if value is not None:
        _set_input(node, 2, _constant(node, "value", np.asarray(value, _numpy_type(node))))


@_rule(11, "Resize")
def _resize_11(node: ir.Node) -> None:
    """Before opset 11, pixels are asymmetric; nearest rounds down when enlarging and up when reducing."""
    scales = _read_constant(node.inputs[1])
    mode = node.attributes.get_string("mode", "nearest")
    if mode == "nearest":
        if scales is None or (scales.min() < 1 < scales.max()):
            raise NotUpgradable(f"the rounding of Resize '{node.name}' depends on scales that are not known")
        node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if scales.min() < 1 else "floor")
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    _set_input(node, 2, node.inputs[1])
    node.replace_input_with(1, None)


@_rule(11, "Scatter")
def _scatter_11(node: ir.Node) -> None:
    node.op_type = "ScatterElements"


@_rule(12, "Dropout")
def _dropout_12(node: ir.Node) -> None:
    ratio = _pop(node, "ratio")
    if ratio is not None:
        _set_input(node, 1, _constant(node, "ratio", np.asarray(ratio, np.float32)))


# --- opset 13 ---------------------------------------------------------------------------------------------------


@_rule(13, "Resize")
def _resize_13(node: ir.Node) -> None:
    """Absent inputs were empty tensors; later versions want exactly one of scales and sizes."""
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        node.replace_input_with(2, None)
    if node.attributes.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize":
        node.replace_input_with(1, None)


@_rule(13, "Squeeze", "Unsqueeze", "ReduceSum")
def _axes_13(node: ir.Node) -> None:
    _integers(node, "axes", 1)


@_rule(13, "Split")
def _split_13(node: ir.Node) -> None:
    _integers(node, "split", 1)


@_rule(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax_13(node: ir.Node) -> None:
    """Before opset 13 the input was taken as a matrix, split at `axis`; all later dimensions were normalised as one."""
    axis = node.attributes.get_int("axis", 1)
    node.attributes["axis"] = ir.AttrInt64("axis", -1)
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None and node.graph is not None
    if source.shape is not None:
        rank = len(source.shape)
        axis += rank if axis < 0 else 0
        if axis == rank - 1:
            return
        if all(size == 1 for size in source.shape[axis + 1 :]):
            node.attributes["axis"] = ir.AttrInt64("axis", axis)
            return
    shape = _before(node, ir.node("Shape", [source]))
    flat = _before(node, ir.node("Flatten", [source], {"axis": axis}))
    shape.name, flat.name = f"{result.name}.shape", f"{result.name}.flat"
    node.replace_input_with(0, flat)
    back = ir.node("Reshape", [result, shape])
    # `result` keeps its name and its readers: the Reshape takes over its place.
    restored = back.outputs[0]
    restored.type, restored.shape = result.type, result.shape
    node.graph.insert_after(node, back)
    ir.convenience.replace_all_uses_with([result], [restored], replace_graph_outputs=True)
    back.replace_input_with(0, result)
    restored.name, result.name, result.shape = result.name, f"{result.name}.matrix", None


# --- opset 14 to 18 ---------------------------------------------------------------------------------------------


@_rule(14, "BatchNormalization")
def _batch_normalization_14(node: ir.Node) -> None:
    if any(_is_used(node, index) for index in range(1, len(node.outputs))):
        raise NotUpgradable(f"BatchNormalization '{node.name}' is in training mode")
    node.resize_outputs(1)


@_rule(16, "RoiAlign")
def _roi_align_16(node: ir.Node) -> None:
    node.attributes["coordinate_transformation_mode"] = ir.AttrString(
        "coordinate_transformation_mode", "output_half_pixel"
    )


_REDUCTIONS_18 = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
    *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
)


@_rule(18, *_REDUCTIONS_18)
def _axes_18(node: ir.Node) -> None:
    _integers(node, "axes", 1)


@_rule(18, "Split")
def _split_18(node: ir.Node) -> None:
    if len(node.inputs) < 2 or node.inputs[1] is None:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


# --- after opset 18 ---------------------------------------------------------------------------------------------


@_rule(20, "GridSample")
def _grid_sample_20(node: ir.Node) -> None:
    mode = node.attributes.get_string("mode", "bilinear")
    renamed = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    node.attributes["mode"] = ir.AttrString("mode", renamed)


@_rule(20, "DFT")
def _dft_20(node: ir.Node) -> None:
    axis = _pop(node, "axis")
    _set_input(node, 2, _constant(node, "axis", np.asarray(1 if axis is None else axis, np.int64)))
