"""What may be chosen of TVM's tensor programs, and trials of it, one program after another.

TVM's own tuner ends in a segmentation fault with the FFI that is pinned (`tvm`), but its parts work. There are two families of
schedules: our rule *tile* of `tvm_schedule` with other blocks, orders and depths; and programs that MetaSchedule's rules make
with their choices drawn at random ("Tensor Program Optimization with Probabilistic Programs", Shao et al., NeurIPS 2022), named
by the number that seeds the draw. A choice is a text, kept as a parameter under the name of the program's function.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bricolage.backends.kernel_trials import Build, KernelTiming, Trial, Trials, agree, call_milliseconds
from bricolage.backends.tvm_sampling import sample_schedule
from bricolage.backends.tvm_schedule import TILINGS, Choice, by_tiling, scheduled_by_rule
from bricolage.work.config_space import TuningTask
from bricolage.work.implementation import Scalar

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.runtime import Tensor
    from tvm.target import Target
    from tvm.tirx import PrimFunc

_Bound: TypeAlias = tuple[Callable[[], object], "list[Tensor]"]
"""A call of a program, and its arguments."""

SEEDS = 512
"""Numbers that a sampled program may have."""
SCHEDULE = ""
"""Name of the only parameter of a program, behind that of its function."""
_BUILDS_AT_ONCE = 4
_PROMISING = 1.3
"""A candidate whose first call takes longer than that times the usual is measured once more at most."""
_SHORT = 16


def parse_choice(text: Scalar) -> Choice:
    """What schedules a tensor program as a choice says.

    Raises:
        ValueError: the text is no choice.
    """
    word, _, rest = str(text).partition(" ")
    if word == "tile":
        tiling = next((candidate for candidate in TILINGS if str(candidate) == text), None)
        if tiling is None:
            raise ValueError(f"there is no tiling '{rest}'")
        return lambda function, target, threads: by_tiling(function, target, threads, tiling)
    if word == "sample" and 0 < int(rest) <= SEEDS:
        return lambda function, target, threads: sample_schedule(function, target, threads, int(rest))
    raise ValueError(f"there is no schedule '{text}'")


def choices() -> tuple[Scalar, ...]:
    """All ways to schedule a tensor program other than the rules of thumb."""
    return (*map(str, TILINGS), *(f"sample {seed}" for seed in range(1, SEEDS + 1)))


def tasks(module: IRModule) -> list[TuningTask]:
    """One for each program of a module; equal programs are one task."""
    return [_task(names, function) for names, function in distinct(module)]


def _task(names: Sequence[str], function: PrimFunc) -> TuningTask:
    text = str(function)
    shapes = [[int(size) for size in parameter.shape] for parameter in function.params]
    sizes = {f"elements of {position}": max(1, math.prod(shape)) for position, shape in enumerate(shapes)}
    kind = names[0].rstrip("0123456789").rstrip("_")
    workload = hashlib.sha256(text.encode()).hexdigest()[:_SHORT]
    return TuningTask(names[0], {SCHEDULE: choices()}, tuple(names), workload, kind, sizes)


class TvmTrials(Trials):
    """Of the programs of one module: each is compiled and called alone."""

    tasks_a_build = 1
    builds_at_once = _BUILDS_AT_ONCE

    def __init__(self, module: IRModule, target: Target, threads: int, choose_threads: Callable[[], None]) -> None:
        """`choose_threads` sets the number of threads for what is called after it."""
        self._choose_threads = choose_threads
        self._target, self._threads = target, threads
        self._functions = {names[0]: (len(names), function) for names, function in distinct(module)}
        self._usual: dict[str, _Bound | None] = {}

    def usual(self, rounds: int) -> Mapping[str, float]:
        self._choose_threads()
        timings: dict[str, float] = {}
        for name, (count, _) in self._functions.items():
            usual = self._usually(name)
            if usual is not None:
                timings[name] = count * statistics.median(call_milliseconds(usual[0]) for _ in range(rounds))
        return timings

    def run(self, builds: Sequence[Build], rounds: int) -> list[Mapping[str, Trial]]:
        self._choose_threads()
        return [
            {task: self._trial(task, str(dict(choice)[SCHEDULE]), rounds) for task, choice in build.items()}
            for build in builds
        ]

    def _trial(self, name: str, text: str, rounds: int) -> Trial:
        usual, (count, function) = self._usually(name), self._functions[name]
        candidate = self._build_call(function, parse_choice(text))
        if usual is None or candidate is None:
            return "the program cannot be scheduled so"
        answers = [[np.asarray(_numbers(argument)) for argument in arguments] for _, arguments in (candidate, usual)]
        if not agree(*answers):
            return "its answer is another"
        first = call_milliseconds(usual[0]), call_milliseconds(candidate[0])
        if first[1] > _PROMISING * first[0]:
            return KernelTiming((count * first[1],), (count * first[0],))
        turns = [(call_milliseconds(usual[0]), call_milliseconds(candidate[0])) for _ in range(rounds)]
        return KernelTiming(tuple(count * ms for _, ms in turns), tuple(count * ms for ms, _ in turns))

    def _usually(self, name: str) -> _Bound | None:
        if name not in self._usual:
            self._usual[name] = self._build_call(self._functions[name][1], scheduled_by_rule)
        return self._usual[name]

    def _build_call(self, function: PrimFunc, choice: Choice) -> _Bound | None:
        """A call of the program as a choice schedules it, and its arguments; None where it cannot be."""
        import tvm

        try:
            with self._target:
                schedule = choice(function, self._target, self._threads)
                if schedule is None:
                    return None
                scheduled = schedule.mod["main"].with_attr("global_symbol", "main")
                built = tvm.compile(tvm.IRModule({"main": scheduled}), target=self._target)["main"]
            arguments = _arguments(function)
            built(*arguments)
        except (tvm.error.InternalError, ValueError, TypeError, RuntimeError):
            return None
        return lambda: built(*arguments), arguments


def _numbers(tensor: Tensor) -> np.ndarray:
    """A TVM tensor's numbers; those of bfloat16 as they are stored."""
    array: np.ndarray = tensor.numpy()
    return array


