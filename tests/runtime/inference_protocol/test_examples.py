"""An artifact in Triton's Python backend. There is no wheel of Triton's server: a small module has the names of
`triton_python_backend_utils` that Triton's documentation gives, and the test sends what the server would."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.runtime.load import load
from examples.serving.triton.write_folder import write_folder
from tests.needed import needs

needs("onnxruntime")


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name, self._array = name, array

    def as_numpy(self) -> np.ndarray:
        return self._array


class Request:
    def __init__(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> None:
        self.tensors, self._outputs = {name: Tensor(name, array) for name, array in inputs.items()}, outputs

    def requested_output_names(self) -> Sequence[str]:
        return self._outputs


class Response:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: str | None = None) -> None:
        self.outputs, self.error = {tensor.name: tensor.as_numpy() for tensor in output_tensors}, error


@pytest.fixture
def backend_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    stub: Any = types.ModuleType("triton_python_backend_utils")
    stub.Tensor, stub.InferenceRequest, stub.InferenceResponse, stub.TritonError = Tensor, Request, Response, str
    stub.get_input_tensor_by_name = lambda request, name: request.tensors[name]
    monkeypatch.setitem(sys.modules, stub.__name__, stub)


def start_model(folder: Path) -> Any:
    """The model of a folder, as Triton's backend starts it."""
    spec = importlib.util.spec_from_file_location("triton_model", folder / "1" / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_repository": str(folder), "model_version": "1", "model_name": folder.name})
    return model


def test_a_folder_for_triton(artifacts: Mapping[str, Path], tmp_path: Path, backend_utils: None) -> None:
    folder = write_folder(artifacts["affine"], tmp_path)
    text = (folder / "config.pbtxt").read_text(encoding="utf-8")
    assert '{ name: "x", data_type: TYPE_FP32, dims: [-1, 4] }' in text and "max_batch_size: 0" in text
    model = start_model(folder)
    rows = np.array([[1, -2, 3, -4]], np.float32)
    first, second, refused = model.execute(
        [Request({"x": rows}, ["y"]), Request({"x": rows * 2}, ["hidden", "y"]), Request({"x": rows[:, :2]}, ["y"])]
    )
    expected = load(artifacts["affine"]).run({"x": rows})
    np.testing.assert_array_equal(first.outputs["y"], expected["y"])
    assert list(second.outputs) == ["hidden", "y"]
    np.testing.assert_array_equal(second.outputs["hidden"], expected["hidden"] * 2)
    assert "shape 1×2; the model takes n×4" in refused.error and not refused.outputs
    model.finalize()


def test_strings_of_triton(artifacts: Mapping[str, Path], tmp_path: Path, backend_utils: None) -> None:
    folder = write_folder(artifacts["strings"], tmp_path)
    assert "TYPE_STRING" in (folder / "config.pbtxt").read_text(encoding="utf-8")
    model = start_model(folder)
    (response,) = model.execute([Request({"x": np.array(["é".encode(), b""], object)}, ["y"])])
    assert response.outputs["y"].tolist() == ["éé", ""]
    model.finalize()


def test_a_type_that_triton_s_backend_cannot_read(artifacts: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="bfloat16"):
        write_folder(artifacts["types"], tmp_path)
