"""How far off estimates are, and what that costs each policy.

`transfer` rows: a job's rate on one kind of device of Gavel's table, from its rate on another kind and the operators of its step
(`benchmarks/cluster/networks.py`), by `costs.models.step_costs`; the job itself is left out ("job"), or all batch sizes of its
network ("network"). `short-run` rows: its rate once it was run there for a short while. Gavel's authors measured their table
twice; the second one (`physical_cluster_throughputs.json`) is taken for short runs, without the values that were copied.
"corrected" divides by the median of what the other jobs' short runs on that kind were off.

`regret` rows: mean completion time of a policy whose estimates are wrong, by that with exact ones, on jobs of Gavel's generator on
three kinds of devices; mean, least and largest over seeds. `prediction` rows: starts and ends predicted when a job came.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.cluster import gavel, speed
from bricolage.cluster.completion import complete_speeds
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.history.rates import RateTable, read_rates
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import POLICIES as POLICY_ENTRIES
from bricolage.cluster.policy_catalogue import PolicyEntry, find_policy
from bricolage.cluster.prospects import Doubt, predicted_at_submission
from bricolage.cluster.replay_figures import outcome
from bricolage.costs.models.step_costs import TransferredSteps
from bricolage.device.device import Device, Peaks
from bricolage.work.cost import Setting, Work
from bricolage.work.workload import workload_of

PEAKS = {"v100": Peaks(15_700.0, 900.0), "p100": Peaks(10_600.0, 732.0), "k80": Peaks(4_370.0, 240.0)}
"""As their makers give them."""
POLICIES = ("fifo", "srtf", "allox", "las-2d", "max-min", "gavel", "gavel-ftf", "gavel-makespan")
ERRORS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class ErrorRow:
    """Relative errors of estimates of a rate; both sides of a row's median are equally many."""

    what: str
    left_out: str
    source: str
    target: str
    jobs: int
    median_error: float
    p90_error: float
    covered: float
    """Share of truths inside the interval, which shall hold nine in ten; 0 where there is none."""


@dataclass(frozen=True)
class RegretRow:
    """A policy whose estimates are off."""

    what: str
    policy: str
    of: str
    """Lengths, or rates."""
    error: float
    """Standard deviation of the logarithm."""
    hours: float
    """Mean completion time with exact estimates."""
    regret: float
    low: float
    high: float


@dataclass(frozen=True)
class PredictionRow:
    """Starts and ends predicted when jobs came, beside what came of them."""

    what: str
    policy: str
    error: float
    waited: int
    start_covered: float
    """Share of starts of those that waited inside the interval, which shall hold eight of ten."""
    wait_error: float
    """Median of how far off the predicted start was, by the wait."""
    jobs: int
    end_covered: float


def _works() -> list[Work]:
    from benchmarks.cluster.networks import traced

    return [Work(workload_of(list(traced(kind).work.operators)), key=kind) for kind, _ in gavel.KINDS]


def transfer_rows(rates: Path) -> Iterator[ErrorRow]:
    """From one other column, job by job."""
    works, table = _works(), read_rates(rates, PEAKS)
    ms = {one.key: {kind: 1e3 / rate for kind, rate in table.of(one.key, 1).items() if kind in PEAKS} for one in works}
    for left_out in ("job", "network"):
        everything: list[tuple[float, bool]] = []
        for source, target in itertools.permutations(PEAKS, 2):
            some = [_off(one, works, ms, source, target, left_out) for one in works]
            everything += some
            yield _row("transfer", left_out, source, target, some)
        yield _row("transfer", left_out, "all", "all", everything)


def _off(
    one: Work, works: Sequence[Work], ms: dict[str, dict[str, float]], source: str, target: str, left_out: str
) -> tuple[float, bool]:
    others = [w for w in works if w.key != one.key and (left_out == "job" or _network(w.key) != _network(one.key))]
    asked = {**ms, one.key: {source: ms[one.key][source]}}
    device = Device(target, "gpu", "", frozenset(), (0,), 1, 0, Peaks(math.inf, math.inf))
    (found,) = TransferredSteps(others, asked, PEAKS).estimate([one], Setting(device, 1))
    assert found is not None
    truth = ms[one.key][target]
    return abs(found.ms / truth - 1.0), found.low_ms <= truth <= found.high_ms


def _network(kind: str) -> str:
    return kind.partition(" (")[0]


def _row(what: str, left_out: str, source: str, target: str, some: Sequence[tuple[float, bool]]) -> ErrorRow:
    errors = [error for error, _ in some]
    covered = sum(inside for _, inside in some) / len(some)
    return ErrorRow(what, left_out, source, target, len(some), median(errors), float(np.quantile(errors, 0.9)), covered)


def short_run_rows(rates: Path, again: Path) -> Iterator[ErrorRow]:
    """Once one short run on the kind is known."""
    first, second = read_rates(rates, PEAKS), read_rates(again, PEAKS)
    plain: dict[str, list[tuple[float, bool]]] = {}
    mended: dict[str, list[tuple[float, bool]]] = {}
    without: list[tuple[float, bool]] = []
    for target in PEAKS:
        ratios = _ratios(first, second, target)
        for kind, ratio in ratios.items():
            others = [value for other, value in ratios.items() if other != kind]
            plain.setdefault(target, []).append((abs(math.expm1(ratio)), False))
            mended.setdefault(target, []).append((abs(math.expm1(ratio - median(others))), False))
            if not kind.startswith("Recommendation"):
                without.append(mended[target][-1])
        yield _row("short-run", "", "itself", target, plain[target])
        yield _row("short-run corrected", "job", "itself", target, mended[target])
    yield _row("short-run", "", "itself", "all", list(itertools.chain(*plain.values())))
    yield _row("short-run corrected", "job", "itself", "all", list(itertools.chain(*mended.values())))
    yield _row("short-run corrected, without Recommendation", "job", "itself", "all", without)


