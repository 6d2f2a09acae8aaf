"""Models that are already in memory: `onnx.ModelProto` and `onnx_ir.Model`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from bricolage.errors import InvalidGraph, NotAModel, TooLarge, UnsupportedType
from bricolage.frontends import external, model_limits, sparse_tensors
from bricolage.frontends.checks import first_line, innermost
from bricolage.frontends.clean import clean
from bricolage.frontends.maps import without_maps

_SMALLER = "Save its weights as external data, which are read only where they are needed"
_NO_MAPS = (
    "Export the model with tensors in its place: skl2onnx returns them with options={'zipmap': False}, and a DictVectorizer, or a "
    "CastMap to numbers, may read a map"
)


def from_proto(proto: onnx.ModelProto, base_dir: Path | None = None) -> ir.Model:
    """A checked model from a proto, which is not changed. External data is looked for in `base_dir`.

    Raises:
        NotAModel, MissingExternalData, ExternalDataOutside, and what `clean` raises.
    """
    model = deserialise(proto, "ModelProto")
    external.adopt(model, (base_dir or Path.cwd(),))
    return clean(model)


def from_ir(model: ir.Model) -> ir.Model:
    """A checked copy of an `onnx_ir` model; tensors are shared, the model itself is not changed.

    Raises:
        MissingExternalData, ExternalDataOutside, and what `clean` raises.
    """
    copy = model.clone()
    external.adopt(copy, ())
    return clean(copy)


def deserialise(proto: onnx.ModelProto, source: str) -> ir.Model:
    """The proto as `onnx_ir`, unchecked. `source` is named in errors.

    Raises:
        NotAModel: the proto holds no graph.
        InvalidGraph: the graph is malformed: a value defined twice, a tensor whose data does not fit its shape.
    """
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise NotAModel(path=source, reason="it holds no graph; it may be cut short, or another kind of file")
    model_limits.check_operator_count(proto)
    external.check_external_data(proto)
    proto = without_maps(sparse_tensors.dense(proto))
    _check_types(proto)
    try:
        with _quiet():
            model: ir.Model = ir.from_proto(proto)
        _check_tensors(model)
    except InvalidGraph:
        raise
    except MemoryError as error:
        raise TooLarge(what="the model", reason="its tensors do not fit into memory", advice=_SMALLER) from error
    except Exception as error:  # the parser assumes a valid proto, and meets an invalid one with whatever comes
        raise InvalidGraph(reason=first_line(innermost(error))) from error
    return model


def _check_types(proto: onnx.ModelProto) -> None:
    """Every stated type is one of tensors, sequences or optionals, of elements that ONNX defines: others have no word in the rest
    of the house, and are refused by name before `onnx_ir` meets them.

    Raises:
        UnsupportedType: a value is a map, or of an opaque type.
        InvalidGraph: an element type has a number that ONNX does not define.
    """
    for graph in model_limits.graphs_of(proto):
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """onnx_ir warns of what `clean` refuses a moment later, by name."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_tensors(model: ir.Model) -> None:
    """Data of tensors inside the proto fit their shapes (onnx_ir would notice only when they are read)."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            _check_tensor(name, value.const_value)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    _check_tensor(f"{node.name}.{attribute.name}", attribute.value)


def _check_tensor(name: str, tensor: ir.TensorProtocol | None) -> None:
    if tensor is None or isinstance(tensor, ir.ExternalTensor):
        return
    if tensor.dtype == ir.DataType.UNDEFINED:
        raise InvalidGraph(reason=f"tensor '{name}' has no element type")
    dims = tensor.shape.numpy()
    if any(dim < 0 for dim in dims):
        raise InvalidGraph(reason=f"tensor '{name}' has a negative dimension")
    try:
        data_shape = tensor.numpy().shape
    except (ValueError, TypeError, AssertionError, MemoryError) as error:  # of onnx_ir, and of numpy
        raise InvalidGraph(reason=f"the data of tensor '{name}' do not fit its shape {list(dims)}") from error
    if data_shape != dims:
        raise InvalidGraph(reason=f"the data of tensor '{name}' do not fit its shape {list(dims)}")
