"""An artifact as a deployment of Ray Serve (`pip install 'ray[serve]'`), in the folder of `digits.bricolage`.

serve run deployment:app
curl localhost:8000 -d '{"image": [[[[0, 0, 5, 13, 9, 1, 0, 0], ...]]]}'
"""

import asyncio
from pathlib import Path

from ray import serve
from starlette.requests import Request

import bricolage


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
class Model:
    def __init__(self, path: str) -> None:
        self._executable = bricolage.load(path).serve()

    async def __call__(self, request: Request) -> dict[str, list]:
        answer = await asyncio.wrap_future(self._executable.submit(await request.json(), block=False))
        results = answer if isinstance(answer, tuple) else (answer,)
        return {spec.name: array.tolist() for spec, array in zip(self._executable.outputs, results, strict=True)}


app = Model.bind(str(Path("digits.bricolage").resolve()))