def _ratios(first: RateTable, second: RateTable, target: str) -> dict[str, float]:
    """Logarithm of short by true milliseconds, of jobs on one device, both measured; what was copied is left out."""
    found = {}
    for kind, _ in gavel.KINDS:
        true, short = first.of(kind, 1).get(target, 0.0), second.of(kind, 1).get(target, 0.0)
        if true and short and true != short:
            found[kind] = math.log(true / short)
    return found


def completion_rows(rates: Path, seeds: int = 5) -> Iterator[ErrorRow]:
    """Speeds of pairs of Gavel's table on one device, of which only some were run; pairs that do not fit are known not to."""
    table = read_rates(rates, PEAKS)
    for known in (0.1, 0.3, 0.5):
        for device in PEAKS:
            kinds = [kind for kind, _ in gavel.KINDS if device in table.of(kind, 1)]
            alone = np.array([table.of(kind, 1)[device] for kind in kinds])
            whole = (
                np.array([[table.together(a, 1)[device].get(b, 0.0) for b in kinds] for a in kinds]) / alone[:, None]
            )
            off: list[tuple[float, bool]] = []
            for seed in range(seeds):
                hidden = (np.random.default_rng(seed).random(whole.shape) >= known) & (whole > 0)
                found = complete_speeds(np.where(hidden, np.nan, whole))
                off += [(float(error), False) for error in np.abs(found - whole)[hidden]]
            yield _row(f"pairs, {known:.0%} known, absolute", "", "pairs", device, off)


def regret_rows(
    rates: Path, names: Sequence[str] | None = POLICIES, jobs: int = 240, per_hour: float = 1.6, seeds: int = 3
) -> Iterator[RegretRow]:
    """On a third of the devices of Gavel's table, at a third of its heaviest load. `names`: None for every policy that serves these
    jobs."""
    spec = ClusterSpec(tuple(NodeGroup(kind, 12, 1) for kind in PEAKS), round_s=360.0, recompute_s=1920.0)
    some = gavel.drawn(read_rates(rates, spec.kinds), jobs, per_hour, 0)
    for name in [one.name for one in POLICY_ENTRIES if not one.refuses(some, spec)] if names is None else names:
        entry = find_policy(name)

        def mean(lengths: float, off: float, seed: int, entry: PolicyEntry = entry) -> float:
            loop = EventLoop(some, spec, entry.make(some, spec), entry.estimator(lengths, seed, off), False)
            return outcome(entry.name, loop.run(), spec).mean_jct_s / 3600.0

        exact = mean(0.0, 0.0, 0)
        for error in ERRORS:
            for of in ("lengths", "rates"):
                if of == "lengths" and entry.knows != "lengths":
                    continue
                pair = (error, 0.0) if of == "lengths" else (0.0, error)
                found = [mean(*pair, seed) / exact - 1.0 for seed in range(seeds)]
                regret = sum(found) / len(found)
                yield RegretRow("regret", name, of, error, exact, regret, min(found), max(found))


def prediction_rows(
    names: Sequence[str] = ("fifo", "easy", "srtf", "las-2d"), jobs: int = 400, asked: int = 60, error: float = 0.5
) -> Iterator[PredictionRow]:
    """Jobs of the generator of `--table speed` on 32 devices, lengths believed wrong by exp(`error`) usually."""
    spec = ClusterSpec((NodeGroup("gpu", 8, 4),))
    some = speed.workload(jobs, 32, 0.95)
    numbers = range(jobs // 4, jobs, max(1, 3 * jobs // 4 // asked))
    for name in names:
        entry = find_policy(name)

        def loop(entry: PolicyEntry = entry) -> EventLoop:
            return EventLoop(some, spec, entry.make(some, spec), entry.estimator(error, 0), False)

        truth = loop().run().states
        starts, ends, within = list[bool](), list[bool](), list[float]()
        for number in numbers:
            found, state = predicted_at_submission(loop(), entry, number, Doubt(error, 0.0)), truth[number]
            if state.first_start_s > state.job.submit_s:  # who starts at once needs no prediction
                starts.append(_inside(state.first_start_s, found.start_interval_s))
                within.append(abs(found.start_s - state.first_start_s) / (state.first_start_s - state.job.submit_s))
            ends.append(_inside(state.finish_s, found.end_interval_s))
        yield PredictionRow(
            "prediction", name, error, len(starts), sum(starts) / max(len(starts), 1), median(within or [0.0]),
            len(ends), sum(ends) / len(ends),
        )  # fmt: skip


def _inside(time_s: float, interval: tuple[float, float]) -> bool:
    return interval[0] - 1.0 <= time_s <= interval[1] + 1.0


def rows(rates: Path, again: Path | None) -> Iterator[ErrorRow | RegretRow | PredictionRow]:
    """All of them."""
    yield from transfer_rows(rates)
    if again is not None:
        yield from short_run_rows(rates, again)
    yield from completion_rows(rates)
    yield from regret_rows(rates)
    yield from prediction_rows()
