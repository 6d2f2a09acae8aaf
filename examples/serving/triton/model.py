"""An artifact in Triton's Python backend. `write_folder` puts this file next to it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

import bricolage


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        self._executable = bricolage.load(folder / "model.bricolage").serve()
        self._inputs = [spec.name for spec in self._executable.inputs]
        self._outputs = [spec.name for spec in self._executable.outputs]

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """All requests are submitted before the first answer is waited for, so that the streams can put them together."""
        submitted = [self._submit(request) for request in requests]
        return [self._respond(request, future) for request, future in zip(requests, submitted, strict=True)]

    def finalize(self) -> None:
        self._executable.close()

    def _submit(self, request: pb_utils.InferenceRequest) -> Future | bricolage.BricolageError:
        arrays = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
        for name, array in arrays.items():
            if array.dtype == object:
                arrays[name] = np.array([word.decode("utf-8") for word in array.flat], object).reshape(array.shape)
        try:
            return self._executable.submit(arrays)
        except bricolage.BricolageError as error:
            return error

    def _respond(
        self, request: pb_utils.InferenceRequest, submitted: Future | bricolage.BricolageError
    ) -> pb_utils.InferenceResponse:
        error = submitted if isinstance(submitted, bricolage.BricolageError) else submitted.exception()
        if error is not None:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        answer = submitted.result()
        results = dict(zip(self._outputs, answer if isinstance(answer, tuple) else (answer,), strict=True))
        names = request.requested_output_names()
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, results[name]) for name in names])
