"""What implementations, and ways to a faster plan, have achieved on networks before: the grounds on which a decision leaves
something unmeasured, with the most that it could have gained.

An implementation's bound is a one-sided prediction interval of Student's t (Hahn & Meeker, Statistical Intervals, 1991, section
4.8) for the logarithm of its time over the time of the fastest that is measured: on the next network of the kind it is faster with
at most the given risk. A way's bound is the share of decisions in which it gained, with Jeffreys' prior (half a success in one
trial more).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Annotated, TypeAlias

from bricolage.codec import Within, decode, encode, parse
from bricolage.graph.network_kind import NetworkKind

SHIPPED = Path(__file__).parent / "track_record.json"
_FEWEST = 4
"""Networks of a kind from which an interval is made; with fewer nothing is said."""
_MUCH_LONGER = 3.0
"""A search that gained in more than this many times as long may have gained nothing yet by then, and the other way round."""
_LEAST_SPREAD = 0.05
"""Of the logarithm: networks that happen to agree do not make the next one sure."""

Positive: TypeAlias = Annotated[float, Within(1e-9, 1e12)]


@dataclass(frozen=True)
class NetworkTimes:
    """One network on one machine: milliseconds of the whole by implementation ("xla f32")."""

    network: str
    kind: NetworkKind
    processor: str
    ms: Mapping[str, Positive]


@dataclass(frozen=True)
class Compiling:
    """Seconds that a backend takes until a whole network is ready to be timed: at least, and for each operator."""

    start_s: Annotated[float, Within(0.0, 1e5)]
    operator_s: Annotated[float, Within(0.0, 1e5)]


@dataclass(frozen=True)
class Attempt:
    """One decision in which a way to a faster plan was taken to its end."""

    way: str
    network: str
    kind: NetworkKind
    incumbent: str
    """The backend that was fastest without."""
    gain: Annotated[float, Within(0.0, 1.0)]
    """Share of the time that it saved; 0 where that was not significant."""
    seconds: Annotated[float, Within(0.0, 1e6)] | None = None
    """That it had, where more would have found more; None where it is taken to its end in any case."""


@dataclass(frozen=True)
class Tries:
    """What a way gained in decisions like this one."""

    decisions: int
    gains: tuple[float, ...]
    """Where there were any, as shares of the time."""

    @property
    def chance(self) -> float:
        """That it gains in the next decision."""
        return (len(self.gains) + 0.5) / (self.decisions + 1.0)


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
    """All of it. Where it comes from is in the file, for people."""

    networks: tuple[NetworkTimes, ...] = ()
    compiling: Mapping[str, Compiling] = field(default_factory=dict)
    """By backend."""
    attempts: tuple[Attempt, ...] = ()
    source: str = ""

    @cached_property
    def digest(self) -> str:
        """Short hash of all that decisions depend on."""
        return hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()[:16]

    def expect(self, name: str, kind: NetworkKind, measured: Mapping[str, float]) -> ExpectedTime | None:
        """What an implementation takes on a network of a kind; None where too little is known. `measured`: what others take there,
        in ms. It is told about the one whose times its own follow most closely (Inductor's those of OpenVINO, say, since both call
        oneDNN), or about the fastest of them."""
        alike = [one.ms for one in self.networks if one.kind == kind and name in one.ms]
        references: list[tuple[float, list[float]]] = []
        for other, ms in measured.items():
            if other != name:
                references.append((ms, [math.log(times[name] / times[other]) for times in alike if other in times]))
        fastest = [
            (times[name], [times[other] for other in measured if other in times and other != name]) for times in alike
        ]
        least = min(
            (ms for other, ms in measured.items() if any(other in one.ms for one in self.networks)), default=0.0
        )
        references.append((least, [math.log(own / min(others)) for own, others in fastest if others]))
        known = [(max(stdev(logs), _LEAST_SPREAD), ms, logs) for ms, logs in references if ms and len(logs) >= _FEWEST]
        if not known:
            return None
        spread, ms, logs = min(known, key=lambda one: one[0] * math.sqrt(1.0 + 1.0 / len(one[2])))
        return ExpectedTime(ms * math.exp(fmean(logs)), spread * math.sqrt(1.0 + 1.0 / len(logs)), len(logs) - 1)

    def seen(self, name: str, kind: NetworkKind) -> int:
        """On how many networks of a kind an implementation was measured."""
        return sum(one.kind == kind and name in one.ms for one in self.networks)

    def compile_s(self, backend: str, operators: int) -> float | None:
        """Seconds until a network of that many operators is ready on a backend; None where nothing is known."""
        found = self.compiling.get(backend)
        return None if found is None else found.start_s + found.operator_s * operators

    def tries(self, way: str, kind: NetworkKind, incumbent: str, seconds: float | None = None) -> Tries:
        """What a way has gained where the same backend was the incumbent, on networks of the kind; on networks of all kinds where
        those are too few. For `seconds`, where that matters: of searches that had more than three times as long
        only those count that gained nothing, and of searches that had less than a third only those that gained."""
        alike = [one for one in self.attempts if one.way == way and one.incumbent == incumbent]
        if seconds is not None:
            alike = [one for one in alike if one.seconds is None or _says(one.gain > 0.0, one.seconds / seconds)]
        of_kind = [one for one in alike if one.kind == kind]
        chosen = of_kind if len(of_kind) >= _FEWEST else alike
        return Tries(len(chosen), tuple(one.gain for one in chosen if one.gain > 0.0))


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


@cache
def shipped() -> TrackRecord:
    """The one that bricolage comes with."""
    return decode(TrackRecord, parse(SHIPPED.read_bytes()), "track record")
