"""Types and shapes behind operators of `com.microsoft`, of which the onnx package infers none.

A forward pass over the graph: of these operators by the rules below, of ONNX's own by the onnx package, one operator at a time.
What the operators compute is in docs/ContribOperators.md of microsoft/onnxruntime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx_ir as ir

_LOG = logging.getLogger(__name__)
_DOMAIN = "com.microsoft"
_OLDER = frozenset({"SimplifiedLayerNormalization"})
"""In ONNX's own domain, and yet ONNX Runtime's alone."""

Size = int | ir.SymbolicDim | None
Tensor = tuple[ir.DataType | None, Sequence[Size] | None]
"""Type and sizes, None where they are not known."""
Rule = Callable[[ir.Node], Sequence[Tensor]]
_UNKNOWN: Tensor = (None, None)

_FIRST = """
    BiasAdd BiasGelu BiasSoftmax FastGelu Gelu GroupNorm Inverse QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QuickGelu
    RotaryEmbedding ScaledSiLU Trilu
"""
"""Of the type and shape of their first input."""
_ALIKE: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "DequantizeLinear": ("DequantizeLinear", (0, 1)),
    "FusedConv": ("Conv", (0, 1, 2)),
    "FusedGemm": ("Gemm", (0, 1, 2)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearConv": ("QLinearConv", (0, 1, 2, 3, 4, 5, 6, 7, 8)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearWhere": ("Where", (0, 1, 4)),
    "QuantizeLinear": ("QuantizeLinear", (0, 1, 2)),
}
"""Those of ONNX's operators that have the same shape of these inputs, and attributes of the same names."""
_POOLS = frozenset(["QLinearAveragePool", "QLinearGlobalAveragePool"])
"""Of which ONNX's have floats alone."""
_UNLIKE = frozenset(["activation", "activation_alpha", "activation_beta", "activation_gamma", "activation_params"])
_RULES: dict[str, Rule] = {}


def contributes(model: ir.Model) -> bool:
    """Whether the main graph has an operator of ONNX Runtime's."""
    return any(_is_contributed(node) for node in model.graph)


def infer_behind(model: ir.Model) -> bool:
    """Writes types and shapes of values that have none, in place; whether there were any. Bodies of control flow stay as they
    are."""
    opsets = [onnx.OperatorSetIdProto(domain=name, version=at) for name, at in model.graph.opset_imports.items()]
    changed = False
    for node in model.graph:
        if all(_is_known(value) for value in node.outputs if value.name):
            continue
        tensors = (
            _infer_contributed(node, opsets) if _is_contributed(node) else _by_onnx(node, node.op_type, None, opsets)
        )
        for value, (dtype, sizes) in zip(node.outputs, tensors, strict=False):
            if value.dtype is None and dtype is not None and value.type is None:
                value.type = ir.TensorType(dtype)
                changed = True
            if value.shape is None and sizes is not None:
                value.shape = ir.Shape(list(sizes))
                changed = True
    return changed


def _is_contributed(node: ir.Node) -> bool:
    return node.domain == _DOMAIN or (node.op_type in _OLDER and not node.domain)


def _is_known(value: ir.Value) -> bool:
    return value.type is not None and value.shape is not None


def _infer_contributed(node: ir.Node, opsets: Sequence[onnx.OperatorSetIdProto]) -> Sequence[Tensor]:
    if node.op_type in _ALIKE:
        op_type, inputs = _ALIKE[node.op_type]
        return _by_onnx(node, op_type, inputs, opsets)
    rule = _RULES.get(node.op_type)
    if rule is None or not node.inputs:
        return ()
    try:
        return rule(node)
    except (
        ArithmeticError,
        IndexError,
        TypeError,
        ValueError,
    ) as error:  # a rank or a size that the rule needs is not known, or makes no sense
        _LOG.debug("no shape behind %s: %s", node.name, error)
        return ()


