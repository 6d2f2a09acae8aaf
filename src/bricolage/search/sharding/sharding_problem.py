"""Operators, each with the layouts in which it can run on a group of alike devices; a choice of them, and what it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bricolage.device.collective import Ring
from bricolage.search.sharding.layouts import Layout, conversion_ms, held_bytes


@dataclass(frozen=True)
class Signature:
    """One way to run an operator: layouts of what it reads and writes."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    ms: float
    """On each device."""


@dataclass(frozen=True)
class DividedTensor:
    """A tensor, whole."""

    name: str
    bytes: float
    lasting_bytes: float = 0.0
    """Of what lasts beyond the step and lies as it does: weights with their optimiser's state. 0: it is there from the operator
    that writes it to its last reader."""
    root: int = -1
    """The tensor whose memory it shares, as a view does; -1: it has its own."""


@dataclass(frozen=True)
class DividedOperator:
    """An operator; one that reads nothing brings a tensor into the graph."""

    name: str
    reads: tuple[int, ...]
    """Tensors, by argument."""
    writes: tuple[int, ...]
    signatures: tuple[Signature, ...]
    in_place: tuple[int, ...] = ()
    """Arguments that must come as they lie: what an update writes."""
    weight: float = 1.0
    """How often it runs: an update after N micro-batches counts an Nth, and with it the conversions of what it reads."""


@dataclass(frozen=True)
class ShardingProblem:
    """Operators in the order in which they run.

    Raises ValueError where an operator has no signature or one of another length, or reads what is not written before it.
    """

    operators: tuple[DividedOperator, ...]
    tensors: tuple[DividedTensor, ...]
    ring: Ring
    memory_bytes: float = math.inf
    """Of each device."""

    def __post_init__(self) -> None:
        written: set[int] = set()
        for operator in self.operators:
            if not operator.signatures:
                raise ValueError(f"operator '{operator.name}' has no layout in which it runs")
            for way in operator.signatures:
                if len(way.inputs) != len(operator.reads) or len(way.outputs) != len(operator.writes):
                    raise ValueError(f"operator '{operator.name}' has a layout for each tensor that it reads or writes")
            if not set(operator.reads) <= written:
                raise ValueError(f"operator '{operator.name}' reads what no operator before it writes")
            written.update(operator.writes)
        if any(tensor.root >= number for number, tensor in enumerate(self.tensors)):
            raise ValueError("a view comes before the tensor whose memory it shares")

    @cached_property
    def writer(self) -> tuple[tuple[int, int], ...]:
        """By tensor the operator that writes it, and as which output; (-1, 0) where nothing does."""
        writers = [(-1, 0)] * len(self.tensors)
        for number, operator in enumerate(self.operators):
            for place, tensor in enumerate(operator.writes):
                writers[tensor] = (number, place)
        return tuple(writers)

    @cached_property
    def lifetimes(self) -> tuple[tuple[int, int], ...]:
        """By tensor the operator that writes it and the last that reads it or what shares its memory; the whole step where it
        lasts."""
        spans = [(first, first) for first, _ in self.writer]
        for number, operator in enumerate(self.operators):
            for tensor in operator.reads:
                spans[tensor] = (spans[tensor][0], number)
        for tensor in reversed(range(len(spans))):
            root = self.tensors[tensor].root
            if root >= 0:
                spans[root] = (spans[root][0], max(spans[root][1], spans[tensor][1]))
        end = len(self.operators) - 1
        return tuple(
            (0, end) if tensor.lasting_bytes else span for span, tensor in zip(spans, self.tensors, strict=True)
        )

    @cached_property
    def edges(self) -> tuple[tuple[int, int, int, int], ...]:
        """Writer, its output, reader and its argument, of each reading."""
        return tuple(
            (*self.writer[tensor], number, argument)
            for number, operator in enumerate(self.operators)
            for argument, tensor in enumerate(operator.reads)
        )

    def conversion(self, edge: tuple[int, int, int, int], writes: int, reads: int) -> float:
        """Milliseconds to convert on an edge, by the signatures of both ends; infinite where that is not possible."""
        writer, output, reader, argument = edge
        consumer = self.operators[reader]
        source = self.operators[writer].signatures[writes].outputs[output]
        target = consumer.signatures[reads].inputs[argument]
        if argument in consumer.in_place and source != target:
            return math.inf
        return consumer.weight * conversion_ms(source, target, self.tensors[consumer.reads[argument]].bytes, self.ring)

    def bytes_of(self, tensor: int, layout: Layout) -> float:
        """On each device: the tensor, or what lasts of it; 0 where its memory is another's."""
        facts = self.tensors[tensor]
        if facts.root >= 0:
            return 0.0
        return held_bytes(layout, max(facts.bytes, facts.lasting_bytes), self.ring.workers)

    def copy_bytes(self, edge: tuple[int, int, int, int], writes: int, reads: int) -> float:
        """On each device: what a reader holds in the place of what lies otherwise (`copy_span`)."""
        writer, output, reader, argument = edge
        source = self.operators[writer].signatures[writes].outputs[output]
        target = self.operators[reader].signatures[reads].inputs[argument]
        size = self.tensors[self.operators[reader].reads[argument]].bytes
        return 0.0 if source == target else held_bytes(target, size, self.ring.workers)

    def copy_span(self, edge: tuple[int, int, int, int]) -> tuple[int, int]:
        """The first and the last operator while which that copy is there: its reader; for a view all that read the view."""
        reader = self.operators[edge[2]]
        views = [
            self.lifetimes[write][1] for write in reader.writes if self.tensors[write].root == reader.reads[edge[3]]
        ]
        return edge[2], max([edge[2], *views])


