"""An artifact as a model of MLServer (`pip install 'mlserver>=1.7'`, Python 3.11 or 3.12).

    mlserver start FOLDER

with this file, `model-settings.json` and the artifact in the folder. The artifact's streams make the batches: leave
`max_batch_size` out of the settings.
"""

from __future__ import annotations

import asyncio

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import get_model_uri

import bricolage


class BricolageModel(MLModel):
    async def load(self) -> bool:
        path = await get_model_uri(self.settings)
        self._executable = await asyncio.to_thread(bricolage.load, path)
        await asyncio.to_thread(self._executable.serve)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        try:
            arrays = {tensor.name: np.asarray(self.decode(tensor, NumpyCodec)) for tensor in payload.inputs}
            answer = await asyncio.wrap_future(self._executable.submit(arrays, block=False))
        except bricolage.BricolageError as error:
            raise InferenceError(str(error)) from error
        results = answer if isinstance(answer, tuple) else (answer,)
        outputs = [
            NumpyCodec.encode_output(spec.name, array)
            for spec, array in zip(self._executable.outputs, results, strict=True)
        ]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=outputs)

    async def unload(self) -> bool:
        await asyncio.to_thread(self._executable.close)
        return True
