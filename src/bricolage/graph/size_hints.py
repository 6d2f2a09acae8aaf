"""What a model hints of the sizes that its open dimensions may have: names, the operators that read them, strides.

A hint is a proposal. Whether a model can be computed at the sizes proposed is tried (`graph.open_sizes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from bricolage.graph.operator_kinds import CONVOLUTIONS, RECURRENT, operator_types

IMAGE, SEQUENCE, SIGNAL, VOLUME = "image", "sequence", "signal", "volume"
USUAL = {
    IMAGE: (224, 256, 320, 384, 512, 640, 128, 64, 32, 96, 299, 227, 28),
    SEQUENCE: (128, 64, 256, 512, 32, 16, 8, 1),
    SIGNAL: (16000, 16384, 8000, 8192, 1024, 512, 256),
    VOLUME: (64, 96, 32, 128, 16),
}
"""Sizes that models of a kind are trained and served with, the most usual first."""
_ANY = (8, 16, 32, 64, 12, 24, 4, 2, 6, 3, 5, 7, 9, 10, 20, 28, 48, 49, 128, 256, 1, 840, 27_720)
"""Tried where nothing hints at a size; such a size is never proposed."""
_WORDS = {
    IMAGE: {"height", "width", "h", "w", "rows", "cols"},
    SEQUENCE: {
        "sequence",
        "seq",
        "seqlen",
        "length",
        "len",
        "time",
        "tokens",
        "token",
        "frames",
        "steps",
        "words",
        "t",
    },
    SIGNAL: {"samples", "audio", "waveform", "signal"},
    VOLUME: {"depth"},
}
_BATCH = {"batch", "batchsize", "bs", "n", "b"}
_SURELY_BATCH = {"batch", "batchsize"}
"""Also where they are not the first: recurrent networks have time before them."""
_POOLING = frozenset(operator_types("pool"))
_SPATIAL = CONVOLUTIONS | _POOLING | {"Resize", "Upsample"}
_BY_RANK = {3: SIGNAL, 4: IMAGE, 5: VOLUME}
_ELEMENTWISE = frozenset(
    {"Cast", "Identity", "Add", "Sub", "Mul", "Div", "Relu", "Clip", "Neg", "Abs", "QuantizeLinear"}
)
_FURTHEST = 64
"""Operators that are followed from an input on."""
_COARSEST = 256
"""Largest divisor that strides are believed to make."""


@dataclass(frozen=True)
class Hint:
    """What is known of one open dimension."""

    batch: bool = False
    kind: str = ""
    fixed: int | None = None
    """The only size that weights leave."""
    because: str = ""
    """Why it is that one."""
    divisor: int = 1
    """Of which sizes are multiples wherever strides divide them."""
    usual: tuple[int, ...] = field(default=())
    """To propose, the most usual first; empty where nothing hints at a size."""

    @property
    def candidates(self) -> tuple[int, ...]:
        """To try."""
        return self.usual or _ANY


def words(name: str) -> list[str]:
    """`inputHeight_2` → input, height, 2."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())


def named_batch(name: str) -> bool:
    """Whether a dimension's name says that it is the batch."""
    return any(word in _BATCH for word in words(name)) and not _kind_of_name(name)


def _kind_of_name(name: str) -> str:
    name_words = words(name)
    return next((kind for kind, vocabulary in _WORDS.items() if any(word in vocabulary for word in name_words)), "")


def hint(model: ir.Model, name: str, places: Sequence[tuple[ir.Value, int]], nameless: bool, divisor: int) -> Hint:
    """What the model says of an open dimension.

    Args:
        model: clean.
        name: of the dimension.
        places: the inputs that have it, each with the axis.
        nameless: whether its name is made of input and axis, and says nothing.
        divisor: what strides divide sizes by, of the whole model.
    """
    kind = "" if nameless else _kind_of_name(name)
    time_major = columns = False
    for value, axis in places:
        for node, index, at in readers(value, axis):
            fixed, because = _find_demanded_size(node, index, at)
            if fixed is not None:
                return Hint(fixed=fixed, because=because)
            kind = kind or _kind_of_reader(node, index, at)
            if node.op_type in RECURRENT and index == 0 and not _number(node, "layout", 0):
                time_major |= at == 0
                columns |= at == 1
    if not kind and (nameless or _means_nothing(name)):
        kind = next((place_kind for value, axis in places if (place_kind := _kind_of_place(value, axis))), "")
    begins = all(axis == 0 for _, axis in places) and all(len(value.shape or ()) > 1 for value, _ in places)
    sure = any(axis == 0 for _, axis in places) or any(word in _SURELY_BATCH for word in words(name))
    by_name = not nameless and named_batch(name) and sure
    by_place = begins and not time_major and (nameless or not kind) and (nameless or _means_nothing(name))
    if by_name or columns or (by_place and _outputs_begin_open(model)):
        return Hint(batch=True)
    usual = USUAL.get(kind, ())
    strided = kind in (IMAGE, VOLUME, SIGNAL)
    if strided and divisor > 1:
        even = tuple(size for size in usual if size % divisor == 0)
        usual = even or tuple(divisor * factor for factor in (4, 2, 1, 8))
    return Hint(kind=kind, divisor=divisor if strided else 1, usual=usual)