@dataclass(frozen=True)
class ShardingPlan:
    """For each operator the number of its signature."""

    choices: tuple[int, ...]
    ms: float
    conversion_ms: float
    """Of these, what conversions take."""
    peak_bytes: float
    """On each device."""
    bound_ms: float
    """No choice that fits takes less."""
    method: str = ""
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """Part of the time that is not proven to be needed."""
        return 0.0 if self.ms <= self.bound_ms else 1.0 - self.bound_ms / self.ms


def judge_choice(
    problem: ShardingProblem, choices: Sequence[int], bound: float, method: str, seconds: float = 0.0
) -> ShardingPlan:
    """What a choice takes."""
    moving = math.fsum(problem.conversion(edge, choices[edge[0]], choices[edge[2]]) for edge in problem.edges)
    ms = moving + math.fsum(
        operator.weight * operator.signatures[choice].ms
        for operator, choice in zip(problem.operators, choices, strict=True)
    )
    peak = max(device_memory(problem, choices), default=0.0)
    return ShardingPlan(tuple(choices), ms, moving, peak, min(bound, ms), method, seconds)


def device_memory(problem: ShardingProblem, choices: Sequence[int]) -> list[float]:
    """Bytes on each device while each operator runs."""
    changes = [0.0] * (len(problem.operators) + 1)
    for tensor, (first, last) in enumerate(problem.lifetimes):
        writer, output = problem.writer[tensor]
        if writer < 0:
            continue
        size = problem.bytes_of(tensor, problem.operators[writer].signatures[choices[writer]].outputs[output])
        changes[first] += size
        changes[last + 1] -= size
    for edge in problem.edges:
        size = problem.copy_bytes(edge, choices[edge[0]], choices[edge[2]])
        first, last = problem.copy_span(edge)
        changes[first] += size
        changes[last + 1] -= size
    usage, held = [], 0.0
    for change in changes[:-1]:
        held += change
        usage.append(held)
    return usage


def least_memory(problem: ShardingProblem) -> float:
    """Bytes on each device that no choice goes below: what lasts, each as little as any signature leaves."""
    total = 0.0
    for tensor, facts in enumerate(problem.tensors):
        writer, output = problem.writer[tensor]
        if facts.lasting_bytes and writer >= 0:
            ways = problem.operators[writer].signatures
            total += min(problem.bytes_of(tensor, way.outputs[output]) for way in ways)
    return total
