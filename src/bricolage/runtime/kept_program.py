"""What a bucket's compiled program consists of, kept with its code: names, types and shapes, the folders of the code, and the
ends within which indices are surely right. With it the next process opens the program without reading a graph, so that it needs
neither onnx nor what makes code.

A record is a sealed folder of the cache (`base.sealed`). Its name is a hash of all that decides the program: the artifact, the
graph, who runs which operators, the device and its threads, and the versions of the backends. What does not fit is left alone, and
the program is compiled as it was the first time.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.kernel import Kernel
from bricolage.base import sealed
from bricolage.base.cache import compiled_directory
from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, encode, parse
from bricolage.base.late_imports import require_dependency
from bricolage.device.host import bound_to
from bricolage.device.tensor_form import SizedTensor
from bricolage.errors import BricolageError
from bricolage.graph.region_model import KeptEnds, RegionModel
from bricolage.runtime import forks
from bricolage.runtime.compile import assemble_program, put_on_cores
from bricolage.runtime.program import BoundStage, Program
from bricolage.runtime.supervised import Ends, InputGuard, SupervisedKernel, SupervisedRegion, guard_of
from bricolage.work.implementation import Implementation, Placement
from bricolage.work.values import ModelValue

_LOG = logging.getLogger(__name__)
_FORMAT = 1
_FILE = "program.json"
_MOST = 100_000
"""Of a program's stages, and of a stage's tensors."""


@dataclass(frozen=True)
class KeptStage:
    """A region's compiled code."""

    code: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}", "folder's name")]
    """Its folder, among those of the backend's version for the device."""
    region: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}", "file's name")]
    """Its model, among the artifact's files."""
    inputs: Annotated[tuple[SizedTensor, ...], Length(0, _MOST)]
    outputs: Annotated[tuple[SizedTensor, ...], Length(0, _MOST)]
    indices: Mapping[str, tuple[float, float]]
    """The ends within which the elements of these inputs are right, where indices have to be looked at."""


@dataclass(frozen=True)
class KeptProgram:
    """The stages of a program, in the order in which they run."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: Annotated[tuple[KeptStage, ...], Length(1, _MOST)]
    format: Annotated[int, Within(_FORMAT, _FORMAT)] = _FORMAT


class KeptGuard:
    """Looks at indices by ends that were kept. Only for inputs beyond them the region's graph is read."""

    def __init__(self, shown: Mapping[str, Ends], region: RegionModel) -> None:
        self.leaves, self.shown, self._region = tuple(shown), dict(shown), region
        self.empty = not shown

    def find_widest(self) -> Mapping[str, Ends]:
        """As `IndexGuard.find_widest`."""
        return self.shown

    def check(self, arrays: Mapping[str, ModelValue]) -> None:
        """As `IndexGuard.check`.

        Raises:
            MissingDependency: an element lies beyond the ends, and the package that reads graphs is not installed.
        """
        beyond = [name for name, ends in self.shown.items() if not _lies_within(arrays[name], *ends)]
        if not beyond:
            return
        low, high = self.shown[beyond[0]]
        with require_dependency(f"to judge indices in '{beyond[0]}' that are not from {low:.0f} to {high:.0f}"):
            guard = self._whole
        if guard is not None:
            guard.check(arrays)

    @cached_property
    def _whole(self) -> InputGuard | None:
        """By the graph."""
        return guard_of(self._region)


def _lies_within(array: ModelValue, low: float, high: float) -> bool:
    return not array.size or bool(low <= array.min() and array.max() <= high)


def name_record(origin: Sequence[str], placement: Placement, resources: Resources, cores: Sequence[object]) -> Path:
    """The folder of a program's record. `origin`: names of the artifact and of the graph, which say what is in them; `cores`: those
    of each stage, where it has a schedule."""
    device = resources.device
    backends = {assignment.implementation.backend: "" for assignment in placement}
    versions = {name: registry.version(name) for name in backends}
    facts = [
        _FORMAT,
        list(origin),
        [[f"{assignment.region:x}", encode(assignment.implementation)] for assignment in placement],
        versions,
        device.fingerprint(),
        sorted(device.instructions),
        asdict(device.caches),
        [device.name, list(device.cores), resources.threads, resources.alone],
        list(cores),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    name = next(iter(versions))
    return compiled_directory(device.fingerprint(), name, versions[name]) / f"program-{digest}"


def keep_program(record: Path, program: Program) -> None:
    """Writes what a program consists of, if all of its code is kept; nothing otherwise, and where the cache cannot be written."""
    stages = [_describe_stage(stage) for stage in program.stages]
    kept = [stage for stage in stages if stage is not None]
    if len(kept) < len(stages) or not program.static:
        return
    inputs, outputs = (tuple(info.name for info in ends) for ends in (program.inputs, program.outputs))
    text = json.dumps(encode(KeptProgram(inputs, outputs, tuple(kept))))
    try:
        with sealed.making(record) as folder:
            (folder / _FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        _LOG.debug("what the program consists of is not kept: %s", error)


def _describe_stage(stage: BoundStage) -> KeptStage | None:
    """None where it cannot be opened again without its graph."""
    kernel = stage.kernel
    if not isinstance(kernel, SupervisedKernel) or not kernel.kept or kernel.region.model is None:
        return None
    guard = kernel.region.guard
    indices = {} if guard is None else guard.find_widest()
    if guard is not None and not indices:
        return None
    inputs, outputs = (tuple(map(SizedTensor.of, ends)) for ends in (stage.inputs, stage.outputs))
    return KeptStage(kernel.kept, kernel.region.model.path.name, inputs, outputs, indices)


def reopen_program(
    record: Path, directory: Path, placement: Placement, resources: Resources, cores: Sequence[tuple[int, ...]]
) -> Program | None:
    """The program of a record, from the code that is kept. None where there is none, or something of it is not as it was.

    Args:
        record: see `name_record`.
        directory: of the artifact's files.
        placement: of the plan; an assignment for each stage.
        resources: what it may use.
        cores: those of each stage, where it has a schedule.
    """
    try:
        if not sealed.intact(record):
            return None
        kept = decode(KeptProgram, parse((record / _FILE).read_bytes()))
        if len(kept.stages) != len(placement):
            return None
        stages = []
        for stage, assignment, on in zip(kept.stages, placement, cores or [()] * len(placement), strict=True):
            given = put_on_cores(resources, on) if on else resources
            with bound_to(given.device):
                kernel = _reopen_kernel(stage, assignment.implementation, directory, given)
            if kernel is None:
                return None
            stages.append(BoundStage(kernel, stage.inputs, stage.outputs, on))
        return assemble_program(stages, kept.inputs, kept.outputs, resources.device)
    except (OSError, DecodeError, BricolageError) as error:
        _LOG.debug("%s is not used: %s", record, error)
        return None


def _reopen_kernel(
    stage: KeptStage, implementation: Implementation, directory: Path, resources: Resources
) -> Kernel | None:
    name, config = implementation.backend, implementation.config.of_all
    resources = resources.of_team(implementation.config.team)
    backend = registry.get(name)
    forks.use(name)
    cache = compiled_directory(resources.device.fingerprint(), name, registry.version(name))
    resources = replace(resources, cache=cache)
    model, ends = RegionModel(directory / stage.region), KeptEnds(stage.inputs, stage.outputs)
    kernel = backend.reopen(ends, stage.code, resources)
    if kernel is None:
        return None
    region = SupervisedRegion(ends, KeptGuard(stage.indices, model) if stage.indices else None, model)
    return SupervisedKernel(kernel, backend, region, resources, partial(backend.compile, model, config))
