"""What an input is for, read off the operators that use it: token ids must index a table, masks hold zeros and ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from bricolage.graph.operator_kinds import operator_types

Kind = Literal["float", "index", "mask", "bool", "integer", "size", "string", "pixel", "choice"]

_PASSING = frozenset(
    {
        "Cast",
        "CastLike",
        "Identity",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Transpose",
        "Expand",
        "Tile",
        "Slice",
        "Split",
        "Concat",
        "Clip",
        "Dropout",
        "Gather",
        "Pad",
    }
)
"""Operators whose first input's values come out unchanged, at other places."""
_MASKING = frozenset(operator_types("comparison", "logical")) | {"Where"}
_ARITHMETIC = frozenset({"Sub", "Mul"})
_SATURATING = frozenset({"Sigmoid", "HardSigmoid", "Tanh"})
_SIZES = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "TopK": (1,),
    "Range": (0, 1, 2),
    "Loop": (0,),
    "Pad": (1,),
    "ConstantOfShape": (0,),
    "Resize": (3,),
    "Split": (1,),
    "OneHot": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
}
"""Inputs that decide shapes: any value but a small one would not fit."""
_TABLES = {
    ("com.microsoft", "EmbedLayerNormalization"): {0: 2, 1: 4, 8: 3},
    ("com.microsoft", "GatherBlockQuantized"): {1: 0},
    ("com.microsoft", "RotaryEmbedding"): {1: 2},
    ("", "RotaryEmbedding"): {3: 1},
    ("", "RoiAlign"): {2: 0},
    ("com.microsoft", "CropAndResize"): {2: 0},
}
"""By operator: inputs that index rows of another one."""
_POSITIONS = {"SequenceAt": 1, "SequenceErase": 1, "SequenceInsert": 2}
PARTS = 3
"""Of a sequence that is drawn."""
_LENGTHS = {**dict.fromkeys(operator_types("recurrent"), 4), "ReverseSequence": 1}
_KEYS = {
    "LabelEncoder": ("keys_strings", "keys_int64s"),
    "OneHotEncoder": ("cats_strings", "cats_int64s"),
    "CategoryMapper": ("cats_strings", "cats_int64s"),
    "TfIdfVectorizer": ("pool_strings", "pool_int64s"),
}
"""Attributes with the values that an operator knows."""
_OTHERS = frozenset({"LabelEncoder", "CategoryMapper", "TfIdfVectorizer"})
"""Of these, operators that take any other value, too."""
_NUMERALS = ("0", "1", "7", "12")
"""What a cast reads into any type of numbers."""
_MASK_NAME = re.compile(r"mask", re.IGNORECASE)
_DEPTH = 24  # operators followed from an input


@dataclass(frozen=True)
class Role:
    """How values of an input are drawn.

    `bound` is exclusive: indices lie in [0, bound), sizes in [1, bound). None where nothing limits them.
    """

    kind: Kind
    bound: int | None = None
    choices: tuple[str | int, ...] = ()
    """All that it may be; empty where nothing says so."""


def role(value: ir.Value) -> Role:
    """The role of a graph input from its type, its name and the operators that it reaches."""
    dtype = value.dtype
    if dtype is None or dtype == ir.DataType.STRING:
        return Role("choice", choices=choices) if (choices := _choices(value, words=True)) else Role("string")
    if dtype.is_floating_point() or dtype.name.startswith("COMPLEX"):
        return Role("mask" if _MASK_NAME.search(value.name or "") else "float")
    uses = list(_uses(value))
    bounds = [bound for bound in (_index_bound(node, at) for node, at in uses) if bound is not None]
    if dtype == ir.DataType.BOOL:
        return Role("mask" if _MASK_NAME.search(value.name or "") else "bool")
    if choices := _choices(value, words=False):
        return Role("choice", choices=choices)
    if bounds:
        return Role("index", max(min(bounds), 1))
    sizes = [_length_bound(node, at) for node, at in uses if at == _LENGTHS.get(node.op_type)]
    if sizes:
        return Role("size", min(sizes) + 1)
    if _MASK_NAME.search(value.name or ""):
        return Role("mask")
    if any(at in _SIZES.get(node.op_type, ()) for node, at in uses):
        return Role("size", 4)
    if any(_masks(node, at) for node, at in uses):
        return Role("mask")
    return Role("pixel" if dtype == ir.DataType.UINT8 else "integer")


