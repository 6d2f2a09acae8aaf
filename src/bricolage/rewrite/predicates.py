"""What conditions ask of a graph, in the words of rules. Each question raises `MatchFailure` where the answer is not known or
is no, so that a condition reads as a statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.device.tensor_form import Dimension
from bricolage.graph.constant_folding import constant_elements, is_known
from bricolage.graph.graph import describe
from bricolage.rewrite.rule import MatchFailure


def require(holds: bool, reason: str) -> None:
    """Raises `MatchFailure` with `reason` unless the condition holds."""
    if not holds:
        raise MatchFailure(reason)


# --- shapes -----------------------------------------------------------------------------------------------------


def shape(value: ir.Value) -> tuple[Dimension, ...]:
    """Shape of known rank; dimensions may be symbolic."""
    dimensions = describe(value).shape
    if dimensions is None:
        raise MatchFailure(f"the rank of '{value.name}' is not known")
    return dimensions


def sizes(value: ir.Value) -> tuple[int, ...]:
    """Shape of known sizes."""
    dimensions = shape(value)
    if not all(isinstance(dimension, int) for dimension in dimensions):
        raise MatchFailure(f"a dimension of '{value.name}' is not known")
    return tuple(int(dimension) for dimension in dimensions)


def rank(value: ir.Value) -> int:
    """Number of dimensions. Raises MatchFailure where it is not known."""
    return len(shape(value))


def require_shape(value: ir.Value, like: ir.Value) -> None:
    """The two have equal shapes; symbolic dimensions are equal by name."""
    a, b = shape(value), shape(like)
    require(
        a == b and "?" not in a, f"'{value.name}' of shape {_text(a)} has not the shape {_text(b)} of '{like.name}'"
    )


def same_elements(view: ir.Value, wanted: Sequence[Dimension]) -> bool:
    """Whether a view of as many elements has that shape: one dimension, which inference does not know, follows from the others."""
    view_shape = shape(view)
    unlike = [pair for pair in zip(view_shape, wanted, strict=False) if pair[0] != pair[1] or "?" in pair]
    return len(view_shape) == len(wanted) and (not unlike or (len(unlike) == 1 and isinstance(unlike[0][0], str)))


def broadcast(*values: ir.Value) -> tuple[Dimension, ...] | None:
    """Shape of an element-wise result; None where symbolic dimensions leave it open."""
    result_shape: list[Dimension] = []
    shapes = [shape(value) for value in values]
    for axis in range(-max(map(len, shapes), default=0), 0):
        here = {operand_shape[axis] for operand_shape in shapes if -axis <= len(operand_shape)} - {1}
        if len(here) > 1 or "?" in here:
            return None
        result_shape.append(here.pop() if here else 1)
    return tuple(result_shape)


def _text(dimensions: Sequence[Dimension]) -> str:
    return "×".join(map(str, dimensions)) or "scalar"


# --- constants --------------------------------------------------------------------------------------------------


def integers(value: ir.Value | None, what: str = "the operand") -> tuple[int, ...]:
    """Elements of a constant of integers (shape, axes, pads), flat."""
    array = constant_elements(value) if value is not None else None
    if array is None or array.dtype.kind not in "iu":
        raise MatchFailure(f"{what} is not a constant of integers")
    return tuple(int(element) for element in array.reshape(-1))


def require_constant(value: ir.Value) -> None:
    """Raises MatchFailure unless the value is known before running."""
    require(is_known(value), f"'{value.name}' is not a constant")


def require_filled(value: ir.Value | None, number: float) -> None:
    """Every element of a constant equals `number` exactly."""
    array = constant_elements(value) if value is not None else None
    if array is None or array.dtype.kind not in "fiuV" or not array.size:
        raise MatchFailure("the operand is not a constant of numbers")
    require(bool((array.astype(np.float64) == number).all()), f"the constant is not {number:g} everywhere")


def scalar(value: ir.Value) -> bool:
    """Whether a value has one element and broadcasts without adding dimensions: shape () or (1,)."""
    return describe(value).shape in ((), (1,))


# --- operators --------------------------------------------------------------------------------------------------


def floating(value: ir.Value) -> None:
    """The elements are floating-point numbers of at least 16 bits."""
    dtype = describe(value).dtype
    allowed = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    require(dtype in allowed, f"'{value.name}' does not hold floating-point numbers")


def single_precision(value: ir.Value) -> None:
    """The elements are floating-point numbers of at most 32 bits: some operators compute in no higher precision."""
    floating(value)
    require(describe(value).dtype != ir.DataType.DOUBLE, "the operator computes in single precision at most")


def axes(node: ir.Node, index: int = 1) -> tuple[int, ...]:
    """Axes of a Squeeze, Unsqueeze or Reduce operator, by attribute or by input, not normalised. Empty where it names none."""
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"].as_ints())
    value = node.inputs[index] if index < len(node.inputs) else None
    return () if value is None else integers(value, f"the axes of '{node.name}'")


def normalised(numbers: Iterable[int], of_rank: int) -> tuple[int, ...]:
    """Axes counted from the front."""
    return tuple(number + of_rank if number < 0 else number for number in numbers)


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    return int(node.attributes.get_int(name, default))


def listed(node: ir.Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """An attribute of integers."""
    ints = node.attributes.get_ints(name)
    return tuple(default if ints is None else ints)


def text(node: ir.Node, name: str, default: str) -> str:
    """A string attribute."""
    return str(node.attributes.get_string(name, default))


def permutation(node: ir.Node, value: ir.Value) -> tuple[int, ...]:
    """The permutation of a Transpose of `value`; reversed axes where it gives none."""
    return listed(node, "perm", tuple(range(rank(value)))[::-1])


_NONNEGATIVE = (
    "Abs",
    "Exp",
    "Relu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Sqrt",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
)


def require_nonnegative(value: ir.Value) -> None:
    """The value is known to be ≥ 0 wherever it is a number."""
    array = constant_elements(value)
    if array is not None:
        require(bool((array.astype(float) >= 0).all()), f"'{value.name}' may be negative")
        return
    node = value.producer()
    squared = node is not None and node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
    require(
        node is not None and not node.domain and (node.op_type in _NONNEGATIVE or squared),
        f"'{value.name}' may be negative",
    )
