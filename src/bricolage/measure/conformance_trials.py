"""Conformance trials in worker processes: one that crashes or hangs costs its own outcome and nothing else."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence

from bricolage.base import scratch
from bricolage.conformance.attempt import Outcome, Result
from bricolage.conformance.trial_cases import OperatorTrial
from bricolage.device.host import host
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime, Stop, never
from bricolage.measure.worker_process import Answer

_OUTCOMES: dict[str, Outcome] = {"crashed": "crashes", "out-of-memory": "crashes", "timed-out": "times-out"}
"""What an answer of the pool means for the trial that it is about. Anything else is a refusal."""


_MOST_LOSSES = 10
"""Batches that are run again because their worker was ended from outside."""


def run_trials(
    pool: Pool,
    backend: str,
    trials: Sequence[OperatorTrial],
    report: Callable[[OperatorTrial, Result], None],
    *,
    jobs: int = 1,
    batch: int = 1,
    limit_s: float = 60.0,
    should_stop: Stop = never,
) -> None:
    """Runs trials on a backend and reports each result as it comes.

    Args:
        jobs: worker processes at a time.
        batch: trials that go to a worker together, which compiles them as one model where they can be. When one brings the
            worker down, all of them are run one by one.
        limit_s: longest time of one trial in seconds, beyond the time in which a framework is imported.
        should_stop: is asked before each batch; what has not begun then is not reported, nor what lost its worker to
            somebody else again and again.
    """
    waiting = deque(list(trials[start : start + batch]) for start in range(0, len(trials), batch))
    idle = [Regime((backend,), 1, False, host(), owner=f"conformance {number}") for number in range(jobs)]
    busy: dict[Regime, list[OperatorTrial]] = {}
    losses = 0
    with scratch.using(scratch.temporary()) as folder:
        while waiting or busy:
            while waiting and idle and not should_stop():
                regime, part = idle.pop(), waiting.popleft()
                path = folder / f"{regime.owner}.pickle"
                path.write_bytes(pickle.dumps(part))
                pool.submit(pool.worker(regime), limit_s * len(part), "attempt", backend=backend, path=str(path))
                busy[regime] = part
            if not busy:
                break
            for worker, answer in pool.wait(1.0):
                part = busy.pop(worker.regime)
                idle.append(worker.regime)
                if answer.outcome == "lost" and losses < _MOST_LOSSES:
                    losses += 1
                    waiting.appendleft(part)
                    continue
                if not answer.ok and len(part) > 1:
                    waiting.extendleft([trial] for trial in reversed(part))
                    continue
                if answer.outcome == "lost":
                    continue
                for trial, result in zip(part, _results(answer), strict=True):
                    report(trial, result)
    for regime in idle:
        pool.end(regime)


def _results(answer: Answer) -> list[Result]:
    if not answer.ok:
        return [Result(_OUTCOMES.get(answer.outcome, "refuses"), answer.reason)]
    pairs = answer.facts["results"]
    assert isinstance(pairs, list)
    return [Result(outcome, reason) for outcome, reason in pairs]