def saturating(model: ir.Model) -> list[bool]:
    """For each output, whether it holds values of a function that saturates, moved at most."""
    return [_comes_from_saturation(value) for value in model.graph.outputs]


def _comes_from_saturation(value: ir.Value) -> bool:
    for _ in range(_DEPTH):
        node = value.producer()
        if node is None or node.domain:
            return False
        if node.op_type in _SATURATING:
            return True
        if node.op_type not in _PASSING or not node.inputs or node.inputs[0] is None:
            return False
        value = node.inputs[0]
    return False


def _choices(value: ir.Value, *, words: bool) -> tuple[str | int, ...]:
    """What the operators that read a value know, and something else where they take it; of text that becomes numbers, numerals."""
    for node, at in _uses(value):
        attributes = node.attributes
        if words and node.op_type == "Cast" and attributes.get_int("to", ir.DataType.STRING) != ir.DataType.STRING:
            return _NUMERALS
        if at or node.op_type not in _KEYS:
            continue
        strings, integers = _KEYS[node.op_type]
        choices: tuple[str | int, ...] = tuple(
            attributes.get_strings(strings, ()) if words else attributes.get_ints(integers, ())
        )
        if not choices:
            continue
        if node.op_type in _OTHERS:
            return (*choices, "elsewhere") if words else (*choices, max(int(choice) for choice in choices) + 1)
        return choices
    return ()


def _uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Operators that get the values of `value`, changed in place and type at most, and at which input; breadth-first,
    into the bodies of control flow where they capture it."""
    reached, front = {value}, [value]
    for _ in range(_DEPTH):
        following: list[ir.Value] = []
        for current in front:
            for node, at in current.uses():
                yield node, at
                passes = node.op_type in _PASSING and not node.domain and (at == 0 or node.op_type == "Concat")
                # 1 - mask and mask * mask are masks still: followed, so that what they end in is seen.
                if passes or (node.op_type in _ARITHMETIC and not node.domain):
                    following += [result for result in node.outputs if result not in reached]
        reached.update(following)
        front = following
        if not front:
            return


def _index_bound(node: ir.Node, at: int) -> int | None:
    """Size of the dimension that input `at` of `node` indexes; None where it is no index, or the size is unknown."""
    table = _TABLES.get((node.domain, node.op_type), {}).get(at)
    if table is not None:
        return _dimension(node.inputs[table], 0) if table < len(node.inputs) else None
    if node.domain:
        return None
    data = node.inputs[0]
    if _POSITIONS.get(node.op_type) == at:  # in a sequence; an input is drawn with this many parts
        return PARTS if data is not None and data.is_graph_input() else 1
    if node.op_type in ("Gather", "GatherElements", "ScatterElements", "Scatter") and at == 1:
        return _dimension(data, node.attributes.get_int("axis", 0))
    if node.op_type in ("GatherND", "ScatterND") and at == 1:
        shape = data.shape if data is not None else None
        sizes = [size for size in shape if isinstance(size, int)] if shape is not None else []
        return min(sizes) if sizes else None
    if node.op_type == "OneHot" and at == 0 and len(node.inputs) > 1:
        depth = node.inputs[1]
        if depth is not None and depth.const_value is not None:
            return int(depth.const_value.numpy().reshape(-1)[0])
    return None


def _length_bound(node: ir.Node, at: int) -> int:
    """Longest sequence that a recurrent operator may be told."""
    del at
    axis = node.attributes.get_int("time_axis", 0) if node.op_type == "ReverseSequence" else 0
    return _dimension(node.inputs[0], axis) or 1


def _dimension(value: ir.Value | None, axis: int) -> int | None:
    if value is None:
        return None
    shape = value.shape if value.shape is not None else (value.const_value.shape if value.const_value else None)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) else None


def _masks(node: ir.Node, at: int) -> bool:
    if node.domain:
        return False
    if node.op_type in _MASKING:
        return node.op_type != "Where" or at == 0
    return node.op_type in _ARITHMETIC
