"""What tells uses of an operator apart in a capability table: version class, type key, form, and features."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx
import onnx_ir as ir

from bricolage.backends.interface import OperatorKind
from bricolage.graph.operator_kinds import operator_types

RUNTIME = " runtime"
"""Suffix of a type key: parameters (see `PARAMETERS`) are values of the run, not constants."""

PARAMETERS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Split", "TopK", "CumSum", "Trilu"), (1,)),
    **dict.fromkeys(("OneHot", "CenterCropPad", "SplitToSequence", "AffineGrid", "PRelu", "IsInf"), (1,)),
    **dict.fromkeys(("Clip", "Dropout", "Col2Im", "DFT", "GroupNormalization", "InstanceNormalization"), (1, 2)),
    **dict.fromkeys(
        ("LayerNormalization", "Conv", "ConvTranspose", "Gemm", "QuantizeLinear", "DequantizeLinear"), (1, 2)
    ),
    **dict.fromkeys(operator_types("recurrent"), (1, 2, 3)),
    **dict.fromkeys(("ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    "RMSNormalization": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Range": (0, 1, 2),
    "BatchNormalization": (1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "STFT": (1, 2, 3),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "ConvInteger": (1, 2, 3),
    "MatMulInteger": (1, 2, 3),
    "QLinearConv": (1, 2, 3, 4, 5, 6, 7, 8),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "DeformConv": (1, 3),
    **dict.fromkeys(operator_types("reduction"), (1,)),
}
"""Positions of the inputs that models almost always give as constants: shapes, axes, bounds, weights. Many engines need
them at compile time, so a case is tried with constants and with run-time values, and the two are told apart."""


@cache
def version_class(domain: str, op_type: str, opset: int) -> int | None:
    """The opset that introduced the definition of an operator in force at `opset`; None for unknown operators."""
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def operator_type_key(node: ir.Node) -> str:
    """Name of an operator type in the table."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def type_key(node: ir.Node) -> str:
    """Element type of the main (first) input, followed by `>` and that of the first output where it is another."""
    first = next((_type_name(value) for value in node.inputs if value is not None), None)
    result = next((_type_name(value) for value in node.outputs if value.name), "none")
    return result if first is None or first == result else f"{first}>{result}"


def _type_name(value: ir.Value) -> str:
    if isinstance(value.type, ir.SequenceType):
        return "sequence"
    if isinstance(value.type, ir.OptionalType):
        return "optional"
    dtype = value.dtype or (value.const_value.dtype if value.const_value is not None else None)
    if dtype is None:
        return "unknown"
    return "string" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def operator_kind(node: ir.Node, opset: int) -> OperatorKind | None:
    """What outcomes are filed under; None for operators that ONNX does not define."""
    version = version_class(node.domain, node.op_type, opset)
    if version is None:
        return None
    return operator_type_key(node), str(version), type_key(node) + (RUNTIME if is_runtime(node) else "")


def is_runtime(node: ir.Node) -> bool:
    """Whether a parameter of the operator (see `PARAMETERS`) is not a constant."""
    positions = PARAMETERS.get(node.op_type, ()) if not node.domain else ()
    given = [node.inputs[i] for i in positions if i < len(node.inputs)]
    return any(value is not None and value.const_value is None for value in given)


def operator_features(node: ir.Node, opset: int) -> frozenset[str]:
    """What tells two uses of one operator apart, coarsely: attributes (with their defaults), which inputs and outputs
    are there, types of other inputs where they differ from the main one's, rank and emptiness of that, whether dimensions
    shrink or grow, whether constant scalars are zero. Lists count as zeros, ones or other."""
    features = {
        "inputs=" + "".join("0" if value is None else "1" for value in node.inputs).rstrip("0"),
        "outputs=" + "".join("1" if value.name else "0" for value in node.outputs).rstrip("0"),
    }
    first = next((value for value in node.inputs if value is not None), None)
    if first is not None and first.shape is not None:
        features.add(f"rank={len(first.shape)}")
        if any(dimension == 0 for dimension in first.shape):
            features.add("empty")
        features.update(_growth(first, node.outputs[0]))
    for position, value in enumerate(node.inputs):
        constant = value.const_value if value is not None else None
        if position and first is not None and value is not None and _type_name(value) != _type_name(first):
            features.add(f"type{position}={_type_name(value)}")
        if constant is not None and constant.size == 1 and constant.dtype != ir.DataType.STRING:
            features.add(f"input{position}={'nonzero' if constant.numpy().item() else 'zero'}")
    values = {**_defaults(node.domain, node.op_type, opset)}
    values.update((name, attribute.value) for name, attribute in node.attributes.items())
    features.update(f"{name}={_short(value)}" for name, value in values.items())
    return frozenset(features)


def _growth(before: ir.Value, after: ir.Value) -> set[str]:
    if before.shape is None or after.shape is None or len(before.shape) != len(after.shape):
        return set()
    pairs = [
        (b, a) for b, a in zip(before.shape, after.shape, strict=True) if isinstance(b, int) and isinstance(a, int)
    ]
    return {"shrinks" if a < b else "grows" for b, a in pairs if a != b}


@cache
def _defaults(domain: str, op_type: str, opset: int) -> Mapping[str, object]:
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }


def _short(value: object) -> str:
    match value:
        case bytes():
            return value.decode(errors="replace")
        case str() | int():
            return str(value)
        case float():
            return "number"
        case list() | tuple() if value and all(isinstance(item, int) for item in value):
            return "zeros" if not any(value) else "ones" if all(item == 1 for item in value) else "other"
        case _:
            return "given"
