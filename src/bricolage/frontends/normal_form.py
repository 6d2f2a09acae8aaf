"""Models in the one form that bricolage works on, read back from files: checked to be in that form, and not brought into it."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from bricolage.errors import InvalidGraph, NotAModel
from bricolage.frontends import checks, external
from bricolage.frontends.in_memory import deserialise
from bricolage.graph.model_interface import internalise


def read_as_it_comes(path: Path) -> ir.Model:
    """A user's file in whatever form it has, for other tools to run: its weights lie in its own folder.

    Raises:
        NotAModel: it is no ONNX file.
        MissingExternalData, ExternalDataOutside: its weights are not where they should be.
    """
    try:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise NotAModel(path=path.name, reason=f"the protobuf is damaged ({checks.first_line(error)})") from error
    model = deserialise(proto, path.name)
    external.adopt(model, (path.parent,))
    return model


def read_normal_form(path: Path, *, whole: bool = False) -> ir.Model:
    """A model that is said to be written by bricolage: a graph, or a `whole` model, whose interface stands there as in files. Its
    weights lie in its folder and are mapped.

    Raises:
        NotAModel: it is no ONNX file.
        MissingExternalData, ExternalDataOutside: its weights are not where they should be.
        UnsupportedOpset, UnknownOperator, TrainingOperator, UnsupportedType, InvalidGraph, TooLarge: `clean` would refuse it, or
            would have something to do.
    """
    model = read_as_it_comes(path)
    for check in checks.AS_WRITTEN:
        check(model)
    if model.functions:
        raise InvalidGraph(reason="it has functions that are not inlined")
    if whole:
        internalise(model)
    for graph in model.graphs():
        both = set(graph.inputs) & set(graph.initializers.values())
        if both:
            raise InvalidGraph(reason=f"its input '{min(value.name or '' for value in both)}' is a weight, too")
    for check in checks.INLINED:
        check(model)
    return model
