"""What implementations, and ways to a faster plan, have achieved on networks before: the grounds on which a decision leaves
something unmeasured, with the chance that it would have gained.

It is made of a log (`costs.decision_log`), to which lines are added and of which none is changed. One network is one vote, however
many lines it has: of each processor the newest line counts, and this processor's more than all others together. The network that is
decided on has none.

What an implementation takes is judged by a one-sided prediction interval of Student's t (Hahn & Meeker, Statistical Intervals,
1991, section 4.8). It is that of the logarithm of its time over the time of the fastest that is measured: on the next network of
the kind it is faster with at most the given risk. A way's chance is the share of networks on which it gained, with Jeffreys' prior
(half a success in one trial more).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import NormalDist, fmean, stdev

from bricolage.base.codec import encode
from bricolage.costs.database import Database
from bricolage.costs.decision_log import Attempt, Compiling, LogLine, NetworkTimes, UnusableLine, read_lines
from bricolage.device.device import Device
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.network_kind import NetworkKind, network_kind

SHIPPED = Path(__file__).parent / "track_record.jsonl"
_FEWEST = 4
"""Networks of a kind from which an interval is made; with fewer nothing is said."""
_OF_OTHERS = 0.5
"""What other processors' votes on a network weigh together, where this one has a vote of 1."""
_MUCH_LONGER = 3.0
"""A search that gained in more than this many times as long may have gained nothing yet by then, and the other way round."""
_LEAST_SPREAD = 0.05
"""Of the logarithm: networks that happen to agree do not make the next one sure."""


@dataclass(frozen=True)
class DecisionSubject:
    """On what is decided, and where."""

    kind: NetworkKind
    network: str = ""
    """Key of its graph (`graph.identity`)."""
    processor: str = ""

    @staticmethod
    def of(graph: Graph, device: Device) -> DecisionSubject:
        """A whole graph on a device."""
        return DecisionSubject(network_kind(graph), Identities(graph).key(graph.everything), device.processor)


@dataclass(frozen=True)
class Tries:
    """What a way gained on networks like this one."""

    networks: int
    won: float
    """On how many it gained; a fraction where processors differ."""
    gains: tuple[float, ...] = ()
    """Where there were any, as shares of the time."""

    @property
    def chance(self) -> float:
        """That it gains on the next network."""
        return (self.won + 0.5) / (self.networks + 1.0)

    @property
    def is_known(self) -> bool:
        """Whether there are enough networks to leave it out."""
        return self.networks >= _FEWEST


@dataclass(frozen=True)
class ExpectedTime:
    """What an implementation takes on the next network: the logarithm of its time has Student's t distribution."""

    ms: float
    """The middle."""
    spread: float
    """Of the logarithm."""
    freedom: int

    def least_ms(self, risk: float) -> float:
        """Milliseconds below which it takes with at most this risk."""
        return self.ms * math.exp(student_quantile(risk, self.freedom) * self.spread)

    def chance(self, ms: float) -> float:
        """That it takes less than that (by Abramowitz & Stegun 26.7.8)."""
        t, n = math.log(ms / self.ms) / self.spread, float(self.freedom)
        return NormalDist().cdf(t * (1.0 - 0.25 / n) / math.sqrt(1.0 + t**2 / (2.0 * n)))


