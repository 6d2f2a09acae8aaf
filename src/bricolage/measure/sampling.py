"""Timing programs that a worker holds: samples, turns, and what other processes did meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns, process_time

import numpy as np

from bricolage.measure import closed_loop
from bricolage.measure.closed_loop import ClosedLoop
from bricolage.measure.disturbance import DISTURBED, DisturbanceWatch, waited_share
from bricolage.options import available_cores

SAMPLE_MS = 0.3
"""A sample repeats the call until it lasts this long, so that the clock and the loop do not show."""
TURN_MS = 2.5
"""A turn takes as many samples (up to `_BURST`) as fit into this time."""
_BURST = 5
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
    burst: int = 1
    """Samples in one turn."""
    loop: ClosedLoop | None = None
    """Where several requests are answered at a time: what times them."""


class Sampler:
    """Takes a worker's samples."""

    def __init__(self) -> None:
        self._watch = DisturbanceWatch()
        self._spent: float | None = None
        """Processor time of this process when the last timing ended; None where another command has come since."""

    def forget_time(self) -> None:
        """Another command than `time` comes: what it takes is no part of the next timing."""
        self._spent = None

    def time(self, loaded: LoadedProgram, turns: int, warm_s: float) -> dict[str, object]:
        """Times `turns` turns after warming up: untimed calls for `warm_s` seconds, one at least when that is above 0. A
        warm-up that is longer than a turn is made once, a shorter one before each.

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
            long = warm_s > TURN_MS / 1e3
            if long:
                _warm(call, warm_s)
            if not loaded.repeats:
                _calibrate(loaded)
            for _ in range(turns):
                samples, shares = self._turn(loaded, 0.0 if long else warm_s, cores)
                rounds.append(samples)
                waited.append(shares)
        finally:
            gc.enable()
        repeated = sum(len(samples) - loaded.burst for samples in rounds)
        self._spent = process_time()
        return {"rounds": rounds, "waited": waited, "repeated": repeated, "processor_s": self._spent - begun}

    def _turn(self, loaded: LoadedProgram, warm_s: float, cores: int) -> tuple[list[float], list[float]]:
        """Samples, and by sample how much it was disturbed. The counters are read before the warm-up and after the last
        sample: reading in between would give threads that wait for the next call the time to fall asleep, which no
        caller would see."""
        samples: list[float] = []
        shares: list[float] = []
        end = perf_counter() + 2 * TURN_MS / 1e3
        while not samples or (shares[-1] > DISTURBED and len(samples) < 2 * loaded.burst and perf_counter() < end):
            before = self._watch.read()
            _warm(loaded.call, warm_s)
            samples += [_sample(loaded.call, loaded.repeats) for _ in range(loaded.burst)]
            shares += [waited_share(before, self._watch.read(), cores)] * loaded.burst
        return samples, shares

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
                found: list[closed_loop.Turn] = []
                shares: list[float] = []
                while not found or (shares[-1] > DISTURBED and len(found) < _SERVING_TRIES):
                    before = self._watch.read()
                    found.append(loop.turn(_SERVING_S))
                    shares.append(waited_share(before, self._watch.read(), cores))
                rounds.append([turn.row_ms for turn in found])
                latencies.append([turn.latencies for turn in found])
                waited.append(shares)
        finally:
            gc.enable()
        self._spent = process_time()
        facts = {"rounds": rounds, "waited": waited, "repeated": sum(len(found) - 1 for found in rounds)}
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
    """Chooses calls a sample and samples a turn from the fastest of a few calls."""
    once = _sample(loaded.call, 1)
    if once < TURN_MS:
        once = max(min(once, *(_sample(loaded.call, 4) for _ in range(3))), 1e-6)
    loaded.repeats = min(max(1, round(SAMPLE_MS / once + 0.5)), _MOST_REPEATS) if once < SAMPLE_MS else 1
    loaded.burst = int(min(max(1, TURN_MS // (loaded.repeats * once)), _BURST))