def _means_nothing(name: str) -> bool:
    """Names that exporters number: `unk__12`, `s0`, `dim_0`, `dynamic_axes_1`, `None`."""
    meaningless = {"unk", "unknown", "s", "dim", "dynamic", "axes", "axis", "none", "dyn", "d", "first"}
    return all(word in meaningless or word.isdigit() for word in words(name))


def _outputs_begin_open(model: ir.Model) -> bool:
    """Whether a row of the inputs may be one of every output: those that have a first dimension have an open one."""
    return all(not value.shape or not isinstance(value.shape[0], int) for value in model.graph.outputs)


def _kind_of_reader(node: ir.Node, index: int, axis: int) -> str:
    value = node.inputs[index]
    rank = len(value.shape) if value is not None and value.shape is not None else 0
    if node.op_type in _SPATIAL and index == 0 and axis > 1:
        return _BY_RANK.get(rank, "")
    if node.op_type in RECURRENT and index == 0 and axis == _number(node, "layout", 0):
        return SEQUENCE
    if axis == 1 and (node.op_type, index) in (("Gather", 1), ("EmbedLayerNormalization", 0)):
        return SEQUENCE
    return ""


def _kind_of_place(value: ir.Value, axis: int) -> str:
    """By the shape of the input alone."""
    shape = value.shape
    assert shape is not None
    rank = len(shape)
    coloured = [i for i, size in enumerate(shape) if isinstance(size, int) and size in (1, 3, 4)]
    if rank == 4 and ((axis > 1 and 1 in coloured) or (axis in (1, 2) and 3 in coloured)):
        return IMAGE
    if rank == 5 and axis > 1 and 1 in coloured:
        return VOLUME
    whole = value.dtype is not None and value.dtype.is_integer()
    if axis == 1 and ((rank == 2 and whole) or (rank == 3 and isinstance(shape[2], int))):
        return SEQUENCE
    return ""


def readers(value: ir.Value, axis: int) -> Iterator[tuple[ir.Node, int, int]]:
    """Operators that read a dimension of a value as it is: with the input's number and the axis there. What only moves or
    maps elements is passed through."""
    todo, seen = [(value, axis)], 0
    while todo and seen < _FURTHEST:
        value, axis = todo.pop(0)
        for node, index in value.uses():
            seen += 1
            if node.op_type == "Transpose":
                rank = len(value.shape) if value.shape is not None else 0
                order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else [*range(rank)][::-1]
                if axis in order:
                    todo.append((node.outputs[0], order.index(axis)))
            elif node.op_type in _ELEMENTWISE and _keeps_rank(node, value):
                todo.append((node.outputs[0], axis))
            else:
                yield node, index, axis


def _keeps_rank(node: ir.Node, value: ir.Value) -> bool:
    output_shape = node.outputs[0].shape
    return output_shape is not None and value.shape is not None and len(output_shape) == len(value.shape)


def _find_demanded_size(node: ir.Node, index: int, axis: int) -> tuple[int | None, str]:
    """The size that an operator's weights leave to an axis of its input, and a sentence about it."""
    if index != 0 or len(node.inputs) < 2:
        return None, ""
    weight, source = node.inputs[1], node.inputs[0]
    if weight is None or weight.const_value is None or source is None or source.shape is None:
        return None, ""
    sizes, last = tuple(weight.const_value.shape.numpy()), axis == len(source.shape) - 1
    size: int | None = None
    match node.op_type:
        case "Conv" if axis == 1:
            size = sizes[1] * _number(node, "group", 1)
        case "ConvTranspose" if axis == 1:
            size = sizes[0]
        case "MatMul" if last and len(sizes) == 2:
            size = sizes[0]
        case "Gemm" if last and not _number(node, "transA", 0):
            size = sizes[1 if _number(node, "transB", 0) else 0]
        case "LSTM" | "GRU" | "RNN" if axis == 2:
            size = sizes[2]
        case "BatchNormalization" | "InstanceNormalization" if axis == 1:
            size = sizes[0]
        case _:
            return None, ""
    return int(size), f"weights of {node.op_type} '{node.name}'"


def _number(node: ir.Node, name: str, default: int) -> int:
    return int(node.attributes[name].as_int()) if name in node.attributes else default


def total_stride(model: ir.Model) -> int:
    """By what convolutions and poolings divide the sizes of maps, at the coarsest place of the model. Nodes are sorted."""
    strides: dict[ir.Value, float] = {}
    coarsest = 1.0
    for node in model.graph:
        came = max((strides.get(value, 1.0) for value in node.inputs if value is not None), default=1.0)
        stride = max(node.attributes["strides"].as_ints(), default=1) if "strides" in node.attributes else 1
        if node.op_type in _POOLING or node.op_type in operator_types("convolution"):
            came *= stride
        elif node.op_type == "ConvTranspose":
            came = max(came / stride, 1.0)
        elif node.op_type == "SpaceToDepth":
            came *= _number(node, "blocksize", 1)
        coarsest = max(coarsest, came)
        strides.update(dict.fromkeys(node.outputs, came))
    return int(coarsest) if coarsest <= _COARSEST else 1
