"""A measured search for how TVM's tensor programs are scheduled, one program after another.

TVM's own tuner ends in a segmentation fault (0.27), but its parts work. Two families of candidates take turns: our rule *tile* of
`tvm_schedule` with other blocks, orders and depths; and programs that MetaSchedule's rules make with their choices drawn
at random ("Tensor Program Optimization with Probabilistic Programs", Shao et al., NeurIPS 2022), named by the number that seeds the
draw. Time goes to where the most is left: after each few trials, to the program whose time, and last gain, promise most.

The search can be stopped at any time, and goes on from what it found: a choice is a pair of texts, kept as a parameter.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bricolage.backends.tvm_schedule import TILINGS, Choice, by_tiling, sampled, scheduled_by_rule
from bricolage.work.implementation import Scalar

SEEDS = 1 << 16
"""Numbers that a sampled program may have."""
TURNS = "turns"
"""Parameter that counts how often a search went on."""
_BATCH = 6
"""Trials of one program before the next is chosen."""
_RUN_S = 0.01
"""Seconds of calls that one measurement lasts, and at least three calls."""
_PROMISING = 1.2
"""A candidate whose first run takes longer than that times the best is not measured further."""
_CLEARLY = 0.97
_DECAY = 0.7
"""What a program promises, after trials that did not make it faster."""
_CONFIRMING = 15


def choice_of(text: Scalar) -> Choice:
    """What schedules a tensor program as a choice says.

    Raises:
        ValueError: the text is no choice.
    """
    word, _, rest = str(text).partition(" ")
    if word == "tile":
        tiling = next((one for one in TILINGS if str(one) == text), None)
        if tiling is None:
            raise ValueError(f"there is no tiling '{rest}'")
        return lambda function, target, threads: by_tiling(function, target, threads, tiling)
    if word == "sample" and 0 < int(rest) <= SEEDS:
        return lambda function, target, threads: sampled(function, target, threads, int(rest))
    raise ValueError(f"there is no schedule '{text}'")


def choices() -> tuple[Scalar, ...]:
    """All that a tensor program may be scheduled by, besides the rules of thumb."""
    return (*map(str, TILINGS), *(f"sample {seed}" for seed in range(1, SEEDS + 1)))


@dataclass
class _Task:
    """One tensor program, with all functions that are equal to it."""

    names: list[str]
    function: Any
    fresh: Iterator[str]
    """Choices that were not tried yet."""
    best: str = ""
    """Empty: the rules of thumb."""
    best_s: float = math.inf
    call: Callable[[], object] | None = None
    """Of the best."""
    promise: float = 1.0
    arguments: list[Any] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Seconds of a call of the region that another batch of trials could be about."""
        return len(self.names) * self.best_s * self.promise


