"""Timing programs that a worker holds: samples, turns, and what other processes did meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns, process_time, sleep

import numpy as np

from bricolage.base.options import available_cores
from bricolage.measure import closed_loop
from bricolage.measure.closed_loop import ClosedLoop
from bricolage.measure.disturbance import DISTURBED, DisturbanceWatch, waited_share

SAMPLE_MS = 0.3
"""A sample repeats the call until it lasts this long, so that the clock and the loop do not show."""
TURN_MS = 2.5
"""A turn takes as many samples (up to `_BURST`) as fit into this time."""
_BURST = 5
"""Samples in a turn of that time at most; longer turns have as many more."""
_COURSE_CALLS = 4
_MOST_REPEATS = 2000
_SERVING_S = 0.1
"""Of a turn of a program that answers several requests at a time, unless its calls are longer."""
_SERVING_TRIES = 2


@dataclass
class LoadedProgram:
    """A compiled program with everything that its call needs to stay alive."""

    call: Callable[[], object]
    outputs: dict[str, np.ndarray] | None
    """Bound buffers; None where the call returns fresh outputs."""
    keep: tuple[object, ...] = field(repr=False, default=())
    rerun: Callable[[dict[str, object]], dict[str, object]] | None = None
    """One call with other inputs of the same shapes; None where several requests are answered at a time."""
    repeats: int = 0
    """Calls in one sample; 0 until calibrated."""
    once_ms: float = 0.0
    """Of one call, about."""
    answer: Callable[[], dict[str, object]] | None = None
    """Outputs by name, where `call` returns them otherwise: it is the call of another tool."""
    loop: ClosedLoop | None = None
    """Where several requests are answered at a time: what times them."""


class Sampler:
    """Takes a worker's samples."""

    def __init__(self) -> None:
        self._watch = DisturbanceWatch()
        self._other_data: np.ndarray | None = None
        """What is read between calls after pauses."""
        self._spent: float | None = None
        """Processor time of this process when the last timing ended; None where another command has come since."""

    def forget_time(self) -> None:
        """Another command than `time` comes: what it takes is no part of the next timing."""
        self._spent = None

    def time(
        self, loaded: LoadedProgram, turns: int, warm_s: float, turn_ms: float = TURN_MS, least: int = 1
    ) -> dict[str, object]:
        """Times `turns` turns of `turn_ms` milliseconds, and of `least` samples at least, after warming up: untimed calls for
        `warm_s` seconds, one at least when that is above 0. The very first warm-up of a program is made once, where it is long;
        later ones before each turn.

        Answers `rounds`, the samples of each turn in milliseconds a call; `waited`, for each sample the share of time lost to
        other processes; `repeated`, samples repeated because of load (at most as many as asked for, in at most the same time);
        and the processor time of it all, with what threads have spent on waiting since the last timing. The first time, the
        number of calls in a sample is chosen.
        """
        if loaded.loop is not None:
            return self._serve(loaded.loop, turns, warm_s)
        call, begun = loaded.call, process_time() if self._spent is None else self._spent
        rounds: list[list[float]] = []
        waited: list[list[float]] = []
        self._watch.follow()
        cores = available_cores()  # reads files: once for all turns
        gc.disable()  # and no collection before: with a framework loaded it takes longer than a turn
        try:
            first = not loaded.repeats and warm_s > TURN_MS / 1e3
            if first:
                _warm(call, warm_s)
            if not loaded.repeats:
                _calibrate(loaded)
            fitting = int(turn_ms // (loaded.repeats * loaded.once_ms))
            burst = max(least, min(fitting, _BURST * max(1, round(turn_ms / TURN_MS))))
            for _ in range(turns):
                samples, shares = self._turn(loaded, 0.0 if first else warm_s, cores, burst, turn_ms)
                rounds.append(samples)
                waited.append(shares)
        finally:
            gc.enable()
        repeated = sum(len(samples) - burst for samples in rounds)
        self._spent = process_time()
        return {"rounds": rounds, "waited": waited, "repeated": repeated, "processor_s": self._spent - begun}

    def _turn(
        self, loaded: LoadedProgram, warm_s: float, cores: int, burst: int, turn_ms: float
    ) -> tuple[list[float], list[float]]:
        """Samples, and by sample how much it was disturbed. The counters are read before the warm-up and after the last
        sample: reading in between would give threads that wait for the next call the time to fall asleep, which no
        caller would see."""
        samples: list[float] = []
        shares: list[float] = []
        end = perf_counter() + warm_s + 2 * turn_ms / 1e3
        while not samples or (shares[-1] > DISTURBED and len(samples) < 2 * burst and perf_counter() < end):
            before = self._watch.read()
            _warm(loaded.call, warm_s)
            samples += [_sample(loaded.call, loaded.repeats) for _ in range(burst)]
            shares += [waited_share(before, self._watch.read(), cores)] * burst
        return samples, shares

    def follow_course(self, loaded: LoadedProgram, seconds: float) -> dict[str, object]:
        """Calls for some seconds, four at least, and says how they went: `course`, milliseconds since the first began and
        milliseconds that it took, for each call. What came before, another program's turn say, is in the first ones. And the
        processor time of it all, as of a turn."""
        course: list[tuple[float, float]] = []
        spent = process_time() if self._spent is None else self._spent
        gc.disable()
        try:
            begun = perf_counter()
            while len(course) < _COURSE_CALLS or perf_counter() - begun < seconds:
                taken = _sample(loaded.call, 1)
                course.append(((perf_counter() - begun) * 1e3, taken))
        finally:
            gc.enable()
        self._spent = process_time()
        return {"course": course, "processor_s": self._spent - spent}

    def time_after_pauses(
        self, loaded: LoadedProgram, calls: int, pause_s: float, cache_bytes: int
    ) -> dict[str, object]:
        """Times single calls, each after a pause of some seconds in which something else reads as many bytes as the caches hold.
        Answers as `time` does, with one round."""
        begun = process_time() if self._spent is None else self._spent
        if self._other_data is None or self._other_data.nbytes != max(cache_bytes, 8):
            self._other_data = np.ones(max(cache_bytes // 8, 1))
        samples: list[float] = []
        shares: list[float] = []
        self._watch.follow()
        cores = available_cores()
        gc.disable()
        try:
            for _ in range(calls):
                end = perf_counter() + pause_s
                self._other_data.sum()
                sleep(max(0.0, end - perf_counter()))
                before = self._watch.read()
                samples.append(_sample(loaded.call, 1))
                shares.append(waited_share(before, self._watch.read(), cores))
        finally:
            gc.enable()
        self._spent = process_time()
        return {"rounds": [samples], "waited": [shares], "repeated": 0, "processor_s": self._spent - begun}

    def _serve(self, loop: ClosedLoop, turns: int, warm_s: float) -> dict[str, object]:
        """As `time`, of a program that answers several requests at a time: a turn is a closed loop of some length, a sample its
        wall time by requests answered. Also returns the latencies of the calls in each sample, in ms."""
        begun, cores = process_time() if self._spent is None else self._spent, available_cores()
        rounds: list[list[float]] = []
        waited: list[list[float]] = []
        latencies: list[list[tuple[float, ...]]] = []
        if warm_s > TURN_MS / 1e3:
            loop.turn(warm_s)
        self._watch.follow()
        gc.disable()
        try:
            for _ in range(turns):
                loop_turns: list[closed_loop.Turn] = []
                shares: list[float] = []
                while not loop_turns or (shares[-1] > DISTURBED and len(loop_turns) < _SERVING_TRIES):
                    before = self._watch.read()
                    loop_turns.append(loop.turn(_SERVING_S))
                    shares.append(waited_share(before, self._watch.read(), cores))
                rounds.append([turn.row_ms for turn in loop_turns])
                latencies.append([turn.latencies for turn in loop_turns])
                waited.append(shares)
        finally:
            gc.enable()
        self._spent = process_time()
        facts = {"rounds": rounds, "waited": waited, "repeated": sum(len(samples) - 1 for samples in rounds)}
        return {**facts, "processor_s": self._spent - begun, "latencies": latencies}


def _sample(call: Callable[[], object], repeats: int) -> float:
    """Milliseconds a call, averaged over one sample."""
    if repeats == 1:
        start = perf_counter_ns()
        call()
        return (perf_counter_ns() - start) / 1e6
    start = perf_counter_ns()
    for _ in range(repeats):
        call()
    return (perf_counter_ns() - start) / repeats / 1e6


def _warm(call: Callable[[], object], seconds: float) -> None:
    """Untimed calls."""
    end = perf_counter() + seconds
    while seconds > 0:
        call()
        if perf_counter() >= end:
            break


def _calibrate(loaded: LoadedProgram) -> None:
    """Chooses calls a sample from the fastest of a few calls."""
    once = _sample(loaded.call, 1)
    if once < TURN_MS:
        once = max(min(once, *(_sample(loaded.call, 4) for _ in range(3))), 1e-6)
    loaded.repeats = min(max(1, round(SAMPLE_MS / once + 0.5)), _MOST_REPEATS) if once < SAMPLE_MS else 1
    loaded.once_ms = once
