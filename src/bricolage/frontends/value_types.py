"""Types of values in a file that the rest of the house has no word for: refused by name, before `onnx_ir` meets them."""

from __future__ import annotations

import onnx

from bricolage.errors import InvalidGraph, UnsupportedType
from bricolage.frontends.model_limits import graphs_of

_NO_MAPS = (
    "Export the model with tensors in its place: skl2onnx returns them with options={'zipmap': False}, and a DictVectorizer, or a "
    "CastMap to numbers, may read a map"
)


def check_types(proto: onnx.ModelProto) -> None:
    """Every stated type is one of tensors, sequences or optionals, of elements that ONNX defines.

    Raises:
        UnsupportedType: a value is a map, or of an opaque type.
        InvalidGraph: an element type has a number that ONNX does not define.
    """
    for graph in graphs_of(proto):
        values = [*graph.value_info]
        if isinstance(graph, onnx.GraphProto):
            values += [*graph.input, *graph.output]
        for value in values:
            innermost_type, kinds = value.type, list[str]()
            while (kind := innermost_type.WhichOneof("value") or "") in ("sequence_type", "optional_type"):
                kinds.append(kind.removesuffix("_type"))
                innermost_type = getattr(innermost_type, kind).elem_type
            if kind in ("map_type", "opaque_type"):
                type_text = " of ".join([*kinds, kind.removesuffix("_type")])
                raise UnsupportedType(name=value.name, type=type_text, who="bricolage", advice=_NO_MAPS)
            number = innermost_type.tensor_type.elem_type if kind == "tensor_type" else 0
            if number not in onnx.TensorProto.DataType.values():
                raise InvalidGraph(reason=f"'{value.name}' has the element type {number}, which ONNX does not define")