class Search:
    """Searches the programs of one module."""

    def __init__(self, module: Any, target: Any, threads: int, known: Mapping[str, Scalar], seed: int) -> None:
        """`known`: choices by function, from before. `seed`: of the order in which others are tried; with 1 the likeliest come
        first."""
        self._target, self._threads = target, threads
        self._rng, self._in_order = random.Random(seed), seed == 1
        self._tasks = [self._task(names, function, known) for names, function in _distinct(module)]

    def run(self, seconds: float) -> dict[str, Scalar]:
        """Choices by function, for those that are clearly faster than by the rules of thumb."""
        end = time.monotonic() + seconds
        tasks = [one for one in self._tasks if one.best_s < math.inf]
        while tasks and time.monotonic() < end:
            task = max(tasks, key=lambda one: one.left_s)
            before = task.best_s
            for text in itertools.islice(task.fresh, _BATCH):
                self._try(task, text)
                if time.monotonic() > end:
                    break
            else:
                task.promise = 1.0 if task.best_s < _CLEARLY * before else task.promise * _DECAY
        return {name: task.best for task in tasks if self._holds(task) for name in task.names}

    def _task(self, names: list[str], function: Any, known: Mapping[str, Scalar]) -> _Task:
        task = _Task(names, function, self._fresh())
        task.arguments = _arguments(function)
        usual = self._built(task, scheduled_by_rule)
        if usual is not None:
            task.best_s, task.call = _seconds(usual), usual
        if names[0] in known:
            self._try(task, str(known[names[0]]))
        return task

    def _fresh(self) -> Iterator[str]:
        """Tilings, and samples in between."""
        tilings = map(str, TILINGS if self._in_order else self._rng.sample(TILINGS, len(TILINGS)))
        while True:
            found = list(itertools.islice(tilings, _BATCH // 2))
            yield from found
            for _ in range(_BATCH - len(found)):
                yield f"sample {self._rng.randint(1, SEEDS)}"

    def _try(self, task: _Task, text: str) -> None:
        call = self._built(task, choice_of(text))
        if call is None:
            return
        seconds = _seconds(call, limit_s=_PROMISING * task.best_s)
        if seconds < task.best_s:
            task.best, task.best_s, task.call = text, seconds, call

    def _built(self, task: _Task, choice: Choice) -> Callable[[], object] | None:
        """A call of the program as a choice schedules it; None where it cannot be."""
        import tvm

        try:
            with self._target:
                made = choice(task.function, self._target, self._threads)
                if made is None:
                    return None
                function = made.mod["main"].with_attr("global_symbol", "main")
                built = tvm.compile(tvm.IRModule({"main": function}), target=self._target)["main"]
            built(*task.arguments)
        except (tvm.error.InternalError, ValueError, TypeError, RuntimeError):
            return None
        return lambda: built(*task.arguments)

    def _holds(self, task: _Task) -> bool:
        """Whether the best is clearly faster than the usual, in turns."""
        usual = self._built(task, scheduled_by_rule) if task.best else None
        if usual is None or task.call is None:
            return False
        pairs = [(_seconds(usual), _seconds(task.call)) for _ in range(_CONFIRMING)]
        return statistics.median(new for _, new in pairs) < _CLEARLY * statistics.median(old for old, _ in pairs)


def _distinct(module: Any) -> list[tuple[list[str], Any]]:
    """The tensor programs of a module, equal ones once, with the names of all their functions in order."""
    import tvm
    import tvm_ffi

    found: dict[int, list[tuple[list[str], Any]]] = {}
    for variable, function in sorted(module.functions_items(), key=lambda one: str(one[0].name_hint)):
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        plain = function.without_attr("global_symbol") if "global_symbol" in (function.attrs or {}) else function
        known = found.setdefault(int(tvm_ffi.structural_hash(plain)), [])
        for names, other in known:
            if tvm_ffi.structural_equal(plain, other):
                names.append(variable.name_hint)
                break
        else:
            known.append(([variable.name_hint], plain))
    return [one for same in found.values() for one in same]


def _arguments(function: Any) -> list[Any]:
    """Numbers for every buffer of a program."""
    import tvm

    rng = np.random.default_rng(0)
    made: list[Any] = []
    for parameter in function.params:
        shape, dtype = [int(size) for size in parameter.shape], str(parameter.dtype)
        if dtype.startswith(("float", "bfloat")):
            array = rng.uniform(0.5, 1.0, shape).astype("float32")  # no denormal numbers, which are slow
            made.append(tvm.runtime.tensor(array.astype(dtype) if dtype != "bfloat16" else _bfloat16(array)))
        else:
            made.append(tvm.runtime.tensor(np.zeros(shape, dtype)))
    return made


def _bfloat16(array: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return array.astype(ml_dtypes.bfloat16)


def _seconds(call: Callable[[], object], limit_s: float = math.inf) -> float:
    """Median of some calls; of the first alone where that takes longer than the limit."""
    begin = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    if first > limit_s:
        return first
    times: list[float] = []
    while len(times) < 3 or sum(times) < _RUN_S:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
