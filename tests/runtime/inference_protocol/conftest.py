"""Artifacts of small models, and server processes that answer for them on free ports of 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx.parser
import pytest

from benchmarks.call_overhead import whole_on
from benchmarks.tools.server_process import Served, serving

LIBRARIES = ("uvicorn", "uvloop", "grpc", "orjson", "prometheus_client", "onnxruntime")
"""Of the extra `serve`, and a backend of the models here."""
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
