"""What a tuner may choose of a region's kernels: tasks, and the values that their parameters may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, TypeAlias

from bricolage.base.codec import Length, Matching
from bricolage.work.implementation import KernelConfig, Scalar

Choice: TypeAlias = tuple[tuple[str, Scalar], ...]
"""Values of a task's parameters by name, ascending. What is not there, the backend's rules of thumb decide."""
USUAL: Choice = ()
"""All by rules of thumb."""
REGION = "region"
"""Name of a task that is the region as a whole."""
TaskName: TypeAlias = Annotated[str, Matching(r"[A-Za-z0-9_][A-Za-z0-9 ._+-]{0,199}", "name of a tuning task")]


def make_choice(values: Mapping[str, Scalar]) -> Choice:
    """These values as a choice."""
    return tuple(sorted(values.items()))


@dataclass(frozen=True)
class TuningTask:
    """Kernels of a region that do the same work, so that what is best for one is best for all: what is searched at a time
    (the task of Ansor; Zheng et al., OSDI 2020). A backend whose kernels cannot be told apart has one, the region."""

    name: TaskName
    parameters: Annotated[Mapping[str, tuple[Scalar, ...]], Length(1, 100)]
    """The values that each may have instead of what the rules of thumb say. Numbers ascend."""
    kernels: Annotated[tuple[str, ...], Length(1, 100_000)] = ("",)
    """What the names of their parameters begin with in a configuration, one for each kernel."""
    workload: str = ""
    """Identity of the work, the same wherever a region has such a kernel; empty where it is the region's."""
    kind: str = ""
    """What the kernel is, in a word; like kinds with sizes that are near may have like choices."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Extents of the work, by name."""
    flops: int = 0
    """Of one kernel."""

    def __post_init__(self) -> None:
        for name, values in self.parameters.items():
            if not values or len(set(map(repr, values))) != len(values):
                raise ValueError(f"the parameter '{name}' of task '{self.name}' has no values, or one twice")

    def holds(self, choice: Choice) -> bool:
        """Whether its parameters may have these values."""
        names = [name for name, _ in choice]
        return names == sorted(set(names)) and all(
            _among(value, self.parameters.get(name, ())) for name, value in choice
        )

    def flat(self, choice: Choice) -> dict[str, Scalar]:
        """Parameters of a configuration in which all its kernels have these values."""
        return {prefix + name: value for prefix in self.kernels for name, value in choice}


@dataclass(frozen=True)
class ConfigSpace:
    """The configurations of a region's kernels that a tuner may choose from: a base, and tasks with their parameters. What a
    configuration leaves out is decided by the backend's rules of thumb. In ten lines a backend states

        def space(self, region, config, resources):
            return ConfigSpace.of(config, {"unroll": (1, 2, 4), "tile": (16, 32, 64), "pack": (True,)})

    and gets tried whole; one that tells kernels apart states several tasks, and its own `Trials`."""

    base: KernelConfig
    """Its parameters, if it has any, are choices of earlier passes, which are carried through: tasks are those of the kernels that
    they lead to."""
    tasks: tuple[TuningTask, ...] = ()

    @classmethod
    def of(cls, config: KernelConfig, parameters: Mapping[str, tuple[Scalar, ...]]) -> ConfigSpace:
        """One task, the region as a whole; none where there is nothing to choose."""
        return cls(config.base, (TuningTask(REGION, parameters),) if parameters else ())

    @property
    def structure(self) -> dict[str, Scalar]:
        """The choices of earlier passes."""
        return dict(self.base.parameters)

    @cached_property
    def parameters(self) -> dict[str, tuple[Scalar, ...]]:
        """The values of each parameter of a configuration."""
        return {
            prefix + name: values
            for task in self.tasks
            for prefix in task.kernels
            for name, values in task.parameters.items()
        }

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, KernelConfig) or config.name != self.base.name:
            return False
        given = dict(config.parameters)
        fixed = {name: given.pop(name) for name in self.structure if name in given}
        return fixed == self.structure and all(
            _among(value, self.parameters.get(name, ())) for name, value in given.items()
        )

    @property
    def size(self) -> int:
        """How many configurations there are, kernels of a task alike."""
        return math.prod(len(values) + 1 for task in self.tasks for values in task.parameters.values())

    def config(self, choices: Mapping[str, Choice]) -> KernelConfig:
        """The configuration with these choices, by task.

        Raises:
            ValueError: a choice is not one of its task, or there is no such task.
        """
        tasks = {task.name: task for task in self.tasks}
        flat = self.structure
        for name, choice in choices.items():
            if name not in tasks or not tasks[name].holds(choice):
                raise ValueError(f"the task '{name}' has no choice {dict(choice)}")
            flat.update(tasks[name].flat(choice))
        return KernelConfig(self.base.name).tuned(flat)

    def choices(self, config: KernelConfig) -> dict[str, Choice]:
        """What a configuration chooses for each task, where that is not all by rules of thumb: what its first kernel has."""
        given = dict(config.parameters)
        by_task = {
            task.name: make_choice(
                {n: given[task.kernels[0] + n] for n in task.parameters if task.kernels[0] + n in given}
            )
            for task in self.tasks
        }
        return {name: choice for name, choice in by_task.items() if choice}


def _among(value: Scalar, values: tuple[Scalar, ...]) -> bool:
    """Whether it is one of them: True is not 1."""
    return any(value == member and type(value) is type(member) for member in values)