def distinct(module: IRModule) -> list[tuple[list[str], PrimFunc]]:
    """The tensor programs of a module, equal ones once, with the names of all their functions in order."""
    import tvm
    import tvm_ffi

    by_hash: dict[int, list[tuple[list[str], PrimFunc]]] = {}
    for variable, function in sorted(module.functions_items(), key=lambda pair: str(pair[0].name_hint)):
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        plain = function.without_attr("global_symbol") if "global_symbol" in (function.attrs or {}) else function
        alike = by_hash.setdefault(int(tvm_ffi.structural_hash(plain)), [])
        for names, other in alike:
            if tvm_ffi.structural_equal(plain, other):
                names.append(variable.name_hint)
                break
        else:
            alike.append(([variable.name_hint], plain))
    return [program for same in by_hash.values() for program in same]


def _arguments(function: PrimFunc) -> list[Tensor]:
    """Numbers for every buffer of a program."""
    import tvm

    rng = np.random.default_rng(0)
    arguments: list[Tensor] = []
    for parameter in function.params:
        shape, dtype = [int(size) for size in parameter.shape], str(parameter.dtype)
        if dtype.startswith(("float", "bfloat")):
            array = rng.uniform(0.5, 1.0, shape).astype("float32")  # no denormal numbers, which are slow
            arguments.append(tvm.runtime.tensor(array.astype(dtype) if dtype != "bfloat16" else _bfloat16(array)))
        else:
            arguments.append(tvm.runtime.tensor(np.zeros(shape, dtype)))
    return arguments


def _bfloat16(array: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return array.astype(ml_dtypes.bfloat16)
