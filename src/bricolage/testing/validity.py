"""Whether onnx and ONNX Runtime take a model as valid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    import onnxruntime as ort

CHECKER, INFERENCE, ONNX_RUNTIME = "the checker", "shape inference", "ONNX Runtime"
NO_KERNEL = "NOT_IMPLEMENTED"
"""In ONNX Runtime's words where it has no kernel of an operator for a type: that says nothing of the model."""


def find_faults(model: onnx.ModelProto, path: Path | None = None) -> dict[str, str]:
    """Who does not take a model, and why: onnx's checker, its strict shape inference, ONNX Runtime at its default level.

    Args:
        model: as it is read without weights of other files.
        path: of its file, where there are such weights.
    """
    faults: dict[str, str] = {}
    attempts: dict[str, Callable[[onnx.ModelProto, Path | None], object]] = {
        CHECKER: _check,
        INFERENCE: _infer,
        ONNX_RUNTIME: make_session,
    }
    for name, attempt in attempts.items():
        try:
            attempt(model, path)
        except Exception as error:  # of three libraries, which have no common one
            faults[name] = f"{type(error).__name__}: {error}"
    return faults


def make_session(model: onnx.ModelProto, path: Path | None = None) -> ort.InferenceSession:
    """ONNX Runtime's, at its default level."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    source = model.SerializeToString() if path is None else str(path)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _check(model: onnx.ModelProto, path: Path | None) -> None:
    """Where each input and output has a shape: the checker asks for one, though it may be left out."""
    kinds = [value.type for value in (*model.graph.input, *model.graph.output)]
    if all(kind.tensor_type.HasField("shape") for kind in kinds if kind.HasField("tensor_type")):
        onnx.checker.check_model(model if path is None else path)


def _infer(model: onnx.ModelProto, _: Path | None) -> None:
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
