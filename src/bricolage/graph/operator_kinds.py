"""What kind of thing an ONNX operator does: one table of names, of which other tables are queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

OperatorCategory: TypeAlias = Literal[
    "convolution",
    "transposed convolution",
    "product",
    "attention",
    "recurrent",
    "control",
    "normalisation",
    "softmax",
    "function",
    "reduction",
    "pool",
    "comparison",
    "logical",
    "random",
    "view",
    "movement",
    "elementwise",
]

_NAMES: Mapping[OperatorCategory, str] = {
    "convolution": "Conv ConvInteger QLinearConv FusedConv DeformConv",
    "transposed convolution": "ConvTranspose",
    "product": "MatMul Gemm Einsum MatMulInteger QLinearMatMul FusedMatMul FusedGemm MatMulNBits",
    "attention": "Attention",
    "recurrent": "LSTM GRU RNN",
    "control": "If Loop Scan",
    "normalisation": "LayerNormalization SkipLayerNormalization GroupNormalization InstanceNormalization RMSNormalization LRN",
    "softmax": "Softmax LogSoftmax",
    "function": "Exp Log Tanh Sigmoid Erf Gelu FastGelu BiasGelu Pow Mish Swish Softplus Sin Cos",
    "reduction": "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
    "ReduceLogSumExp",
    "pool": "MaxPool AveragePool LpPool",
    "comparison": "Equal Greater Less GreaterOrEqual LessOrEqual",
    "logical": "Not And Or Xor",
    "random": "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial",
    "view": "Reshape Flatten Squeeze Unsqueeze Identity Shape Size",
    "movement": "Transpose Concat Split Slice Gather GatherElements GatherND Expand Tile Pad Cast CastLike DepthToSpace "
    "SpaceToDepth ScatterElements ScatterND Constant ConstantOfShape",
}
_CATEGORY: Mapping[str, OperatorCategory] = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def category(op_type: str) -> OperatorCategory:
    """Of an operator type; "elementwise" for one that the table does not have."""
    entry = _CATEGORY.get(op_type)
    if entry is not None:
        return entry
    if op_type.startswith(("Reduce", "Global", "Arg")):
        return "reduction"
    return "pool" if op_type.endswith("Pool") else "elementwise"


def operator_types(*categories: OperatorCategory) -> tuple[str, ...]:
    """The operator types of some categories, in the order of the table."""
    return tuple(name for kind in categories for name in _NAMES[kind].split())


VIEWS = frozenset(operator_types("view"))
"""Operators that need not even move data."""
MOVEMENT = VIEWS | frozenset(operator_types("movement"))
"""Operators that compute nothing: they only move or rename data."""
CONVOLUTIONS = frozenset(operator_types("convolution", "transposed convolution"))
PRODUCTS = frozenset(operator_types("product", "attention"))
RECURRENT = frozenset(operator_types("recurrent"))
RANDOM = frozenset(operator_types("random")) | {"Dropout"}
"""Operators that may answer differently each time."""
ANCHORS = (CONVOLUTIONS | PRODUCTS | RECURRENT) - {"DeformConv", "Einsum", "FusedConv", "MatMulNBits"}
"""Operators that carry nearly all the work of a model and from which patterns grow; none grows from those left out."""
