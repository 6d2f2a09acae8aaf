"""EASY backfilling (Lifka 1995, the Argonne/IBM scheduler): jobs behind the first one start early if it does not start later for
that.

The first one gets a reservation: the time at which enough devices of one kind will be free if every running job ends when it is
expected to. Who fits now and ends before that time, or takes devices that the first one will not need then, may start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bricolage.cluster.jobs import JobState


def expected_end(state: JobState, kind: str, now: float) -> float:
    """When a job ends that runs on a kind from now on: by its time limit where it has one, else by what is predicted."""
    if state.held:
        left = max(state.resumes_s - now, 0.0) + state.predicted_left() / state.rate
        limit = state.since_s + state.job.limit_s
        return now + left if limit == float("inf") else max(limit, now)
    return now + min(state.left_s(kind), state.job.limit_s)


def reservation(
    state: JobState, running: Mapping[str, Sequence[JobState]], free: Mapping[str, int], now: float
) -> tuple[float, str, int]:
    """When a waiting job can start at the latest, on which kind, and how many devices of it are free then after it has its own."""
    starts: list[tuple[float, str, int]] = []
    for kind in state.kinds:
        left = free[kind]
        for other in running[kind]:
            other.advance(now)
        ends = sorted(
            (expected_end(other, kind, now), other.number, other.held or other.job.devices) for other in running[kind]
        )
        for end, _, devices in [(now, -1, 0), *ends]:
            left += devices
            if left >= state.job.devices:
                starts.append((end, kind, left - state.job.devices))
                break
    return min(starts) if starts else (float("inf"), "", 0)


def pick_backfill_jobs(
    waiting: Sequence[JobState], running: Mapping[str, Sequence[JobState]], free: Mapping[str, int], now: float
) -> Iterator[tuple[JobState, str]]:
    """Those behind `waiting[0]` that may start now, in order. `free` is read anew after each: who asks must take the devices."""
    shadow, reserved, spare = reservation(waiting[0], running, free, now)
    for state in waiting[1:]:
        for kind in state.kinds:
            if free[kind] < state.job.devices:
                continue
            if kind == reserved and expected_end(state, kind, now) > shadow:
                if spare < state.job.devices:
                    continue
                spare -= state.job.devices
            yield state, kind
            break
        if not any(free.values()):
            return
