"""The log of decisions: what each way to a faster plan gained, and what each implementation took, as it was measured.

Lines are added, and none is changed. Those that bricolage comes with are in `costs/models/track_record.jsonl`; a user's own are in
the cost database. What decisions make of them is `costs.models.track_record`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from bricolage.base.codec import DecodeError, Within, decode, encode, parse
from bricolage.graph.network_kind import NetworkKind
from bricolage.plan.agenda_record import Gain, Share
from bricolage.work.gain import LEAST_GAIN

VERSION = 1
"""Of the lines."""
Positive: TypeAlias = Annotated[float, Within(1e-9, 1e12)]


@dataclass(frozen=True)
class NetworkTimes:
    """One network on one machine: milliseconds of the whole by implementation ("xla f32")."""

    network: str
    """Key of its graph (`graph.identity`)."""
    kind: NetworkKind
    processor: str
    ms: Mapping[str, Positive]
    name: str = ""
    """For people."""


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
    """Key of its graph (`graph.identity`)."""
    kind: NetworkKind
    incumbent: str
    """The backend that was fastest until then."""
    gain: Gain
    """Share of the incumbent's time that the best candidate of the way saved; negative where it was slower."""
    seconds: Annotated[float, Within(0.0, 1e6)] | None = None
    """That it took; None where they are not on record."""
    processor: str = ""
    """Empty where it is not on record."""
    interval: tuple[Gain, Gain] | None = None
    """Of the gain, 95 %; None where it is not on record. Of lines of before, a gain within the noise is 0."""
    chance: Share | None = None
    """That the decision gave it; None where that was unknown."""
    bound: Share | None = None
    """Share that it could not have saved more than, as was known before it; None where nothing bounded it."""
    name: str = ""
    """Of the network, for people."""

    @property
    def says_nothing(self) -> bool:
        """Whether it was known before that it cannot gain: it says nothing of networks where it can."""
        return self.bound is not None and self.bound <= LEAST_GAIN

    @property
    def won(self) -> bool:
        """Whether it gained beyond the noise, and more than what counts as a gain."""
        return self.gain > LEAST_GAIN and (self.interval is None or self.interval[0] > 0.0)


@dataclass(frozen=True)
class LogLine:
    """A line of the log, which has one of the three."""

    version: int
    times: NetworkTimes | None = None
    attempt: Attempt | None = None
    compiling: tuple[str, Compiling] | None = None
    """Backend, and how long it compiles; the last line of a backend counts."""


@dataclass(frozen=True)
class UnusableLine:
    """A line that says nothing here, and why."""

    number: int
    """The first is 1."""
    reason: str


def write_line(line: LogLine) -> str:
    """As JSON, without what a line has not."""
    return json.dumps(encode_line(line), sort_keys=True)


def read_lines(
    texts: Iterable[str], kinds: MutableMapping[str, NetworkKind] | None = None
) -> Iterator[LogLine | UnusableLine]:
    """Lines of JSON in order. Unusable are those of another version, those that are cut off, and those of a network whose key
    another graph has: one that an earlier line says to be of another kind. `kinds`: of networks that are known before, by their
    keys; those that lines name are added."""
    seen = {} if kinds is None else kinds
    for number, text in enumerate(texts, 1):
        try:
            yield read_line(parse(text), seen)
        except DecodeError as error:
            yield UnusableLine(number, str(error))


def read_line(content: object, kinds: MutableMapping[str, NetworkKind]) -> LogLine:
    """One line that was parsed. Arguments as `read_lines`.

    Raises:
        DecodeError: it is of another version, not a line, or of a network whose key another graph has.
    """
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise DecodeError(f"it is of version {version}, and this bricolage reads {VERSION}")
    line = decode(LogLine, content, "line")
    facts = line.times or line.attempt
    if facts is not None and kinds.setdefault(facts.network, facts.kind) != facts.kind:
        earlier_kind = kinds[facts.network]
        raise DecodeError(
            f"it is of a {facts.kind} network whose key is that of another graph, which is {earlier_kind}"
        )
    return line


def encode_line(line: LogLine) -> dict[str, object]:
    """What JSON holds of a line, without what it has not."""
    facts = encode(line)
    assert isinstance(facts, dict)
    return {name: value for name, value in facts.items() if value is not None}
