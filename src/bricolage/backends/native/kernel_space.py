"""What may be chosen of the native engine's kernels, and trials of it: kernels that do the same work are one task.

A build is a library that takes the time of each of its kernels, so that one build tries a choice for many tasks at once, among the
neighbours and with the caches that kernels have in the network. Functions are compiled one by one and kept: a build costs what is
new in it."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel_trials import Build, KernelTiming, Trial, Trials, agree
from bricolage.backends.native.loaded_library import NativeKernel, Stopwatch
from bricolage.base import scratch
from bricolage.errors import Refused
from bricolage.native.build import in_library, shared_object
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.implicit_gemm import product
from bricolage.native.cpu.kernel_choice import choice_of
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.toolchain import Objects
from bricolage.native.fuse.inspect import kernel_flops
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel, kernel_nodes
from bricolage.native.ir.tensors import Conv, MatMul, Node
from bricolage.native.library_files import LIBRARY, TITLE
from bricolage.native.module import generate, kernel_texts
from bricolage.native.select.algorithm import KernelRequest
from bricolage.native.select.algorithm_table import list_parameters
from bricolage.plan.number_sets import format_numbers
from bricolage.work.config_space import ConfigSpace, TuningTask
from bricolage.work.implementation import KernelConfig, Scalar

_TASKS_A_BUILD = 24
_SHORT = 16
"""Characters of a hash that tell workloads apart."""


def space(base: KernelConfig, plan: FusionPlan, target: CpuTarget, arithmetic: Arithmetic) -> ConfigSpace:
    """A task for each kind of work in a plan."""
    return ConfigSpace(base, tuple(task for task, _ in _tasks(plan, target, arithmetic)))


def fusions(plan: FusionPlan, target: CpuTarget, arithmetic: Arithmetic, origins: Mapping[Node, str]) -> list[str]:
    """Texts of the structural parameter that leave a fusion of two products out, wherever it does the same work: those are the
    fusions that a processor's caches decide on. `origins` are the operators that tensors come from."""
    several = {
        number
        for number, kernel in enumerate(plan.kernels)
        if len({origins[node] for node in kernel_nodes(kernel, plan)[0] if node in origins}) > 1
    }
    alike: dict[tuple[str, ...], set[int]] = {}
    for number in sorted(several):
        if plan.kernels[number].fused_producer is not None:
            request = KernelRequest(plan.kernels[number], plan, target, arithmetic)
            alike.setdefault(kernel_texts(request), set()).add(number)
    return [format_numbers(tuple(sorted(several - same))) for same in alike.values()]


def _tasks(plan: FusionPlan, target: CpuTarget, arithmetic: Arithmetic) -> list[tuple[TuningTask, tuple[int, ...]]]:
    """Tasks with the numbers of their kernels."""
    alike: dict[tuple[str, ...], list[int]] = {}
    requests = [KernelRequest(kernel, plan, target, arithmetic) for kernel in plan.kernels]
    for number, request in enumerate(requests):
        alike.setdefault(kernel_texts(request), []).append(number)
    tasks = []
    for texts, numbers in alike.items():
        parameters = _parameters(requests[numbers[0]])
        if not parameters:
            continue
        kernel = plan.kernels[numbers[0]]
        words = "\0".join([target.isa.name, str(target.threads), str(target.l2_bytes), *texts])
        sizes = _sizes(kernel, target)
        task = TuningTask(
            f"{kernel.kind}-{numbers[0]}",
            parameters,
            tuple(f"{number}." for number in numbers),
            hashlib.sha256(words.encode()).hexdigest()[:_SHORT],
            kernel.kind,
            sizes,
            kernel_flops(kernel, plan),
        )
        tasks.append((task, tuple(numbers)))
    return tasks


def _sizes(kernel: PlannedKernel, target: CpuTarget) -> dict[str, int]:
    """Extents of a product, or the elements of the result."""
    if isinstance(kernel.root, (Conv, MatMul)):
        p = product(kernel.root, target.lanes)
        taps = math.prod(kernel.root.weight.shape[2:]) if isinstance(kernel.root, Conv) else 1
        return {"batch": p.batch, "m": p.m, "n": p.n, "k": p.k, "taps": taps}
    return {"elements": max(1, math.prod(kernel.result.shape))}


