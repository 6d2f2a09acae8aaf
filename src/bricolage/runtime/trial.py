"""The process of one trial: compiles a program, runs it twice, frees it, compares, and writes what is wrong, if anything.

    python -m bricolage.runtime.trial FOLDER

The folder holds the request (see `bricolage.runtime.untried_sizes`). The answer is written last: no answer means that the process
died.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.base import scratch, telemetry
from bricolage.base.codec import decode
from bricolage.device.device import Device
from bricolage.errors import BricolageError, InvalidGraph, NoReference, ReferenceLimit
from bricolage.graph.graph import Graph
from bricolage.graph.work import flops
from bricolage.plan.program_step import Step
from bricolage.runtime.compile import compile_program
from bricolage.runtime.prepared import Prepared
from bricolage.runtime.process_environment import end_with_parent
from bricolage.verify.compare import too_far
from bricolage.verify.inputs import draw_inputs
from bricolage.verify.named_arrays import load_values
from bricolage.verify.reference import evaluate
from bricolage.verify.variations import beyond_rounding
from bricolage.work.values import ModelValue

_COMPARED = 2e7
"""Floating-point operations up to which answers are compared with the reference: that takes a second at most. ONNX's own
evaluates it, since importing torch takes longer than all else."""


def run_trial(request: Mapping[str, Any]) -> str:
    """What is wrong with a program; empty where nothing is."""
    model = ir.load(request["model"])
    arrays = load_values(Path(request["arrays"])) if request["arrays"] else draw_inputs(model)
    try:
        outputs = _answers(request, arrays)
    except BricolageError as error:
        return error.sentence
    except Exception as error:  # whatever a backend raises: it cannot be run so
        return f"{type(error).__name__}: {str(error).strip()[:300]}"
    if sum(map(flops, Graph(model).operators)) > _COMPARED:
        return ""
    try:
        excess = beyond_rounding(model, arrays, outputs, partial(evaluate, library="onnx"))
    except (NoReference, InvalidGraph, ReferenceLimit):
        return ""
    return too_far(excess, request["bound"]) if excess.excess > request["bound"] else ""


def _answers(request: Mapping[str, Any], arrays: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
    steps = [decode(Step, step, "step") for step in request["steps"]]
    resources = Resources(request["threads"], decode(Device, request["device"], "device"), request["alone"])
    program = compile_program(steps, request["inputs"], request["outputs"], resources)
    prepared = Prepared(program, frozenset(step.implementation.backend for step in steps), threading.RLock())
    prepared.run(arrays)
    outputs = prepared.run(arrays)
    del prepared, program
    gc.collect()  # what a kernel wrote beyond its buffers shows when they are freed
    return {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in outputs.items()}


def main(folder: Path) -> None:
    """Carries out the request in a folder."""
    faulthandler.enable(all_threads=False)
    telemetry.disable()
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    end_with_parent(request["parent"])
    for name, where in request["register"].items():
        registry.register(name, where)
    reason = run_trial(request)
    with scratch.write_whole(folder / "answer.json") as draft:
        draft.write_text(json.dumps({"reason": reason}), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # frameworks that stumble over the end of the interpreter say nothing of the program


if __name__ == "__main__":
    main(Path(sys.argv[1]))
