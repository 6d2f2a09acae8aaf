"""One trial on one backend, the way regions run: a file with its weights beside it, compiled, bound to buffers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from benchmarks.capabilities.compare import difference
from benchmarks.capabilities.trials import Trial
from bricolage.backends.interface import Backend, RegionModel, Resources
from bricolage.errors import BricolageError, Refused, UnsupportedOperator
from bricolage.graph.extract import share_weights, write_model
from bricolage.runtime.buffers import aligned

Outcome = Literal["passes", "refuses", "wrong", "crashes", "times-out", "void"]
"""`void`: the expected outputs do not hold for the version tried, so the trial says nothing."""
_REASON_LENGTH = 160


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    reason: str = ""


def attempt(backend: Backend, trial: Trial, resources: Resources) -> Result:
    """Compiles and runs one trial in this process and compares the outputs with the expected ones. Static models run
    through `Kernel.bind` and must give the same answer in two calls; all others through `Kernel.run`."""
    with tempfile.TemporaryDirectory() as folder:
        model = ir.from_proto(trial.model)
        path = Path(folder) / "region.onnx"
        share_weights([model], Path(folder))
        write_model(model, path)
        region = RegionModel(path)
        try:
            kernel = backend.compile(region, backend.variants("highest")[0], resources)
            static = all(info.static for info in (*region.inputs, *region.outputs))
            runs = _bound(kernel, region, trial) if static else [kernel.run(list(trial.inputs))]
        except (Refused, UnsupportedOperator) as error:
            return Result("refuses", _short(error.facts.get("reason", error)))
        except BricolageError as error:
            return Result("refuses", _short(error.sentence))
        except Exception as error:  # whatever a framework raises is an outcome here
            return Result("refuses", _short(f"{type(error).__name__}: {error}"))
        for found in runs:
            wrong = difference(trial.outputs, found, trial.rtol, trial.atol)
            if wrong is not None:
                return Result("void") if trial.doubtful() else Result("wrong", _short(wrong))
    return Result("passes")


def _bound(kernel: object, region: RegionModel, trial: Trial) -> list[list[object]]:
    inputs = [aligned(info.sizes, info.numpy) for info in region.inputs]
    outputs = [aligned(info.sizes, info.numpy) for info in region.outputs]
    for buffer, value in zip(inputs, trial.inputs, strict=True):
        np.copyto(buffer, np.asarray(value).reshape(buffer.shape), casting="no")
    call = kernel.bind(inputs, outputs)  # type: ignore[attr-defined]
    runs: list[list[object]] = []
    for _ in range(2):
        for buffer in outputs:
            buffer.view(np.uint8).fill(0x5A) if buffer.ndim else buffer.reshape(1).view(np.uint8).fill(0x5A)
        call()
        runs.append([buffer.copy() for buffer in outputs])
    return runs


def _short(reason: object) -> str:
    return " ".join(str(reason).split())[:_REASON_LENGTH]
