"""What a part of a graph is, whatever its values are called: two parts with the same identity compute the same.

Exporters write the same operators for each layer. So what is prepared for one layer's part serves the others, and what was read
of one holds for those that have the same constants, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements, is_known
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood

_SMALL = 64
"""Elements of a constant up to which it belongs to the structure: sizes and axes do, weights and tables do not."""
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_SIMPLE = frozenset(
    {
        *(ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT, ir.AttributeType.FLOATS),
        *(ir.AttributeType.STRING, ir.AttributeType.STRINGS),
    }
)


@dataclass(frozen=True)
class PartIdentity:
    """Operators between some values and others."""

    structure: Hashable
    """Operators, attributes, wiring, types and sizes of what goes in, and all constants but those of many floats."""
    constants: tuple[ir.Value, ...]
    """Of many floats, in the order of their first use."""

    def whole(self) -> Hashable:
        """With the contents of all constants."""
        arrays = (constant_elements(value) for value in self.constants)
        return self.structure, tuple(_digest(array) for array in arrays if array is not None)


def identify_part(
    sinks: Sequence[ir.Value],
    borders: Sequence[ir.Value],
    name_leaf: Callable[[ir.Value], Hashable | None] | None = None,
) -> PartIdentity:
    """The identity of what computes `sinks` from `borders`.

    Args:
        sinks: what is computed.
        borders: what is given, in the order of its roles.
        name_leaf: what identifies a value that is not looked behind; None for others.

    Raises:
        NotUnderstood: something else than borders and constants goes in.
    """
    places: dict[ir.Value, Hashable] = {value: ("border", i, *_sizes_of(value)) for i, value in enumerate(borders)}
    constants: dict[ir.Value, None] = {}
    rows = list[Hashable]()
    todo = [(value, False) for value in reversed(sinks)]
    while todo:
        value, ready = todo.pop()
        if value in places:
            continue
        leaf = _name_constant(value, constants) if is_known(value) else name_leaf and name_leaf(value)
        node = value.producer()
        if leaf is not None:
            places[value] = leaf
        elif node is None:
            raise NotUnderstood(f"'{sinks[0].name}' rests on '{value.name}'")
        elif ready:
            given = tuple(None if each is None else places[each] for each in node.inputs)
            places.update({each: (len(rows), i) for i, each in enumerate(node.outputs)})
            rows.append((node.domain, node.op_type, node.overload, _name_attributes(node), given, len(node.outputs)))
        else:
            todo.append((value, True))
            todo += [(each, False) for each in reversed(node.inputs) if each is not None]
    return PartIdentity((tuple(rows), tuple(places[sink] for sink in sinks)), tuple(constants))


def _sizes_of(value: ir.Value) -> tuple[Hashable, ...]:
    """Names of open sizes are left out: they may be another layer's."""
    shape = value.shape
    return value.dtype, None if shape is None else tuple(size if isinstance(size, int) else None for size in shape)


def _name_constant(value: ir.Value, constants: dict[ir.Value, None]) -> Hashable:
    """By its contents, or as one of the `constants`, to which it is added."""
    array = constant_elements(value)
    assert array is not None
    if value.dtype in _FLOATS and array.size > _SMALL:
        constants.setdefault(value)
        return "constant", list(constants).index(value), *_sizes_of(value)
    return "small", *_sizes_of(value), array.tobytes() if array.dtype != object else object()


def _name_attributes(node: ir.Node) -> Hashable:
    return tuple(
        (name, node.attributes[name].type, _name_attribute(node.attributes[name])) for name in sorted(node.attributes)
    )


def _name_attribute(attribute: ir.Attr) -> Hashable:
    """Its value; a body of control flow is like no other."""
    if attribute.type in _SIMPLE:
        return str(attribute.value)
    if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype != ir.DataType.STRING:
        return _digest(attribute.value.numpy())
    return object()


def _digest(array: np.ndarray) -> Hashable:
    return str(array.dtype), array.shape, hashlib.blake2b(array.tobytes()).digest()
