"""The cases of the ONNX backend test suite, with their data as numpy values."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True, eq=False)
class Case:
    """One model with inputs and expected outputs, in the order of the graph. Values are numpy arrays, lists of them for
    sequences, or None for an empty optional."""

    name: str
    model: onnx.ModelProto = field(repr=False)
    inputs: tuple[object, ...] = field(repr=False)
    outputs: tuple[object, ...] = field(repr=False)
    rtol: float
    atol: float

    @property
    def single(self) -> bool:
        """Whether the model is one operator, so that its outcome says something about that operator."""
        return len(self.model.graph.node) == 1 and not self.model.functions


def cases() -> list[Case]:
    """All cases, sorted by name. Takes some seconds: the suite computes its data when it is imported."""
    from onnx.backend.test.loader import load_model_tests

    found: list[Case] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for test in load_model_tests(kind=kind):
                model, inputs, outputs = _read(test) if test.model is None else _given(test)
                model, inputs = _detach(model, inputs)
                found.append(Case(test.name, model, inputs, outputs, test.rtol, test.atol))
    return sorted(found, key=lambda case: case.name)


_Data = tuple[onnx.ModelProto, tuple[object, ...], tuple[object, ...]]


def _given(test: object) -> _Data:
    (inputs, outputs) = test.data_sets[0]  # type: ignore[attr-defined]
    return test.model, tuple(map(_value, inputs)), tuple(map(_value, outputs))  # type: ignore[attr-defined]


def _read(test: object) -> _Data:
    folder = Path(test.model_dir)  # type: ignore[attr-defined]
    model = onnx.load(folder / "model.onnx")
    data = folder / "test_data_set_0"

    def values(stem: str, infos: list[onnx.ValueInfoProto]) -> tuple[object, ...]:
        return tuple(
            _parse((data / f"{stem}_{i}.pb").read_bytes(), infos[i].type)
            for i in range(len(list(data.glob(f"{stem}_*.pb"))))
        )

    return model, values("input", list(model.graph.input)), values("output", list(model.graph.output))


def _parse(raw: bytes, kind: onnx.TypeProto) -> object:
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
        case _:
            return numpy_helper.to_array(onnx.TensorProto.FromString(raw))


def _value(value: object) -> object:
    match value:
        case onnx.TensorProto():
            return numpy_helper.to_array(value)
        case list() | tuple():
            return [_value(item) for item in value]
        case None:
            return None
        case _:
            return np.asarray(value)


def _detach(model: onnx.ModelProto, inputs: tuple[object, ...]) -> tuple[onnx.ModelProto, tuple[object, ...]]:
    """Initializers that are also inputs (models before IR 4) become initializers only."""
    constants = {tensor.name for tensor in model.graph.initializer}
    if not constants.intersection(info.name for info in model.graph.input):
        return model, inputs
    detached = onnx.ModelProto()
    detached.CopyFrom(model)
    pairs = list(zip(model.graph.input, inputs, strict=False))
    kept = [info for info in model.graph.input if info.name not in constants]
    del detached.graph.input[:]
    detached.graph.input.extend(kept)
    return detached, tuple(value for info, value in pairs if info.name not in constants)
