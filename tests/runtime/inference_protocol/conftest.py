"""Artifacts of small models, and server processes that answer for them on free ports of 127.0.0.1."""

from __future__ import annotations

import http.client
import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx.parser
import pytest

from benchmarks.call_overhead import whole_on

LIBRARIES = ("uvicorn", "grpc", "orjson", "prometheus_client")
"""Of the extra `serve`."""
PATIENCE_S = 120.0
"""For a server to be ready on a busy machine."""
TYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float",
    "FP64": "double",
    "BF16": "bfloat16",
}
"""By name of the protocol: that of ONNX's text form."""
_EVERY = ", ".join(f"{kind}[2] {name}" for name, kind in TYPES.items())
_DOUBLED = ", ".join(f"{kind}[4] out_{name}" for name, kind in TYPES.items())
MODELS: Mapping[str, tuple[str, str]] = {
    "affine": (
        "native",
        "(float[n, 4] x) => (float[n, 3] y, float[n, 4] hidden)"
        " <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { hidden = Relu (x) y = MatMul (hidden, w) }",
    ),
    "logarithm": ("native", "(float[3] x) => (float[3] y) { y = Log (x) }"),
    "strings": ("onnxruntime", "(string[2] x) => (string[2] y) { y = StringConcat (x, x) }"),
    "rows": (
        "onnxruntime",
        "(int64[2] ids) => (float[2, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = Gather (w, ids) }",
    ),
    "types": (
        "onnxruntime",
        f"({_EVERY}) => ({_DOUBLED}) {{ {' '.join(f'out_{name} = Concat <axis = 0> ({name}, {name})' for name in TYPES)} }}",
    ),
}
"""Backend and text of each model."""


@dataclass(frozen=True)
class Served:
    """A server process."""

    process: subprocess.Popen[str]
    http_port: int
    grpc_port: int

    def exchange(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """One request over HTTP: status, body and headers of its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read(), response.headers
        finally:
            connection.close()

    def metric(self, line: str) -> float:
        """The value of a line of the metrics."""
        lines = self.exchange("GET", "/metrics")[1].decode().splitlines()
        return next((float(text.rpartition(" ")[2]) for text in lines if text.startswith(f"{line} ")), 0.0)


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    """A server of these words of a command line, ready; it is ended behind the block, if it has not ended."""
    command = [sys.executable, "-m", "bricolage", "serve", "--http-port", "0", "--grpc-port", "0", "--json", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and select.select([process.stdout], [], [], PATIENCE_S)[0]
        told = json.loads(process.stdout.readline())
        yield Served(process, told["http_port"], told["grpc_port"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of all models, by name."""
    folder, paths = tmp_path_factory.mktemp("artifacts"), dict[str, Path]()
    for name, (backend, text) in MODELS.items():
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {name} {text}')
        with whole_on(backend, model, **({"n": 1} if "n," in text else {})) as executable:
            paths[name] = executable.save(folder / f"{name}.bricolage")
    return paths


@pytest.fixture(scope="session")
def served(artifacts: dict[str, Path]) -> Iterator[Served]:
    """All models in one server, with requests of at most a megabyte."""
    with serving(*map(str, artifacts.values()), "--request-limit", "1MB") as server:
        yield server
