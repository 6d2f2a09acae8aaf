"""From steps on disk to a program in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel import Kernel
from bricolage.errors import BackendFailed, BricolageError
from bricolage.graph.graph import TensorInfo
from bricolage.plan.step import Step
from bricolage.runtime.program import Program, Stage


def compile_step(step: Step, resources: Resources, *, passing: bool = False) -> tuple[Kernel, RegionModel]:
    """Compiles one region. One that is only `passing` (it will hardly be asked for again) is kept in the cache only if
    compiling it takes long.

    Raises:
        Refused: the backend declines the region.
        BackendFailed: anything else went wrong in the backend.
    """
    region = RegionModel(step.path)
    backend = registry.get(step.backend)
    if passing and not backend.compiles_slowly:
        resources = replace(resources, cache=None)
    try:
        return backend.compile(region, step.variant, resources), region
    except BricolageError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise BackendFailed(backend=step.backend, stage="to compile", reason=reason[:300]) from error


def compile_program(
    steps: Sequence[Step],
    inputs: Sequence[str],
    outputs: Sequence[str],
    resources: Resources,
    *,
    passing: bool = False,
) -> Program:
    """Compiles all steps, in executable order. `inputs` and `outputs` are the names of the tensors at the ends; for
    `passing` see `compile_step`.

    Raises:
        Refused, BackendFailed: see `compile_step`.
        InvalidGraph: the steps do not fit together.
    """
    stages: list[Stage] = []
    known: dict[str, TensorInfo] = {}
    for step in steps:
        kernel, region = compile_step(step, resources, passing=passing)
        stages.append(Stage(kernel, region.inputs, region.outputs))
        for info in region.inputs:
            known.setdefault(info.name, info)
    return Program(stages, [known[name] for name in inputs if name in known], outputs)
