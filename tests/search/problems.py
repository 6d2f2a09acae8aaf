"""Small placement problems for the search tests, and a brute-force answer that shares no code with the searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from bricolage.work.bits import members
from bricolage.work.bits import of as bitset
from bricolage.work.cost import Estimate
from bricolage.work.implementation import Endpoint, Implementation, KernelConfig
from bricolage.work.placement import Candidate
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

BACKENDS = ("a", "b", "c")


@dataclass(frozen=True)
class PairCosts:
    """Transfer costs that grow with the size, by a factor of each ordered pair."""

    factors: tuple[tuple[float, ...], ...]

    def __call__(self, producer: Endpoint, consumer: Endpoint, size: int, /) -> Estimate:
        factor = self.factors[BACKENDS.index(producer.backend)][BACKENDS.index(consumer.backend)]
        return Estimate.of(factor * size, "measured")


def offer(region: int, backend: str, cost_ms: float, config: str = "f32", *, merges: bool = True) -> Candidate:
    """A candidate of a backend in one of its configurations."""
    return Candidate(region, Implementation(backend, KernelConfig(config)), cost_ms, merges=merges)


def graph_of(edges: Sequence[Sequence[int]], sizes: Sequence[int] | None = None) -> WorkGraph:
    """A graph in which operator i has one output, read by the operators `edges[i]`; sinks are graph outputs."""
    tensors = [WorkTensor("x", -1, (0,), 1)] if edges else []
    tensors += [
        WorkTensor(f"t{i}", i, tuple(consumers), sizes[i] if sizes else 1, is_output=not consumers)
        for i, consumers in enumerate(edges)
    ]
    return WorkGraph(tuple(WorkOperator(f"op{i}") for i in range(len(edges))), tuple(tensors))


def chains(count: int, length: int = 3) -> WorkGraph:
    """A source, `count` parallel chains and a root, numbered chain after chain."""
    edges: list[list[int]] = [[1 + length * c for c in range(count)]]
    root = count * length + 1
    for c in range(count):
        edges += [[root if k == length - 1 else 2 + length * c + k] for k in range(length)]
    return graph_of([*edges, []])


def chain_candidates(count: int, length: int = 3, backends: Sequence[str] = ("a",)) -> list[Candidate]:
    """Every operator alone, and every pair of neighbours within a chain."""
    lows = [1 + length * c + k for c in range(count) for k in range(length - 1)]
    return [
        candidate
        for number, backend in enumerate(backends)
        for candidate in (
            *(offer(1 << i, backend, 1.0 + (i * 7 + number * 3) % 5) for i in range(count * length + 2)),
            *(offer(3 << low, backend, 1.5 + (low * 5 + number) % 7) for low in lows),
        )
    ]


def covers(size: int, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, ...]]:
    """Every choice of candidates that covers `size` operators exactly once."""

    def extend(covered: int, chosen: tuple[Candidate, ...]) -> Iterator[tuple[Candidate, ...]]:
        if covered == (1 << size) - 1:
            yield chosen
            return
        first = next(i for i in range(size) if not covered >> i & 1)
        for candidate in candidates:
            if candidate.region >> first & 1 and not candidate.region & covered:
                yield from extend(covered | candidate.region, (*chosen, candidate))

    return extend(0, ())


def executable(graph: WorkGraph, chosen: Sequence[Candidate]) -> bool:
    """Whether the regions can run one after the other: run whatever is ready until nothing is left."""
    done: set[int] = set()
    left = list(chosen)
    while left:
        for candidate in left:
            inside = {i for i in range(len(graph)) if candidate.region >> i & 1}
            needed = {t.producer for t in graph.tensors if t.producer >= 0 and inside & set(t.consumers)} - inside
            if needed <= done:
                done |= inside
                left.remove(candidate)
                break
        else:
            return False
    return True


def total_cost(graph: WorkGraph, chosen: Sequence[Candidate], transfers: TransferCosts) -> float:
    total = sum(candidate.cost_ms for candidate in chosen)
    for candidate in chosen:
        for tensor in graph.tensors:
            if any(candidate.region >> c & 1 for c in tensor.consumers) and tensor.producer >= 0:
                source = next(other for other in chosen if other.region >> tensor.producer & 1)
                if source is not candidate:
                    total += transfers(
                        source.implementation.endpoint, candidate.implementation.endpoint, tensor.bytes
                    ).ms
    return total


def brute_force(graph: WorkGraph, candidates: Sequence[Candidate], transfers: TransferCosts) -> float | None:
    """The least cost of an executable cover, None if there is none."""
    costs = [
        total_cost(graph, chosen, transfers) for chosen in covers(len(graph), candidates) if executable(graph, chosen)
    ]
    return min(costs, default=None)


@st.composite
def problems(draw: st.DrawFn, most: int = 8) -> tuple[WorkGraph, list[Candidate], PairCosts]:
    """A random graph, every operator alone and random regions (not all convex or connected), random transfer costs."""
    size = draw(st.integers(1, most))
    edges = [
        draw(st.lists(st.integers(i + 1, size - 1), unique=True, max_size=3)) if i < size - 1 else []
        for i in range(size)
    ]
    graph = graph_of(edges, [draw(st.integers(1, 4)) for _ in range(size)])
    cost = st.integers(1, 40).map(lambda value: value / 4)
    candidates = [
        offer(1 << i, backend, draw(cost))
        for i in range(size)
        for backend in draw(st.lists(st.sampled_from(BACKENDS), min_size=1, max_size=2, unique=True))
    ]
    regions = draw(st.lists(st.tuples(st.integers(1, (1 << size) - 1), st.sampled_from(BACKENDS), cost), max_size=10))
    candidates += [offer(region, backend, value) for region, backend, value in regions]
    # Pairs of operators joined by an edge are what real patterns produce, and what forms cycles.
    pairs = [(i, j) for i, consumers in enumerate(edges) for j in consumers]
    if pairs:
        for i, j in draw(st.lists(st.sampled_from(pairs), max_size=8)):
            candidates.append(offer(1 << i | 1 << j, draw(st.sampled_from(BACKENDS)), draw(cost), "fused"))
    factor = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 3.0])
    factors = tuple(tuple(draw(factor) for _ in BACKENDS) for _ in BACKENDS)
    return graph, candidates, PairCosts(factors)


def crossing() -> tuple[WorkGraph, list[Candidate]]:
    """Two pairs that are convex and connected, yet need each other: {0, 3} and {1, 2} with edges 0->2 and 1->3.

    Together they would be cheapest (2 ms); the best executable cover is one pair and two single operators (5 ms).
    """
    graph = graph_of([[2, 3], [2, 3], [], []])
    singles = [offer(1 << i, "a", 2.0) for i in range(4)]
    return graph, [*singles, offer(0b1001, "a", 1.0), offer(0b0110, "b", 1.0)]


def readers(graph: WorkGraph, region: int) -> int:
    """The operators outside a region that read from it."""
    inside = set(members(region))
    return bitset({s for number in inside for s in graph.successors[number]} - inside)


def sources(graph: WorkGraph, region: int) -> int:
    """The operators outside a region that it reads from."""
    inside = set(members(region))
    return bitset({p for number in inside for p in graph.predecessors[number]} - inside)
