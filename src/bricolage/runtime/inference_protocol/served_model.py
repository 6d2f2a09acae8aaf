"""A model behind the protocol: its executable with its streams, from the file to the last request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bricolage._version import __version__
from bricolage.errors import AnswerTooLate, ModelNotReady, UnknownModel
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.plan import TensorSpec
from bricolage.runtime.executable import Executable
from bricolage.runtime.inference_protocol import datatypes
from bricolage.runtime.inference_protocol.infer_request import (
    VERSION,
    InferRequest,
    ModelSignature,
    OutputTensor,
    select_outputs,
)
from bricolage.runtime.load import load
from bricolage.verify.inputs import draw_inputs

_EXTENSIONS = ("binary_tensor_data",)
_LOG = logging.getLogger(__name__)


def server_metadata() -> dict[str, object]:
    """Name, version, and extensions of the protocol that are there."""
    return {"name": "bricolage", "version": __version__, "extensions": list(_EXTENSIONS)}


class ServedModel:
    """One model. It is ready when its streams are and a first request was answered."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self._executable: Executable | None = None
        self._signature: ModelSignature | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self._executable is not None

    @property
    def executable(self) -> Executable:
        """What runs.

        Raises:
            ModelNotReady: it is being loaded.
        """
        if self._executable is None:
            raise ModelNotReady(name=self.name)
        return self._executable

    @property
    def signature(self) -> ModelSignature:
        """What it takes and returns.

        Raises:
            ModelNotReady: it is being loaded.
        """
        if self._signature is None:
            raise ModelNotReady(name=self.name)
        return self._signature

    def load(self, point: OperatingPoint | None, any_machine: bool, target: str) -> None:
        """Loads the artifact, starts its streams and runs it once on generated inputs.

        Raises:
            NotServable: the protocol has no type for a tensor of it.
            MissingFile, BadArtifact, ForeignArtifact and others: as `load`.
            BadOption, NotBatchable, NotEnoughMemory: as `Executable.serve`.
        """
        executable = load(self.path, any_machine=any_machine, target=target)
        every = (*executable.inputs, *executable.defaults, *executable.outputs)
        datatypes.check_servable(self.name, every)
        executable.serve(point)
        executable.submit(draw_inputs(executable.graph().model)).result()
        self._signature = ModelSignature(self.name, executable.inputs, executable.defaults, executable.outputs)
        self._executable = executable
        _LOG.info("%s: %s", self.name, executable.operating_point)

    def metadata(self) -> dict[str, object]:
        """Its name, versions, platform, inputs and outputs, as the protocol has them.

        Raises:
            ModelNotReady: it is being loaded.
        """
        signature = self.signature
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": "bricolage",
            "inputs": [_describe_tensor(spec) for spec in signature.inputs],
            "outputs": [_describe_tensor(spec) for spec in signature.outputs],
        }

    async def infer(self, request: InferRequest, limit_s: float) -> list[OutputTensor]:
        """Runs a request in the streams. Cancelled, it leaves the queue.

        Raises:
            WrongShape and others: as `Executable.submit`.
            QueueFull: as many requests wait as may.
            AnswerTooLate: it took longer than `limit_s` seconds.
            Whatever the run raised.
        """
        future = self.executable.submit(dict(request.arrays), block=False)
        try:
            async with asyncio.timeout(limit_s):
                answer = await asyncio.wrap_future(future)
        except TimeoutError:
            raise AnswerTooLate(limit=f"{limit_s:g} s") from None
        results: Sequence[np.ndarray] = answer if isinstance(answer, tuple) else (answer,)
        return select_outputs(self.signature, results, request.outputs)

    def close(self) -> None:
        """Takes no more requests; returns when those that there are were answered."""
        if self._executable is not None:
            self._executable.close()


def _describe_tensor(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": datatypes.datatype(spec), "shape": datatypes.protocol_shape(spec)}


class ServedModels:
    """All models of a server, by name."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._models = {name: ServedModel(name, path) for name, path in paths.items()}
        self.draining = False
        """Whether no request is taken any more."""

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def __contains__(self, name: object) -> bool:
        return name in self._models

    @property
    def ready(self) -> bool:
        """Whether all take requests."""
        return not self.draining and all(model.ready for model in self._models.values())

    def find(self, name: str, version: str = "") -> ServedModel:
        """The model of this name.

        Raises:
            UnknownModel: there is none, or not in this version.
        """
        model = self._models.get(name)
        if model is None:
            raise UnknownModel(name=name, expected=", ".join(self._models))
        if version not in ("", VERSION):
            raise UnknownModel(name=f"{name}, version {version}", expected=f"{name}, version {VERSION}")
        return model