def _by_onnx(
    node: ir.Node, op_type: str, inputs: Sequence[int] | None, opsets: Sequence[onnx.OperatorSetIdProto]
) -> Sequence[Tensor]:
    """What the onnx package infers of one operator, written as `op_type` with some of its inputs."""
    if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
        return ()
    version = next((opset.version for opset in opsets if opset.domain in ("", "ai.onnx")), 1)
    domain = "" if inputs is not None else node.domain
    if domain not in ("", "ai.onnx"):
        return ()
    proto = ir.serde.serialize_node(node)
    proto.op_type, proto.domain = op_type, ""
    if inputs is not None:
        names = list(proto.input)
        del proto.input[:]
        proto.input.extend(names[i] for i in inputs if i < len(names))
        kept = [
            attribute
            for attribute in proto.attribute
            if attribute.name not in _UNLIKE and attribute.name != "channels_last"
        ]
        del proto.attribute[:]
        proto.attribute.extend(kept)
    given = [value for value in node.inputs if value is not None and value.name in proto.input]
    if not all(value.type is not None for value in given):
        return ()
    constants = {
        value.name: ir.to_proto(value.const_value)
        for value in given
        if value.const_value is not None and value.const_value.size <= 64 and not value.is_graph_input()
    }
    try:
        schema = onnx.defs.get_schema(op_type, version, "")
        types = {value.name: ir.to_proto(value).type for value in given}
        last = bool(node.attributes.get_int("channels_last", 0))
        for value in given[:1]:
            tensor = types[value.name].tensor_type
            if last:
                sizes = list(tensor.shape.dim)
                _write(tensor.shape, [sizes[0], sizes[-1], *sizes[1:-1]])
            if node.op_type in _POOLS:
                tensor.elem_type = onnx.TensorProto.FLOAT
        node_outputs = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, constants, opset_imports=list(opsets)
        )
    except (
        Exception
    ) as error:  # the package raises several kinds, and what is wrong is said where operators are checked
        _LOG.debug("no shape behind %s: %s", node.name, error)
        return ()
    results = [_tensor(node_outputs[name]) if name in node_outputs else _UNKNOWN for name in proto.output]
    if node.op_type in _POOLS:
        results = [(_dtype(node.inputs[0]), sizes) for _, sizes in results]
    if last:
        results = [(dtype, [sizes[0], *sizes[2:], sizes[1]] if sizes else None) for dtype, sizes in results]
    return results


def _write(shape: onnx.TensorShapeProto, sizes: Sequence[onnx.TensorShapeProto.Dimension]) -> None:
    copies = [onnx.TensorShapeProto.Dimension.FromString(size.SerializeToString()) for size in sizes]
    del shape.dim[:]
    shape.dim.extend(copies)


def _tensor(found: onnx.TypeProto) -> Tensor:
    if not found.HasField("tensor_type"):
        return _UNKNOWN
    tensor = found.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, [_size(dimension) for dimension in tensor.shape.dim]


def _size(found: onnx.TensorShapeProto.Dimension) -> Size:
    if found.HasField("dim_value"):
        return int(found.dim_value)
    return ir.SymbolicDim(found.dim_param) if found.dim_param else None


