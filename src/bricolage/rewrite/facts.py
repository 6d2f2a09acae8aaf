"""What conditions ask of a graph, in the words of rules. Each question raises `Mismatch` where the answer is not known or
is no, so that a condition reads as a statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.folding import is_known, known
from bricolage.graph.graph import Dimension, describe
from bricolage.rewrite.rule import Mismatch


def require(holds: bool, reason: str) -> None:
    """Raises `Mismatch` with `reason` unless the condition holds."""
    if not holds:
        raise Mismatch(reason)


# --- shapes -----------------------------------------------------------------------------------------------------


def shape(value: ir.Value) -> tuple[Dimension, ...]:
    """Shape of known rank; dimensions may be symbolic."""
    found = describe(value).shape
    if found is None:
        raise Mismatch(f"the rank of '{value.name}' is not known")
    return found


def sizes(value: ir.Value) -> tuple[int, ...]:
    """Shape of known sizes."""
    found = shape(value)
    if not all(isinstance(dimension, int) for dimension in found):
        raise Mismatch(f"a dimension of '{value.name}' is not known")
    return tuple(int(dimension) for dimension in found)


def rank(value: ir.Value) -> int:
    return len(shape(value))


def require_shape(value: ir.Value, like: ir.Value) -> None:
    """The two have equal shapes; symbolic dimensions are equal by name."""
    a, b = shape(value), shape(like)
    require(
        a == b and "?" not in a, f"'{value.name}' of shape {_text(a)} has not the shape {_text(b)} of '{like.name}'"
    )


def broadcast(*values: ir.Value) -> tuple[Dimension, ...] | None:
    """Shape of an element-wise result; None where symbolic dimensions leave it open."""
    found: list[Dimension] = []
    shapes = [shape(value) for value in values]
    for axis in range(-max(map(len, shapes), default=0), 0):
        here = {own[axis] for own in shapes if -axis <= len(own)} - {1}
        if len(here) > 1 or "?" in here:
            return None
        found.append(here.pop() if here else 1)
    return tuple(found)


def _text(dimensions: Sequence[Dimension]) -> str:
    return "×".join(map(str, dimensions)) or "scalar"


# --- constants --------------------------------------------------------------------------------------------------


def integers(value: ir.Value | None, what: str = "the operand") -> tuple[int, ...]:
    """Elements of a constant of integers (shape, axes, pads), flat."""
    array = known(value) if value is not None else None
    if array is None or array.dtype.kind not in "iu":
        raise Mismatch(f"{what} is not a constant of integers")
    return tuple(int(element) for element in array.reshape(-1))


def require_constant(value: ir.Value) -> None:
    require(is_known(value), f"'{value.name}' is not a constant")


def require_filled(value: ir.Value | None, number: float) -> None:
    """Every element of a constant equals `number` exactly."""
    array = known(value) if value is not None else None
    if array is None or array.dtype.kind not in "fiuV" or not array.size:
        raise Mismatch("the operand is not a constant of numbers")
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
    found = node.attributes.get_ints(name)
    return tuple(default if found is None else found)


def text(node: ir.Node, name: str, default: str) -> str:
    """A string attribute."""
    return str(node.attributes.get_string(name, default))


def permutation(node: ir.Node, value: ir.Value) -> tuple[int, ...]:
    """The permutation of a Transpose of `value`; reversed axes where it gives none."""
    return listed(node, "perm", tuple(range(rank(value)))[::-1])


Ranges = dict[int, tuple[int, int]]


def ranges_of(node: ir.Node) -> Ranges:
    """What a Slice with step 1 keeps of each axis that it names, as (start, end) within the axis.

    Raises:
        Mismatch: a start, end, axis or step is no constant; a step is not 1; or an axis has no fixed size.
    """
    given = [*node.inputs, None, None]
    source = given[0]
    assert source is not None
    starts, ends = integers(given[1], "the start"), integers(given[2], "the end")
    axes = integers(given[3], "the axes") if given[3] is not None else tuple(range(len(starts)))
    steps = integers(given[4], "the steps") if given[4] is not None else (1,) * len(starts)
    require(set(steps) <= {1}, "a step is not 1")
    own, found = shape(source), Ranges()
    for axis, start, end in zip(normalised(axes, len(own)), starts, ends, strict=True):
        size = own[axis]
        if not isinstance(size, int):
            raise Mismatch("a sliced axis has no fixed size")
        first = min(max(start + size if start < 0 else start, 0), size)
        found[axis] = (first, max(min(end + size if end < 0 else end, size), first))
    return found