@dataclass(frozen=True)
class TrackRecord:
    """All of it, in the order of the log."""

    networks: tuple[NetworkTimes, ...] = ()
    compiling: Mapping[str, Compiling] = field(default_factory=dict)
    """By backend."""
    attempts: tuple[Attempt, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Short hash of all that decisions depend on."""
        return hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()[:16]

    def expect(self, name: str, subject: DecisionSubject, measured: Mapping[str, float]) -> ExpectedTime | None:
        """What an implementation takes on a network; None where too little is known. `measured`: what others take there,
        in ms. It is told about the one whose times its own follow most closely (Inductor's those of OpenVINO, say, since both call
        oneDNN), or about the fastest of them."""
        alike = [
            times
            for times in self.networks
            if times.kind == subject.kind and times.network != subject.network and name in times.ms
        ]
        references: list[tuple[float, list[float]]] = []
        for other, ms in measured.items():
            if other != name:
                pairs = [(times, times.ms[other]) for times in alike if other in times.ms]
                references.append((ms, _vote_on_times(name, pairs, subject)))
        fastest = [
            (times, [times.ms[other] for other in measured if other in times.ms and other != name]) for times in alike
        ]
        least = min(
            (ms for other, ms in measured.items() if any(other in times.ms for times in self.networks)), default=0.0
        )
        pairs = [(times, min(others)) for times, others in fastest if others]
        references.append((least, _vote_on_times(name, pairs, subject)))
        usable = [(max(stdev(logs), _LEAST_SPREAD), ms, logs) for ms, logs in references if ms and len(logs) >= _FEWEST]
        if not usable:
            return None
        spread, ms, logs = min(usable, key=lambda candidate: candidate[0] * math.sqrt(1.0 + 1.0 / len(candidate[2])))
        return ExpectedTime(ms * math.exp(fmean(logs)), spread * math.sqrt(1.0 + 1.0 / len(logs)), len(logs) - 1)

    def seen(self, name: str, subject: DecisionSubject) -> int:
        """On how many other networks of the kind an implementation was measured."""
        alike = (times for times in self.networks if times.kind == subject.kind and times.network != subject.network)
        return len({times.network for times in alike if name in times.ms})

    def compile_s(self, backend: str, operators: int) -> float | None:
        """Seconds until a network of that many operators is ready on a backend; None where nothing is known."""
        timing = self.compiling.get(backend)
        return None if timing is None else timing.start_s + timing.operator_s * operators

    def tries(self, way: str, subject: DecisionSubject, incumbent: str, seconds: float | None = None) -> Tries:
        """What a way has gained where the same backend was the incumbent, on other networks of the kind. For `seconds`, where that
        matters: of searches that had more than three times as long only those count that gained nothing, and of searches that had
        less than a third only those that gained."""
        alike = [
            attempt
            for attempt in self.attempts
            if (attempt.way, attempt.incumbent, attempt.kind) == (way, incumbent, subject.kind)
        ]
        alike = [attempt for attempt in alike if attempt.network != subject.network]
        if seconds is not None:
            alike = [
                attempt for attempt in alike if attempt.seconds is None or _says(attempt.won, attempt.seconds / seconds)
            ]
        return _vote_on_ways(alike, subject)


def _vote_on_ways(attempts: Sequence[Attempt], subject: DecisionSubject) -> Tries:
    """One vote a network: whether the way gained there, of those where it could."""
    able = [attempt for attempt in attempts if not attempt.says_nothing]
    votes = _votes([(attempt.network, attempt.processor, float(attempt.won)) for attempt in able], subject)
    newest = {(attempt.network, attempt.processor): attempt for attempt in able}
    return Tries(len(votes), sum(votes), tuple(attempt.gain for attempt in newest.values() if attempt.won))


def _vote_on_times(name: str, known: Sequence[tuple[NetworkTimes, float]], subject: DecisionSubject) -> list[float]:
    """One vote a network: the logarithm of an implementation's time over another one's, which is with each."""
    return _votes([(times.network, times.processor, math.log(times.ms[name] / ms)) for times, ms in known], subject)


def _votes(lines: Iterable[tuple[str, str, float]], subject: DecisionSubject) -> list[float]:
    """A number for each network, of lines that name network, processor and a number, oldest first: of each processor the newest;
    the mean of the others' shrinks this one's."""
    newest: dict[str, dict[str, float]] = {}
    for network, processor, number in lines:
        newest.setdefault(network, {})[processor] = number
    votes: list[float] = []
    for by_processor in newest.values():
        others = [number for processor, number in by_processor.items() if processor != subject.processor]
        own_number = by_processor.get(subject.processor)
        if own_number is None:
            votes.append(fmean(others))
        else:
            votes.append((own_number + _OF_OTHERS * fmean(others)) / (1.0 + _OF_OTHERS) if others else own_number)
    return votes


def _says(gained: bool, longer: float) -> bool:
    """Whether a search that had that many times as long says what comes of this one: more time finds no less."""
    return longer <= _MUCH_LONGER if gained else longer >= 1.0 / _MUCH_LONGER


def student_quantile(probability: float, freedom: int) -> float:
    """Of Student's t distribution, by its expansion about the normal one (Abramowitz & Stegun 26.7.5); within 1 % for three degrees
    of freedom or more and probabilities from 0.01 to 0.99."""
    z, n = NormalDist().inv_cdf(probability), float(freedom)
    terms: Sequence[tuple[float, float]] = (
        ((z**3 + z) / 4, n),
        ((5 * z**5 + 16 * z**3 + 3 * z) / 96, n**2),
        ((3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384, n**3),
        ((79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160, n**4),
    )
    return z + sum(top / below for top, below in terms)


def derive_record(lines: Iterable[LogLine | UnusableLine]) -> TrackRecord:
    """The record of a log; what is unusable is left out."""
    usable = [line for line in lines if isinstance(line, LogLine)]
    return TrackRecord(
        tuple(line.times for line in usable if line.times is not None),
        dict(line.compiling for line in usable if line.compiling is not None),
        tuple(line.attempt for line in usable if line.attempt is not None),
    )


@cache
def shipped_record() -> TrackRecord:
    """The one that bricolage comes with."""
    return derive_record(read_lines(SHIPPED.read_text(encoding="utf-8").splitlines()))


def extend_shipped(database: Database) -> TrackRecord:
    """The one that bricolage comes with, and after it what decisions that share a database have added to its log."""
    before = shipped_record()
    kinds = {times.network: times.kind for times in before.networks}
    kinds |= {attempt.network: attempt.kind for attempt in before.attempts}
    derived = derive_record(database.decision_log(kinds))
    return TrackRecord(
        before.networks + derived.networks,
        {**before.compiling, **derived.compiling},
        before.attempts + derived.attempts,
    )
