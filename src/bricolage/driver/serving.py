"""Ways to answer requests: which programs, in how many streams of how many threads, with how many rows together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bricolage.base.options import available_cores
from bricolage.driver.session import Session
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Graph
from bricolage.measure.closed_loop import Serving
from bricolage.measure.request_rates import ServedLoad
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.operating_point import OperatingPoint, format_count
from bricolage.plan.program_step import placement_steps
from bricolage.plan.throughput import Kind, ServingConfig
from bricolage.work.implementation import Assignment, Implementation, Placement


@dataclass(frozen=True)
class Batch:
    """The model at one batch size, ready to be measured."""

    rows: int
    variant: TimedVariant
    inputs: Path
    expected: Path
    """Files as `Oracle.files` makes them, under names of their own."""
    bound: float
    """Relative error accepted."""
    agreement: float
    """Relative difference up to which two answers are equal."""


@dataclass(frozen=True)
class ServingCandidate:
    """One way to answer requests."""

    program: str
    kind: Kind
    batch: Batch
    graph: Graph
    """The variant that it runs."""
    placement: Placement
    streams: int
    threads: int
    """Of each stream."""
    queue: int | None = None
    """For a backend's own queue: the streams asked for, 0 for its own choice."""

    @cached_property
    def name(self) -> str:
        """For people, and one for each candidate."""
        batch = "" if self.batch.rows == 1 else f", batch {self.batch.rows}"
        if self.queue is not None:
            asked = "" if self.queue == 0 else f", {format_count(self.queue, 'stream')}"
            return f"{self.program} queue{asked}{batch}"
        return f"{self.program}, {self.point.layout}{batch}"

    @property
    def implementation(self) -> Implementation | None:
        """Of a single backend; None of a plan."""
        return self.placement[0].implementation if self.kind != "plan" else None

    @property
    def point(self) -> OperatingPoint:
        """How an executable serves like this, apart from how long requests wait for company."""
        return OperatingPoint(self.streams, self.threads, self.batch.rows)

    def spec(self, session: Session) -> CandidateSpec:
        """As something to be measured."""
        device, most = session.device, usable_cores(session)
        groups = (device.cores[:most],) if self.queue is not None else self.point.groups(device.cores, most)
        steps = placement_steps(self.graph, self.placement, session.store)
        outputs = tuple(info.name for info in self.graph.outputs)
        serving = Serving(groups, self.batch.rows, self.queue, self.batch.agreement)
        alone = self.streams == 1 and len({step.implementation.backend for step in steps}) == 1
        return CandidateSpec(self.name, steps, outputs, self.threads, alone, device, serving=serving)

    def server(self, served: ServedLoad, raced: bool = False, reason: str = "") -> ServingConfig:
        """As an entry of the plan."""
        cost = served.cost
        accepted = cost.outcome == "ok" and served.p99_ms is not None
        return ServingConfig(
            name=self.name,
            program=self.program,
            kind=self.kind,
            streams=self.queue if self.queue is not None else self.streams,
            threads=self.threads,
            batch=self.batch.rows,
            rate=served.rate,
            rate_ci=served.rate_ci,
            p50_ms=served.p50_ms,
            p99_ms=served.p99_ms,
            error=cost.error,
            accepted=accepted,
            raced=raced,
            reason=reason or ("" if cost.outcome == "ok" else f"{cost.outcome}: {cost.reason}"),
            implementation=self.implementation,
        )


def usable_cores(session: Session) -> int:
    """That all streams may have together: as many as threads are asked for, and as this process may use."""
    return min(session.options.threads, session.device.threads, available_cores())


def layouts(cores: int) -> list[tuple[int, int]]:
    """Streams and threads of each, (S, T), most streams first: T = 1, 2, 4 ... and all; S as many as there is room for. Cores that
    are left over idle."""
    threads = [1 << power for power in range(cores.bit_length()) if 1 << power < cores] + [cores]
    return [(cores // each, each) for each in threads]


def of_backend(implementation: Implementation, batch: Batch, session: Session) -> Iterator[ServingCandidate]:
    """A single backend on the whole model: copies in every layout, and its own queue, with as many streams as it chooses and as
    many as the layouts have."""
    cores = usable_cores(session)
    graph = batch.variant.graph
    placement = (Assignment(graph.everything.bits, implementation),)
    program = str(implementation)
    for streams, threads in layouts(cores):
        yield ServingCandidate(program, "copies", batch, graph, placement, streams, threads)
    if session.backend(implementation.backend).queues:
        for asked in (0, *(streams for streams, _ in layouts(cores))):
            yield ServingCandidate(
                program, "queue", batch=batch, graph=graph, placement=placement, streams=1, threads=cores, queue=asked
            )


def weight_bytes(graph: Graph) -> int:
    """Of all its constants."""
    values = (value.const_value for each in graph.model.graphs() for value in each.initializers.values())
    return sum(value.nbytes for value in values if value is not None)


def unique(candidates: Sequence[ServingCandidate]) -> list[ServingCandidate]:
    """Each name once."""
    return list({candidate.name: candidate for candidate in candidates}.values())
