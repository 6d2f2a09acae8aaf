"""What decisions lose on networks that nothing was learnt from; `python -m benchmarks.agenda --unseen`.

Each network is decided on with all backends and without the native engine, in `highest` precision, and four of them in `medium`: at
effort `quick`, then with everything measured that is not bounded, within five minutes. Where both ship different plans these race.
The study says what `quick` loses (`regret`), what each way to a faster plan gained, and how often what was said to have a chance
gained.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.unseen.networks import NETWORKS
from bricolage.backends import registry
from bricolage.base.options import Options, Precision
from bricolage.costs.decision_log import LogLine
from bricolage.driver.attempts import combine_gains
from bricolage.plan.agenda_record import AgendaItem
from bricolage.work.gain import LEAST_GAIN
from bricolage.work.implementation import OWN_ENGINE

if TYPE_CHECKING:
    from benchmarks.agenda import Row

EVERYTHING_S = 300.0
STUDIED = (
    *("vovnet-19", "convbert-small", "hifi-gan", "dcn-v2", "gat", "yolos-tiny", "pit-xs", "funnel-6"),
    *(
        "ecapa-tdnn",
        "deep-interest",
        "schnet",
        "conditional-detr-18",
        "tiny-vit-5m",
        "pvt-v2-b0",
        "starnet-s1",
        "nystromformer-6",
    ),
)
"""Networks of the catalogue that are decided on, where no others are named."""
_MEDIUM = STUDIED[:4]
"""Those that are decided on in `medium` precision, too."""
_BINS = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper ends of the classes of chances."""


@dataclass(frozen=True)
class Setting:
    """How networks are decided on."""

    name: str
    precision: Precision
    native: bool
    networks: tuple[str, ...]

    def options(self, threads: int | None) -> Options:
        """Of a user who decides at effort `quick`."""
        names = tuple(backend.name for backend in registry.available() if self.native or backend.name != OWN_ENGINE)
        options = Options(effort="quick", precision=self.precision, backends=names)
        return replace(options, threads=threads or options.threads)


def settings() -> tuple[Setting, ...]:
    """All of the study."""
    return (
        Setting("highest", "highest", True, STUDIED),
        Setting("highest without native", "highest", False, STUDIED),
        Setting("medium", "medium", True, _MEDIUM),
    )


@dataclass(frozen=True)
class Shipped:
    """What a decision ships, its time in ms, and the seconds that the decision took."""

    plan: str
    ms: float
    seconds: float


@dataclass(frozen=True)
class WayResult:
    """What an item of the agenda brought when everything was measured, and what `quick` had said of it."""

    name: str
    quick: str
    """Its outcome at `quick`; empty where there was nothing of its kind."""
    chance: float | None
    """That `quick` gave it; None where it said none."""
    gained: float
    """Share of the time of the fastest until then that its best candidate saved; negative where that was slower."""
    interval: tuple[float, float] | None
    seconds: float

    @property
    def won(self) -> bool:
        """Whether it gained beyond the noise, and more than what counts as a gain."""
        return self.gained > LEAST_GAIN and self.interval is not None and self.interval[0] > 0.0


@dataclass(frozen=True)
class StudyRow:
    """One network in one setting."""

    network: str
    family: str
    setting: str
    processor: str
    threads: int
    quick: Shipped
    everything: Shipped
    regret: float
    """Share of the time of what `quick` ships that everything saves; 0 where both ship the same."""
    regret_ci: tuple[float, float]
    ways: tuple[WayResult, ...]
    log: tuple[LogLine, ...]
    """What both decisions add to the log of decisions."""


def make_study_row(row: Row, setting: Setting, threads: int) -> StudyRow:
    """Of the two decisions on a network."""
    return StudyRow(
        row.workload,
        NETWORKS[row.workload].family,
        setting.name,
        row.processor,
        threads,
        Shipped(row.ships, row.ms, row.seconds),
        Shipped(row.everything_ships, row.everything_ms, row.everything_s),
        row.regret,
        row.regret_ci,
        tuple(collect_way_results(row.agenda, row.everything)),
        row.log,
    )


