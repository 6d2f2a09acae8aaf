"""A request to a model and its answer, whichever way they travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.errors import BadRequest, MissingInput, UnknownInput, UnknownOutput, WrongType
from bricolage.plan.plan import TensorSpec
from bricolage.runtime.inference_protocol.datatypes import datatype
from bricolage.runtime.signature import describe_inputs

VERSION = "1"
"""Of every model: an artifact has no versions."""


@dataclass(frozen=True)
class ModelSignature:
    """What a model takes and returns."""

    name: str
    inputs: Sequence[TensorSpec]
    defaults: Sequence[TensorSpec]
    """Inputs that may be left out."""
    outputs: Sequence[TensorSpec]

    def input(self, name: str, sent: str) -> str:
        """The type of an input, which is also what the request says of it.

        Raises:
            UnknownInput: the model has no such input.
            WrongType: the request says that it is of another type.
        """
        spec = next((spec for spec in (*self.inputs, *self.defaults) if spec.name == name), None)
        if spec is None:
            raise UnknownInput(name=name, expected=describe_inputs(self.inputs))
        if datatype(spec) != sent:
            raise WrongType(name=name, actual=sent, expected=datatype(spec))
        return sent

    def check_inputs(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Whether there is every input that the model needs.

        Raises:
            MissingInput: one lacks.
        """
        for spec in self.inputs:
            if spec.name not in arrays:
                raise MissingInput(name=spec.name, expected=describe_inputs(self.inputs))

    def check_outputs(self, wanted: Iterable[str]) -> None:
        """Whether the model returns what a request asks for.

        Raises:
            UnknownOutput: an output that it does not have.
            BadRequest: an output twice.
        """
        names, asked = [spec.name for spec in self.outputs], set[str]()
        for name in wanted:
            if name not in names:
                raise UnknownOutput(name=name, expected=", ".join(names))
            if name in asked:
                raise BadRequest(reason=f"output '{name}' is asked for twice")
            asked.add(name)


@dataclass(frozen=True)
class InferRequest:
    """One call of a model."""

    id: str
    arrays: Mapping[str, np.ndarray]
    """Inputs by name."""
    outputs: Mapping[str, bool]
    """By name, in the order in which they are returned: whether in binary."""


@dataclass(frozen=True)
class OutputTensor:
    """An output of a call."""

    name: str
    datatype: str
    array: np.ndarray
    binary: bool


def select_outputs(
    signature: ModelSignature, results: Sequence[np.ndarray], wanted: Mapping[str, bool]
) -> list[OutputTensor]:
    """Those that a request asks for, of all that the model returned in its order."""
    named = {spec.name: (datatype(spec), array) for spec, array in zip(signature.outputs, results, strict=True)}
    return [OutputTensor(name, *named[name], binary) for name, binary in wanted.items()]
