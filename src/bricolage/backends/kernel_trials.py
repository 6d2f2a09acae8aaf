"""Trials: configurations of a region's kernels, timed in turns with the default one, in this process.

A tuner asks for *builds*: each has another choice for some of the tasks, the others being as usual. Backends that can time kernels
one by one put many choices into a build; the others have the region as their only task.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeAlias

import numpy as np

from bricolage.backends.kernel import Array, Call, Kernel
from bricolage.base.codec import Within
from bricolage.device.buffers import allocate_aligned
from bricolage.errors import BricolageError
from bricolage.graph.region_model import RegionModel, Resources
from bricolage.work.config_space import USUAL, Choice, ConfigSpace
from bricolage.work.implementation import KernelConfig

Milliseconds: TypeAlias = Annotated[float, Within(0.0, 1e9)]
Build: TypeAlias = Mapping[str, Choice]
"""Choices by task; tasks that are not there are as usual."""
_SAMPLE_MS = 1.0
"""Calls are repeated until they take so long together."""
_AGREE = 0.05
"""How far an answer may be off from the usual one, as a part of the largest element, before its choice counts as wrong. Rounding
to bfloat16 is far below, another order of memory far above; what is chosen is compared with float64 later."""


@dataclass(frozen=True)
class KernelTiming:
    """Milliseconds of all kernels of a task, round by round, and of the same as usual, which took turns."""

    ms: tuple[Milliseconds, ...]
    usual_ms: tuple[Milliseconds, ...]

    def __post_init__(self) -> None:
        if not self.ms or len(self.ms) != len(self.usual_ms):
            raise ValueError("a timing has as many rounds of both, and one at least")

    @property
    def share(self) -> float:
        """Median part of the usual time that it takes; 1 where both are too short to be seen."""
        shares = [
            trial_ms / usual if usual > 0 else 1.0 for trial_ms, usual in zip(self.ms, self.usual_ms, strict=True)
        ]
        return float(np.median(shares))


Trial: TypeAlias = KernelTiming | str
"""What came of a choice: its timing, or why there is none."""


class Trials(ABC):
    """Of one region, configuration and number of threads."""

    tasks_a_build: int = 1
    """How many tasks should have another choice than the usual in one build; more make it dearer than they save."""
    builds_at_once: int = 1
    """How many builds are best asked for together: they are made side by side."""

    @abstractmethod
    def usual(self, rounds: int) -> Mapping[str, float]:
        """Milliseconds of each task's kernels as by default, all kernels of a task together; medians of `rounds` rounds."""

    @abstractmethod
    def run(self, builds: Sequence[Build], rounds: int) -> list[Mapping[str, Trial]]:
        """What came of each choice of each build. All builds and the default one take turns for `rounds` rounds."""


class Compiler(Protocol):
    """What trials ask of a backend."""

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        """As `Backend.compile`."""
        ...


class RegionTrials(Trials):
    """Of a backend that compiles and times a region as a whole."""

    def __init__(self, backend: Compiler, space: ConfigSpace, region: RegionModel, resources: Resources) -> None:
        """Compiles the usual configuration.

        Raises:
            Refused: the backend declines it.
        """
        self._backend, self._space, self._region, self._resources = backend, space, region, resources
        self._usual = self._bind_call({})

    def usual(self, rounds: int) -> Mapping[str, float]:
        call, _ = self._usual
        spent = float(np.median([call_milliseconds(call) for _ in range(rounds)]))
        return {task.name: spent for task in self._space.tasks}

    def run(self, builds: Sequence[Build], rounds: int) -> list[Mapping[str, Trial]]:
        candidates = [self._made(build) for build in builds]
        calls = [self._usual[0], *(candidate for candidate in candidates if not isinstance(candidate, str))]
        turns = [[call_milliseconds(call) for call in calls] for _ in range(rounds)]
        usual = tuple(times[0] for times in turns)
        trials: list[Mapping[str, Trial]] = []
        ran = 0
        for build, candidate in zip(builds, candidates, strict=True):
            if isinstance(candidate, str):
                trials.append(dict.fromkeys(build, candidate))
            else:
                ran += 1
                trials.append(dict.fromkeys(build, KernelTiming(tuple(times[ran] for times in turns), usual)))
        return trials

    def _made(self, build: Build) -> Call | str:
        """A call of a build, or why there is none."""
        try:
            call, outputs = self._bind_call(build)
        except BricolageError as error:
            return error.sentence
        return call if agree(outputs, self._usual[1]) else "its answer is another"

    def _bind_call(self, build: Build) -> tuple[Call, list[Array]]:
        config = self._space.config({task: choice for task, choice in build.items() if choice != USUAL})
        return on_random_inputs(self._backend.compile(self._region, config, self._resources), self._region)


def on_random_inputs(kernel: Kernel, region: RegionModel) -> tuple[Call, list[Array]]:
    """A call of a kernel with inputs drawn at random (integers are 0, which is an index everywhere), and the arrays of its
    outputs. It has run once. The call keeps the arrays: a kernel may know them by their addresses alone."""
    draw = np.random.default_rng(0)
    inputs, outputs = ([allocate_aligned(i.sizes, i.numpy) for i in infos] for infos in (region.inputs, region.outputs))
    for array in inputs:
        array[...] = draw.standard_normal(array.shape) if _is_float(array) else 0
    call = kernel.bind(inputs, outputs)
    call()

    def call_on_kept(_kept: tuple[list[Array], list[Array]] = (inputs, outputs)) -> None:
        call()

    return call_on_kept, outputs


def agree(answers: Sequence[Array], usual: Sequence[Array]) -> bool:
    """Whether an answer is the usual one but for rounding."""
    for answer, other in zip(answers, usual, strict=True):
        if not _is_float(answer):
            if not np.array_equal(answer, other):
                return False
            continue
        a, b = answer.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(finite, np.isfinite(a)):
            return False
        largest = float(np.max(np.abs(b[finite]), initial=0.0))
        if float(np.max(np.abs(a[finite] - b[finite]), initial=0.0)) > _AGREE * largest:
            return False
    return True


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def call_milliseconds(call: Callable[[], object]) -> float:
    """Of one call, from as many as take a millisecond."""
    count, begun = 0, time.perf_counter()
    while (spent := (time.perf_counter() - begun) * 1e3) < _SAMPLE_MS or not count:
        call()
        count += 1
    return spent / count