def collect_way_results(quick: Sequence[AgendaItem], everything: Sequence[AgendaItem]) -> Iterator[WayResult]:
    """Of each item that was measured in the second decision."""
    measured: dict[str, list[AgendaItem]] = {}
    for item in everything:
        if item.outcome == "measured" and item.incumbent:
            measured.setdefault(item.name, []).append(item)
    for name, items in measured.items():
        before = next((item for item in quick if item.name == name), None)
        gained, interval = combine_gains(items)
        yield WayResult(
            name,
            "" if before is None else before.outcome,
            None if before is None else before.chance,
            gained,
            interval,
            round(sum(item.seconds for item in items), 1),
        )


def format_study(rows: Sequence[StudyRow]) -> str:
    """The study as Markdown: what `quick` lost, what ways gained, and how chances held."""
    parts = [_regrets(rows), _ways(rows), _calibration(rows), *_summaries(rows)]
    return "\n\n".join(parts)


def _regrets(rows: Sequence[StudyRow]) -> str:
    lines = [
        "| network | family | setting | threads | quick ships | ms | s | everything ships | ms | s | regret [95 % CI] |",
        "|---|---|---|---:|---|---:|---:|---|---:|---:|---|",
    ]
    for row in rows:
        low, high = row.regret_ci
        lines.append(
            f"| {row.network} | {row.family} | {row.setting} | {row.threads} | {row.quick.plan} | {row.quick.ms:.3g} "
            f"| {row.quick.seconds:.0f} | {row.everything.plan} | {row.everything.ms:.3g} | {row.everything.seconds:.0f} "
            f"| {row.regret:.1%} [{low:.1%}, {high:.1%}] |"
        )
    return "\n".join(lines)


def _ways(rows: Sequence[StudyRow]) -> str:
    """Whole models are told by their backends."""
    results: dict[str, list[WayResult]] = {}
    for row in rows:
        for way in row.ways:
            words = way.name.split()
            name = " ".join(words[:4]) if way.name.startswith("whole model on ") else way.name
            results.setdefault(name, []).append(way)
    lines = ["| way | measured on | won on | saved there | at most | seconds |", "|---|---:|---:|---:|---:|---:|"]
    for name, ways in sorted(results.items()):
        gains = [way.gained for way in ways if way.won]
        middle, most = (f"{statistics.median(gains):.1%}", f"{max(gains):.1%}") if gains else ("–", "–")
        seconds = statistics.median(way.seconds for way in ways)
        lines.append(f"| {name} | {len(ways)} | {len(gains)} | {middle} | {most} | {seconds:.1f} |")
    return "\n".join(lines)


def calibration(rows: Sequence[StudyRow]) -> Mapping[float, tuple[int, int]]:
    """For each class of chances, by its upper end: how many items were said to have one, and how many of them won."""
    said: dict[float, list[bool]] = {end: [] for end in _BINS}
    for way in (way for row in rows for way in row.ways):
        if way.chance is not None:
            said[next(end for end in _BINS if way.chance <= end)].append(way.won)
    return {end: (len(wins), sum(wins)) for end, wins in said.items()}


def _calibration(rows: Sequence[StudyRow]) -> str:
    lines = ["| said chance | items | won | share |", "|---|---:|---:|---:|"]
    low = 0.0
    for end, (items, won) in calibration(rows).items():
        share = f"{won / items:.0%}" if items else "–"
        lines.append(f"| {low:.0%} to {end:.0%} | {items} | {won} | {share} |")
        low = end
    return "\n".join(lines)


def _summaries(rows: Sequence[StudyRow]) -> Iterator[str]:
    for setting, threads in dict.fromkeys((row.setting, row.threads) for row in rows):
        own = [row for row in rows if (row.setting, row.threads) == (setting, threads)]
        small = sum(row.regret <= LEAST_GAIN for row in own)
        seconds = [row.quick.seconds for row in own]
        yield (
            f"{setting}, {threads} threads: regret of quick is at most 2 % on {small} of {len(own)}, "
            f"{max(row.regret for row in own):.1%} at most; quick took {statistics.median(seconds):.0f} s in the middle, "
            f"{max(seconds):.0f} s at most."
        )
    few = calibration(rows)
    items, won = (sum(few[end][place] for end in (0.05, 0.1)) for place in (0, 1))
    yield f"Of {items} items that were said to have a chance of 10 % or less, {won} won."
