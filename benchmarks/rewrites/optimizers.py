"""Other tools that make an ONNX model smaller, each run in a process of its own, so that a crash costs one cell of a table.

    python -m benchmarks.rewrites.optimizers onnxslim model.onnx smaller.onnx

Each does all that it can while keeping float32: onnxsim and onnxslim with their defaults, onnxscript's optimizer with
everything inlined, ONNX Runtime at level all.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import onnx

_SECONDS = 600.0
_BIG = 1 << 30  # bytes of weights from which on they are written beside the model


class Failed(Exception):
    """The tool gave no model; the text is its last line."""


def installed() -> list[str]:
    """Names of the tools that are there."""
    return [name for name in TOOLS if importlib.util.find_spec(name) is not None]


def versions() -> dict[str, str]:
    """Of the tools that are there."""
    return {name: version(name) for name in installed()}


def run(tool: str, source: Path, target: Path) -> Path:
    """Writes to `target` what `tool` makes of the model in `source`; `target`.

    Raises:
        Failed: it crashed, refused the model, or took longer than ten minutes.
    """
    command = [sys.executable, "-m", "benchmarks.rewrites.optimizers", tool, str(source), str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, encoding="utf-8")
    except subprocess.TimeoutExpired:
        raise Failed(f"took longer than {_SECONDS:.0f} s") from None
    if done.returncode or not target.exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failed(lines[-1] if lines else f"exit code {done.returncode}")
    return target


def _save(model: onnx.ModelProto, target: Path) -> None:
    external = model.ByteSize() > _BIG
    onnx.save(model, target, save_as_external_data=external, location=f"{target.name}.data" if external else None)


def _onnxsim(source: Path, target: Path) -> None:
    import onnxsim

    simplified, valid = onnxsim.simplify(onnx.load(source))
    if not valid:
        raise Failed("its own check failed")
    _save(simplified, target)


def _onnxslim(source: Path, target: Path) -> None:
    import onnxslim

    _save(onnxslim.slim(onnx.load(source)), target)


def _onnxscript(source: Path, target: Path) -> None:
    import onnx_ir as ir
    from onnxscript import optimizer

    model = ir.from_proto(onnx.load(source))
    optimizer.optimize(model, num_iterations=10, onnx_shape_inference=True)
    _save(ir.to_proto(model), target)


def _onnxruntime(source: Path, target: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{target.name}.data")
    options.log_severity_level = 3
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxscript": _onnxscript,
    "onnxruntime": _onnxruntime,
}
"""By the name of their package."""


if __name__ == "__main__":
    TOOLS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