def _parameters(request: KernelRequest) -> dict[str, tuple[Scalar, ...]]:
    """The values of a kernel's parameters that make another code than the rules of thumb do, each by itself."""
    usual = kernel_texts(request)
    parameters: dict[str, tuple[Scalar, ...]] = {}
    for name, values in list_parameters(request).items():
        texts = {usual}
        different: list[Scalar] = []
        for value in values:
            changed = kernel_texts(replace(request, choice=choice_of(((name, value),))))
            if changed not in texts:
                texts.add(changed)
                different.append(value)
        if different:
            parameters[name] = tuple(different)
    return parameters


class NativeTrials(Trials):
    """Of one plan."""

    tasks_a_build = _TASKS_A_BUILD

    def __init__(
        self, region: RegionModel, plan: FusionPlan, target: CpuTarget, arithmetic: Arithmetic, resources: Resources
    ) -> None:
        """Compiles the usual library.

        Raises:
            Refused: the C does not compile.
        """
        self.builds_at_once = max(1, target.threads)
        self._region, self._plan, self._target, self._arithmetic = region, plan, target, arithmetic
        self._resources = resources
        self._kernels = {task.name: list(numbers) for task, numbers in _tasks(plan, target, arithmetic)}
        self._packed: dict[object, np.ndarray] = {}
        folder = scratch.temporary()
        weakref.finalize(self, scratch.remove, folder)
        self._objects = Objects(folder, max(1, target.threads))
        self._usual = self._build_watch({})

    def usual(self, rounds: int) -> Mapping[str, float]:
        spent = np.median([self._usual.run() for _ in range(rounds)], axis=0)
        return {name: float(spent[kernels].sum()) for name, kernels in self._kernels.items()}

    def run(self, builds: Sequence[Build], rounds: int) -> list[Mapping[str, Trial]]:
        candidates = [self._made(build) for build in builds]
        watches = [candidate for candidate in candidates if isinstance(candidate, Stopwatch)]
        turns = [[watch.run() for watch in (self._usual, *watches)] for _ in range(rounds if watches else 0)]
        trials: list[Mapping[str, Trial]] = []
        for build, candidate in zip(builds, candidates, strict=True):
            if isinstance(candidate, Stopwatch):
                trials.append(self._timings(build, turns, 1 + watches.index(candidate)))
            elif len(build) == 1:
                trials.append(dict.fromkeys(build, candidate))
            else:  # one of them is to blame
                alone = [self.run([{task: choice}], rounds)[0] for task, choice in build.items()]
                trials.append({task: trial for single in alone for task, trial in single.items()})
        return trials

    def _timings(self, build: Build, turns: Sequence[Sequence[np.ndarray]], at: int) -> dict[str, Trial]:
        """Of one build, number `at` in each turn; the first is the usual one."""
        timings: dict[str, Trial] = {}
        for task in build:
            kernels = self._kernels[task]
            ms, usual = (tuple(float(turn[position][kernels].sum()) for turn in turns) for position in (at, 0))
            timings[task] = KernelTiming(ms, usual)
        return timings

    def _made(self, build: Build) -> Stopwatch | str:
        """A library with these choices, or why there is none."""
        try:
            watch = self._build_watch(build)
        except Refused as error:
            return error.sentence
        return watch if agree(watch.outputs, self._usual.outputs) else "its answer is another"

    def _build_watch(self, build: Build) -> Stopwatch:
        """A library in which tasks have these choices.

        Raises:
            Refused: the C does not compile.
        """
        flags = self._arithmetic.flags(self._target.isa, of_bytes=self._plan.of_bytes)
        choices = {number: choice_of(choice) for task, choice in build.items() for number in self._kernels[task]}
        source = generate(self._plan, self._target, self._arithmetic, choices, timed=True, packed=self._packed)
        with scratch.using(scratch.temporary()) as folder:
            functions = source.objects
            self._objects.add(functions, flags, TITLE)
            main = in_library(source, source.main)
            self._objects.link(main, functions, flags, folder / LIBRARY, TITLE, shared_object())
            kernel = NativeKernel(self._region, folder, self._resources, source.weights)
        return Stopwatch(kernel, self._region, len(self._plan.kernels))
