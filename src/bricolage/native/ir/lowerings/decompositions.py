"""Lowerings of operators that are made of others: their definitions are those of `lowering.operators`, carried out on nodes.

Listed are those of which the engine makes good code. Where a kernel of its own computes an operator better (softmax, pooling,
convolutions), it has a lowering of its own.
"""

from __future__ import annotations

import math

from bricolage.errors import InvalidGraph
from bricolage.lowering import operators
from bricolage.lowering.common import PORTABLE, HostValue, refusal, to_host
from bricolage.native.ir.lowerings.arrays import NodeArrays
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, RecurrentBatch, lowering
from bricolage.native.ir.lowerings.reductions import axes_by_shape
from bricolage.native.ir.lowerings.traced import TracedArray
from bricolage.native.ir.tensors import Constant, Node

_ATTENTION = ("RotaryEmbedding", "LinearAttention")
_RECURRENT = ("RNN", "GRU", "LSTM")
_NORMALISATIONS = ("LpNormalization", "MeanVarianceNormalization")
_REDUCTIONS = (
    "ReduceL1",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ArgMax",
    "ArgMin",
    "Hardmax",
    "LogSoftmax",
    "CumSum",
    "CumProd",
    "NegativeLogLikelihoodLoss",
    "SoftmaxCrossEntropyLoss",
)
_TRIGONOMETRY = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan")
_SCATTERING = ("ScatterElements", "TensorScatter", "MaxUnpool")
_SIGNAL = ("HannWindow", "HammingWindow", "BlackmanWindow")
_ACTIVATIONS = ("ThresholdedRelu", "Celu", "Selu", "Softsign", "Mish", "Swish", "SwiGLU", "Shrink")
_ELEMENTWISE = (
    "Sin",
    "Cos",
    "Sign",
    "IsNaN",
    "IsInf",
    "Mod",
    "Mean",
    "Xor",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "BitwiseNot",
    "BitShift",
)
_MOVEMENT = (
    "Tile",
    "SpaceToDepth",
    "CenterCropPad",
    "ReverseSequence",
    "Trilu",
    "EyeLike",
    "Shape",
    "Size",
    "Range",
    "ConstantOfShape",
)
_CHOICE = ("GatherElements", "GatherND", "OneHot", "TopK")
_PRODUCTS = ("Einsum", "Det", "CausalConvWithState")
_POOLING = ("GlobalLpPool",)
_SAMPLING = ("GridSample",)

_REGISTERED = operators
_ARRAYS = NodeArrays()


@lowering(
    *_ATTENTION,
    *_RECURRENT,
    *_NORMALISATIONS,
    *_REDUCTIONS,
    *_ACTIVATIONS,
    *_ELEMENTWISE,
    *_MOVEMENT,
    *_CHOICE,
    *_PRODUCTS,
    *_SAMPLING,
    *_TRIGONOMETRY,
    *_SCATTERING,
    *_SIGNAL,
    *_POOLING,
)
def decompose_operator(op: OpContext) -> tuple[Node, ...]:
    """The function of `lowering.operators`, carried out on nodes.

    Raises:
        NoLowering: there is none for this opset, it needs what nodes lack, or the graph is wrong.
    """
    entry, reason = PORTABLE.find("", op.op_type, op.opset), refusal(PORTABLE, op.node, op.opset)
    if entry is None or reason is not None:
        raise NoLowering(reason or f"no rule for {op.op_type}")
    words = dict(op.attributes)
    if "_outputs" in entry.internal:
        words["_outputs"] = len(op.node.outputs)
    if "_types" in entry.internal:
        words["_types"] = tuple(int(v.dtype) if v is not None and v.dtype else None for v in op.node.inputs)
    if "_batch_parts" in entry.internal:
        words["_batch_parts"] = op.divide_batch(_recurrent_batch(op))
    arguments = []
    for position, given in enumerate(op.inputs):
        if given is None or not entry.is_host(position):
            arguments.append(None if given is None else TracedArray(given))
        else:
            arguments.append(_on_host(op, entry.input_name(position), given))
    try:
        outputs = entry.function(_ARRAYS, *arguments, **words)
    except NoLowering as missing:
        raise NoLowering(f"{op.op_type} needs {missing}") from missing
    except InvalidGraph as wrong:
        raise NoLowering(str(wrong)) from wrong
    return tuple(y.node for y in (outputs if isinstance(outputs, tuple) else (outputs,)))


def _recurrent_batch(op: OpContext) -> RecurrentBatch:
    x, recurrent = op.tensor(0), op.tensor(2)
    steps, sequences = x.shape[1::-1] if op.get("layout") else x.shape[:2]
    return RecurrentBatch(sequences, steps, recurrent.shape[0], math.prod(recurrent.shape[1:]))


def _on_host(op: OpContext, name: str, given: Node) -> HostValue:
    """A value that the definition must know: of a constant, or what follows from the shapes if it is computed.

    Raises:
        NoLowering: it is computed, and does not follow from them.
    """
    if isinstance(given, Constant):
        return to_host(given.array.reshape(given.shape))
    first = op.optional(0)
    sizes = first.shape if first is not None else ()
    if name in ("shape", "output_shape"):
        return op.shape if not op.get("axes") else tuple(op.shape[axis] for axis in op.get("axes"))
    if name == "repeats":
        return tuple(after // size for after, size in zip(op.shape, sizes, strict=True))
    if name in ("k", "depth") and op.op_type in ("TopK", "OneHot"):
        return op.shape[op.get("axis", -1)]
    if name == "size":
        return op.shape[0]
    if name == "axes" and op.op_type.startswith("Reduce"):
        return tuple(axes_by_shape(sizes, op.shape, bool(op.get("keepdims", 1))))
    raise NoLowering(f"{op.op_type} whose input '{name}' is computed")
