"""Single operators by the ONNX reference implementation, in the model's own types or widened to float64."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from bricolage.graph.graph import find_captured
from bricolage.graph.reference_operators import CORRECTED
from bricolage.verify.doubtful import doubt
from bricolage.work.values import ModelValue

_LOG = logging.getLogger(__name__)
_NARROW = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_NARROW_NUMPY = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"})


_IN_OWN_TYPES = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""What rounds to integers is defined in the types that the model states: computed wider, ties would be none."""


def widen(value: ModelValue) -> ModelValue:
    """Floats of 16 and 32 bits as float64, and strings as Python has them, through sequences and maps; everything else as it is."""
    if isinstance(value, list | tuple):
        return [widen(member) for member in value]
    if isinstance(value, dict):
        return {key: widen(member) for key, member in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind == "S":  # onnx_ir's string constants are bytes
            return np.char.decode(array, "utf-8").astype(object)
        return array.astype(np.float64) if array.dtype in _NARROW_NUMPY else array
    return value


def narrow(value: ModelValue, declared: ir.Value) -> ModelValue:
    """A widened value back in the type that the model states."""
    dtype = declared.dtype
    if isinstance(value, list | tuple):
        return [narrow(member, declared) for member in value]
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        with np.errstate(over="ignore"):
            return value.astype(dtype.numpy() if dtype is not None else np.float32)
    return value


def run_operator(
    node: ir.Node, opsets: Mapping[str, int], values: Mapping[str, ModelValue], *, wide: bool
) -> dict[str, ModelValue]:
    """Outputs of one node by name. `values` holds what it reads, also what its control-flow bodies capture.

    With `wide`, the operator computes in float64: its inputs are float64 already, and types and tensors written in its
    attributes are widened too. Where the reference implementation refuses that, its own types are used.

    Raises:
        Exception: whatever the reference implementation raises when it cannot run the operator at all.
    """
    if because := doubt(node):
        raise NotImplementedError(because)
    names = _read_by(node)
    feeds = {name: values[name] for name in names}
    proto = ir.serde.serialize_node(node)
    if proto.op_type == "Loop" and not proto.domain:
        feeds |= _complete_loop(proto)
    if wide and (proto.domain or proto.op_type not in _IN_OWN_TYPES):
        exact = onnx.NodeProto()
        exact.CopyFrom(proto)
        _widen_node(exact)
        try:
            return {name: widen(value) for name, value in _run(exact, opsets, feeds).items()}
        except Exception as error:  # the reference has gaps in float64, each with its own kind of exception
            _LOG.debug("%s has no float64 reference (%s)", node.name, error)
    if wide:
        feeds = {name: narrow(value, names[name]) if name in names else value for name, value in feeds.items()}
    results = _run(proto, opsets, feeds)
    return {name: widen(value) for name, value in results.items()} if wide else results


def _complete_loop(node: onnx.NodeProto) -> dict[str, np.ndarray]:
    """An omitted trip count means forever and an omitted condition true; the reference implementation runs neither."""
    absent: tuple[tuple[str, np.ndarray], ...] = (
        (f"{node.name}.trips", np.asarray(np.iinfo(np.int64).max)),
        (f"{node.name}.condition", np.asarray(True)),
    )
    node.input.extend([""] * (2 - len(node.input)))
    given = {name: value for i, (name, value) in enumerate(absent) if not node.input[i]}
    for i, (name, _) in enumerate(absent):
        node.input[i] = node.input[i] or name
    return given


def _read_by(node: ir.Node) -> dict[str, ir.Value]:
    read = (value for value in (*node.inputs, *find_captured(node)) if value is not None)
    return {value.name: value for value in read if value.name}


def _run(node: onnx.NodeProto, opsets: Mapping[str, int], feeds: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
    names = [name for name in node.output if name]
    untyped = onnx.TypeProto()
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node],
            "operator",
            [onnx.helper.make_value_info(name, untyped) for name in feeds],
            [onnx.helper.make_value_info(name, untyped) for name in names],
        ),
        opset_imports=[
            onnx.helper.make_opsetid(domain, _choose_opset(node, version) if not domain else version)
            for domain, version in opsets.items()
        ],
    )
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model, new_ops=list(CORRECTED)).run(None, dict(feeds))
    return {name: _array(value) for name, value in zip(names, results, strict=True)}


def _choose_opset(node: onnx.NodeProto, opset: int) -> int:
    """The opset in which the onnx package has an operator: for DequantizeLinear none before 19, where it means the same."""
    return max(opset, 19) if node.op_type == "DequantizeLinear" else opset


def _array(value: ModelValue) -> ModelValue:
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        return value.astype(object)  # as strings are everywhere else
    return np.asarray(value) if isinstance(value, np.generic | int | float | bool) else value


# --- widening what is written in a node -------------------------------------------------------------------------


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.type == onnx.AttributeProto.INT and attribute.i in _NARROW:
            attribute.i = onnx.TensorProto.DOUBLE
        elif attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == onnx.AttributeProto.GRAPH:
            _widen_graph(attribute.g)
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(onnx.helper.make_attribute("value", onnx.helper.make_tensor("value", 11, [1], [0.0])))
    if node.op_type == "Constant":
        _widen_constant(node)


def _widen_constant(node: onnx.NodeProto) -> None:
    """`value_float` and `value_floats` are float32 tensors."""
    attribute = node.attribute[0]
    if attribute.name in ("value_float", "value_floats"):
        held = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        tensor = onnx.numpy_helper.from_array(np.asarray(held, np.float64))
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("value", tensor))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        tensor.CopyFrom(onnx.numpy_helper.from_array(widen(onnx.numpy_helper.to_array(tensor)), tensor.name))


def _widen_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.HasField("tensor_type") and info.type.tensor_type.elem_type in _NARROW:
            info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in graph.node:
        _widen_node(node)
