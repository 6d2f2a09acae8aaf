"""`Throughput`: what was found when requests a second were asked for: who answers how many, and how long each request takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from bricolage.base.codec import Length, Within
from bricolage.plan.operating_point import MOST_ROWS, MOST_STREAMS
from bricolage.work.implementation import Implementation

Rate = Annotated[float, Within(0.0, 1e15)]
"""Requests a second."""
Milliseconds = Annotated[float, Within(0.0, 1e18)]
Kind = Literal["copies", "queue", "plan"]
"""Copies of a single backend; its own queue; copies of a plan of ours."""
Streams = Annotated[int, Within(0, MOST_STREAMS)]
"""0 where a backend's own queue did not say how many it has."""
MOST_SERVERS = 10_000


@dataclass(frozen=True)
class ServingConfig:
    """One way to answer requests: a program, how many copies of it run at a time, and what came of it. A request is one row along
    the model's batch dimension, or one call where there is none."""

    name: str
    """For people: "openvino f32, 2 streams of 1 thread, batch 4"."""
    program: str
    """A single implementation ("openvino f32"), or the name of a placed plan."""
    kind: Kind
    streams: Streams
    threads: Annotated[int, Within(1, MOST_STREAMS)]
    """Of each stream; of a queue, all."""
    batch: Annotated[int, Within(1, MOST_ROWS)]
    rate: Rate | None = None
    rate_ci: tuple[Rate, Rate] | None = None
    p50_ms: Milliseconds | None = None
    p99_ms: Milliseconds | None = None
    error: Annotated[float, Within(0.0, float("inf"))] | None = None
    accepted: bool = False
    """Whether its answers are right."""
    raced: bool = False
    """Whether its figures are those of the final race."""
    reason: str = ""
    """Why it was dropped or lost; empty for the winner."""
    implementation: Implementation | None = None
    """Of a single backend."""
    ratio: Rate | None = None
    """Requests a second over those of the best single backend, from paired rounds."""
    ratio_ci: tuple[Rate, Rate] | None = None

    def __post_init__(self) -> None:
        if self.accepted and (self.rate is None or self.p99_ms is None):
            raise ValueError(f"'{self.name[:60]}' is accepted and has no figures")


@dataclass(frozen=True)
class Throughput:
    """The decision on an operating point, with its evidence."""

    servers: Annotated[tuple[ServingConfig, ...], Length(1, MOST_SERVERS)]
    chosen: str
    """Name of the server that ships."""
    best_peer: str
    """Name of the best one that is a single backend, its own queue included."""
    ratio: Rate
    """Requests a second of the chosen one over the best peer's."""
    ratio_ci: tuple[Rate, Rate]
    significant: bool
    """Whether the chosen one is a plan that beats every peer by more than the noise and 2 %."""
    front: tuple[str, ...] = ()
    """Names of those that no other beats in requests a second and in p99 latency, the most requests first."""
    latency_limit_ms: Milliseconds | None = None
    batch_dimension: str = ""
    """Name of the dimension along which requests are put together; empty where the model has none."""
    no_batches: str = ""
    """Why requests are not put together."""
    best_other: str = ""
    """Name of the best server that is another tool's (`plan.other_tool`), its own queue included; empty where there is none, and
    in plans of before this was asked."""
    over_other: Rate | None = None
    """Requests a second of the chosen one over its."""
    over_other_ci: tuple[Rate, Rate] | None = None
    """From paired rounds of the race; None where they did not meet."""

    def __post_init__(self) -> None:
        names = [server.name for server in self.servers]
        if len(set(names)) != len(names):
            raise ValueError("two servers have one name")
        for name in (self.chosen, self.best_peer, *self.front, *filter(None, [self.best_other])):
            if name not in names:
                raise ValueError(f"'{name[:60]}' is none of its servers")

    def server(self, name: str) -> ServingConfig:
        """The server of that name."""
        return next(config for config in self.servers if config.name == name)

    @property
    def winner(self) -> ServingConfig:
        """The server that ships."""
        return self.server(self.chosen)