# --- the rules --------------------------------------------------------------------------------------------------------


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _at(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _sizes(value: ir.Value | None) -> list[Size]:
    """Raises ValueError where even the rank is not known."""
    if value is not None and value.shape is not None:
        return list(value.shape)
    if value is not None and value.const_value is not None:
        return [int(size) for size in value.const_value.shape.numpy()]
    raise ValueError("a shape is not known")


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    if value is None:
        return None
    return value.dtype or (value.const_value.dtype if value.const_value is not None else None)


def _like(value: ir.Value | None) -> Tensor:
    return _dtype(value), _sizes(value)


def _plus(*sizes: Size) -> Size:
    return sum(size for size in sizes if isinstance(size, int)) if all(isinstance(s, int) for s in sizes) else None


@_rule(*_FIRST.split())
def _first(node: ir.Node) -> Sequence[Tensor]:
    return [_like(node.inputs[0])]


@_rule("BiasSplitGelu")
def _half(node: ir.Node) -> Sequence[Tensor]:
    *outer, last = _sizes(node.inputs[0])
    return [(_dtype(node.inputs[0]), [*outer, last // 2 if isinstance(last, int) else None])]


@_rule("SimplifiedLayerNormalization")
def _infer_simplified_norm(node: ir.Node) -> Sequence[Tensor]:
    return [_like(node.inputs[0]), _UNKNOWN]


@_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip(node: ir.Node) -> Sequence[Tensor]:
    whole = _like(node.inputs[0])
    *outer, _ = _sizes(node.inputs[0])
    return [whole, (ir.DataType.FLOAT, [*outer, 1]), (ir.DataType.FLOAT, [*outer, 1]), whole]


@_rule("EmbedLayerNormalization")
def _infer_embedding(node: ir.Node) -> Sequence[Tensor]:
    batch, length = _sizes(node.inputs[0])
    whole = _dtype(_at(node, 2)), [batch, length, _sizes(_at(node, 2))[1]]
    return [whole, (ir.DataType.INT32, [batch]), whole]


@_rule("NhwcConv")
def _nhwc(node: ir.Node) -> Sequence[Tensor]:
    rank = len(_sizes(node.inputs[0]))
    return [(_dtype(node.inputs[0]), [_sizes(node.inputs[0])[0], *[None] * (rank - 2), _sizes(_at(node, 1))[0]])]


def _product(a: list[Size], b: list[Size]) -> list[Size]:
    """The shape of a matrix product."""
    if len(a) < 2 or len(b) < 2:
        raise ValueError("vectors are not handled")
    outer: list[Size] = []
    rank = max(len(a), len(b))
    for left, right in zip([1] * (rank - len(a)) + a[:-2], [1] * (rank - len(b)) + b[:-2], strict=True):
        outer.append(right if left == 1 else left)
    return [*outer, a[-2], b[-1]]


@_rule("FusedMatMul", "TransposeMatMul")
def _matmul(node: ir.Node) -> Sequence[Tensor]:
    operands = []
    for position, side in enumerate("AB"):
        sizes = _sizes(_at(node, position))
        if node.attributes.get_int(f"transBatch{side}", 0):
            sizes = [*sizes[1:-1], sizes[0], sizes[-1]]
        operands.append([*sizes[:-2], sizes[-1], sizes[-2]] if node.attributes.get_int(f"trans{side}", 0) else sizes)
    return [(_dtype(node.inputs[0]), _product(*operands))]


@_rule("MatMulNBits")
def _few_bits(node: ir.Node) -> Sequence[Tensor]:
    return [(_dtype(node.inputs[0]), [*_sizes(node.inputs[0])[:-1], node.attributes["N"].as_int()])]


@_rule("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
def _float_product(node: ir.Node) -> Sequence[Tensor]:
    return [(_dtype(_at(node, 2)), _product(_sizes(node.inputs[0]), _sizes(_at(node, 1))))]


@_rule("QGemm")
def _qgemm(node: ir.Node) -> Sequence[Tensor]:
    a, b = _sizes(node.inputs[0]), _sizes(_at(node, 3))
    rows = a[1 if node.attributes.get_int("transA", 0) else 0]
    columns = b[0 if node.attributes.get_int("transB", 0) else 1]
    zero = _at(node, 8)
    return [(_dtype(zero) if zero is not None else ir.DataType.FLOAT, [rows, columns])]


@_rule("QLinearConcat")
def _infer_concatenation(node: ir.Node) -> Sequence[Tensor]:
    parts = [_sizes(node.inputs[i]) for i in range(2, len(node.inputs), 3)]
    axis = node.attributes["axis"].as_int() % len(parts[0])
    total = _plus(*(part[axis] for part in parts))
    return [(_dtype(node.inputs[2]), [*parts[0][:axis], total, *parts[0][axis + 1 :]])]


@_rule("Attention", "QAttention")
def _attention(node: ir.Node) -> Sequence[Tensor]:
    batch, length, _ = _sizes(node.inputs[0])
    dtype = _dtype(node.inputs[0] if node.op_type == "Attention" else _at(node, 3))
    widths = node.attributes.get_ints("qkv_hidden_sizes", ())
    total, heads = _sizes(_at(node, 1))[1], node.attributes["num_heads"].as_int()
    value = widths[2] if widths else total // 3 if isinstance(total, int) else None
    past = _at(node, 4 if node.op_type == "Attention" else 8)
    before: Size = _sizes(past)[3] if past is not None else 0
    size = value // heads if isinstance(value, int) else None
    return [(dtype, [batch, length, value]), (dtype, [2, batch, heads, _plus(before, length), size])]


@_rule("MultiHeadAttention")
def _multi_head(node: ir.Node) -> Sequence[Tensor]:
    heads, dtype = node.attributes["num_heads"].as_int(), _dtype(node.inputs[0])
    query, key, value = (_sizes(v) if v is not None else [] for v in (_at(node, 0), _at(node, 1), _at(node, 2)))
    if len(query) == 5:
        query, key, value = (
            [*query[:2], _times(heads, query[4])],
            [*query[:2], 0],
            [*query[:2], _times(heads, query[4])],
        )
    elif len(key) == 5:
        value = [*key[:2], _times(heads, key[4])]
    if len(value) == 4:
        value = [value[0], value[2], _times(heads, value[3])]
    width, keys = value[2], value[1]
    past = _at(node, 6)
    total = _plus(_sizes(past)[2] if past is not None else 0, keys)
    sizes = [width // heads if isinstance(width, int) else None for width in (query[2], value[2])]
    present = [(dtype, [query[0], heads, total, size]) for size in sizes]
    return [(dtype, [*query[:2], width]), *present, (dtype, [query[0], heads, query[1], total])]


def _times(count: int, size: Size) -> Size:
    return count * size if isinstance(size, int) else None


@_rule("GroupQueryAttention")
def _infer_grouped_attention(node: ir.Node) -> Sequence[Tensor]:
    """How long the cache is in the end depends on the value of an input."""
    batch, length, width = _sizes(node.inputs[0])
    heads, groups = (node.attributes[name].as_int() for name in ("num_heads", "kv_num_heads"))
    dtype, packed = _dtype(node.inputs[0]), _at(node, 1) is None
    size = width // (heads + 2 * groups if packed else heads) if isinstance(width, int) else None
    whole, total, past = _times(heads, size), _at(node, 6), _at(node, 3)
    capacity: Size = None
    if total is not None and total.const_value is not None and not total.is_graph_input():
        held = _sizes(past)[2] if past is not None else 0
        capacity = max(int(total.const_value.numpy().reshape(-1)[0]), held) if isinstance(held, int) else None
    cache = (dtype, [batch, groups, capacity, size])
    return [(dtype, [batch, length, whole]), cache, cache]


@_rule("DynamicQuantizeLSTM")
def _recurrent(node: ir.Node) -> Sequence[Tensor]:
    length, batch, _ = _sizes(node.inputs[0])
    dtype, hidden = _dtype(node.inputs[0]), node.attributes["hidden_size"].as_int()
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    last = (dtype, [directions, batch, hidden])
    return [(dtype, [length, directions, batch, hidden]), last, last]


@_rule("CDist")
def _distances(node: ir.Node) -> Sequence[Tensor]:
    return [(_dtype(node.inputs[0]), [_sizes(node.inputs[0])[0], _sizes(_at(node, 1))[0]])]


@_rule("GatherBlockQuantized")
def _infer_block_gather(node: ir.Node) -> Sequence[Tensor]:
    sizes = _sizes(node.inputs[0])
    axis = node.attributes.get_int("gather_axis", 0) % len(sizes)
    if _dtype(node.inputs[0]) == ir.DataType.UINT8 and isinstance(sizes[-1], int):
        sizes[-1] *= 8 // node.attributes.get_int("bits", 4)
    return [(_dtype(_at(node, 2)), [*sizes[:axis], *_sizes(_at(node, 1)), *sizes[axis + 1 :]])]
