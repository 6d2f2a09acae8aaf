"""From steps on disk to a program in memory."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel import Kernel
from bricolage.base.cache import compiled_directory
from bricolage.device.device import Device
from bricolage.device.host import bound_to
from bricolage.device.tensor_form import TensorForm
from bricolage.errors import BackendFailed, BricolageError, CacheNotWritable
from bricolage.graph.region_model import FileModel
from bricolage.plan.program_step import Step
from bricolage.runtime import forks
from bricolage.runtime.program import BoundStage, Program
from bricolage.runtime.supervised import supervise_kernel

_LOG = logging.getLogger(__name__)
_UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EIO})


def region_model(step: Step) -> RegionModel:
    """What a backend is given to compile."""
    return RegionModel(step.path) if step.ends is None else FileModel(step.path, *step.ends)


def compile_step(
    step: Step, resources: Resources, *, caching: bool = True, ephemeral: bool = False
) -> tuple[Kernel, RegionModel]:
    """Compiles one region. Compiled code is kept between runs where `caching`, and where the cache can be written; of an
    `ephemeral` region (it will hardly be asked for again) only if compiling it takes long.

    Raises:
        Refused: the backend declines the region.
        MissingBackend: it is not installed.
        ForkedProcess: it does not run in a process that was forked after it was loaded.
        BackendFailed: anything else went wrong in the backend.
    """
    region = region_model(step)
    name, config = step.implementation.backend, step.implementation.config.of_all
    resources = resources.of_team(step.implementation.config.team)
    backend = registry.get(name)
    forks.use(name)
    if caching and (backend.compiles_slowly or not ephemeral):
        cache = compiled_directory(resources.device.fingerprint(), name, registry.version(name))
        try:
            cache.mkdir(parents=True, exist_ok=True)
            resources = replace(resources, cache=cache)
        except OSError as error:
            _not_kept(error)
    try:
        try:
            kernel = backend.compile(region, config, resources)
        except OSError as error:
            if resources.cache is None or error.errno not in _UNWRITABLE:
                raise
            _not_kept(error)
            kernel = backend.compile(region, config, replace(resources, cache=None))
        again = partial(backend.compile, region, config)
        return supervise_kernel(kernel, backend, region, resources, again), region
    except BricolageError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise BackendFailed(backend=name, stage="to compile", reason=reason[:300]) from error


def _not_kept(error: OSError) -> None:
    _LOG.warning("compiled code cannot be kept (%s): it is compiled again each time. %s", error, CacheNotWritable.hint)


def compile_program(
    steps: Sequence[Step],
    inputs: Sequence[str],
    outputs: Sequence[str],
    resources: Resources,
    *,
    caching: bool = True,
    ephemeral: bool = False,
    cores: Sequence[tuple[int, ...]] | None = None,
    like: Program | None = None,
) -> Program:
    """Compiles all steps, in executable order. `inputs` and `outputs` are the names of the tensors at the ends; for
    `caching` and `ephemeral` see `compile_step`. `cores` are those of each step, where they have a schedule. `like` is a
    program of the same steps for as many threads, on other cores: what can be shared with it is.

    Raises:
        Refused, MissingBackend, BackendFailed: see `compile_step`.
        BadOption: a schedule names a core that the device does not have.
        InvalidGraph: the steps do not fit together.
    """
    stages: list[BoundStage] = []
    for step, step_cores in zip(steps, cores or ((),) * len(steps), strict=True):
        given = put_on_cores(resources, step_cores) if step_cores else resources
        with bound_to(given.device):  # threads that a backend starts stay on the cores on which they are started
            twin = None if like is None else like.stages[len(stages)]
            kernel = None if twin is None else twin.kernel.replica(given)
            if twin is not None and kernel is not None:
                stages.append(BoundStage(kernel, twin.inputs, twin.outputs, step_cores))
            else:
                kernel, region = compile_step(step, given, caching=caching, ephemeral=ephemeral)
                stages.append(BoundStage(kernel, region.inputs, region.results, step_cores))
    return assemble_program(stages, inputs, outputs, resources.device)


def assemble_program(
    stages: Sequence[BoundStage], inputs: Sequence[str], outputs: Sequence[str], device: Device
) -> Program:
    """The program of stages in their order, whose inputs are those of the names that a stage reads.

    Raises:
        InvalidGraph: the stages do not fit together.
    """
    stage_inputs: dict[str, TensorForm] = {}
    for info in (info for stage in stages for info in stage.inputs):
        stage_inputs.setdefault(info.name, info)
    return Program(stages, [stage_inputs[name] for name in inputs if name in stage_inputs], outputs, device)


def put_on_cores(resources: Resources, cores: tuple[int, ...]) -> Resources:
    """Of a step with a schedule: its cores, a thread for each, shared with other steps."""
    group = resources.device.group(cores)
    return replace(resources, device=group, threads=min(resources.threads, group.threads), alone=False)
