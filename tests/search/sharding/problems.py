"""Small problems of sharding, and what a choice takes by its definition: it shares no code with the search."""

from __future__ import annotations

import itertools
import math

from hypothesis import strategies as st

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.search.sharding.sharding_problem import DividedOperator, DividedTensor, ShardingProblem, Signature

LAYOUTS = ("R", "S(0)", "S(1)", "P")


@st.composite
def problems(draw: st.DrawFn) -> ShardingProblem:
    """Up to five operators, each of which writes one tensor and reads some before it."""
    count = draw(st.integers(1, 5))
    operators, tensors = [], []
    for number in range(count):
        reads = tuple(one for one in range(number) if draw(st.booleans()))
        some = []
        for way in range(draw(st.integers(1, 3))):
            outputs = (draw(st.sampled_from(LAYOUTS)),)
            # Summands come from operators alone, and one way takes what every other can be made into.
            inputs = tuple(draw(st.sampled_from(LAYOUTS if way else LAYOUTS[:3])) for _ in reads)
            some.append(Signature(inputs, outputs, draw(st.sampled_from((0.0, 1.0, 2.5)))))
        in_place = (0,) if reads and not draw(st.integers(0, 5)) else ()
        operators.append(
            DividedOperator(
                f"o{number}", reads, (number,), tuple(some), in_place, draw(st.sampled_from((1.0, 1.0, 0.25)))
            )
        )
        root = reads[0] if reads and not draw(st.integers(0, 2)) else -1
        size = draw(st.sampled_from((0.0, 1e6, 4e6)))
        tensors.append(DividedTensor(f"t{number}", size, draw(st.sampled_from((0.0, 0.0, size * 3))), root))
    ring = Ring.described(
        draw(st.sampled_from((2, 4))), Link(("0", "1"), 1.0, 100.0), draw(st.sampled_from((math.inf, 2.0)))
    )
    memory = draw(st.sampled_from((math.inf, math.inf, 3e6, 6e6, 12e6)))
    return ShardingProblem(tuple(operators), tuple(tensors), ring, memory)


def share(layout: str, p: int) -> float:
    """Of a tensor that each device has."""
    return 1 / p if layout.startswith("S") else 1.0


def conversion(source: str, target: str, size: float, ring: Ring) -> float:
    """By the number of messages and their bytes."""
    p, copy = ring.workers, ring.copy_ms_per_byte / 2
    if source == target:
        return 0.0
    if source == "R":
        return 0.0  # of summands the first device has it, the others zeros
    if target == "P":
        return math.inf
    inner = [one for one in (source, target) if one not in ("R", "P", "S(0)")]
    if source == "P":
        ways = 2 if target == "R" else 1
        return ways * (p - 1) * ring.link.ms(size / p) + copy * size * len(inner)
    if target == "R":
        return (p - 1) * ring.link.ms(size / p) + copy * size * len(inner)
    return (p - 1) * ring.link.ms(size / p / p) + copy * size / p * len(inner)


def least(problem: ShardingProblem) -> float:
    """Of all choices."""
    best = math.inf
    for choices in itertools.product(*(range(len(one.signatures)) for one in problem.operators)):
        best = min(best, cost(problem, choices))
    return best


def last(problem: ShardingProblem, tensor: int) -> int:
    """The last operator that needs a tensor's memory."""
    if problem.tensors[tensor].lasting_bytes:
        return len(problem.operators) - 1
    readers = [n for n, other in enumerate(problem.operators) if tensor in other.reads]
    views = [n for n, other in enumerate(problem.tensors) if other.root == tensor]
    return max([tensor, *readers, *(last(problem, one) for one in views)])


def cost(problem: ShardingProblem, choices: tuple[int, ...]) -> float:
    """Of one choice; infinite where it does not fit. Tensors have the numbers of their writers."""
    p, total = problem.ring.workers, 0.0
    ways = [one.signatures[choice] for one, choice in zip(problem.operators, choices, strict=True)]
    for now, one in enumerate(problem.operators):
        held = 0.0
        for tensor, facts in enumerate(problem.tensors):
            if facts.root < 0 and (facts.lasting_bytes or tensor <= now <= last(problem, tensor)):
                held += max(facts.bytes, facts.lasting_bytes) * share(ways[tensor].outputs[0], p)
        for argument, tensor in enumerate(one.reads):
            source, target = ways[tensor].outputs[0], ways[now].inputs[argument]
            if argument in one.in_place and source != target:
                return math.inf
            total += one.weight * conversion(source, target, problem.tensors[tensor].bytes, problem.ring)
        for reader in range(now + 1):
            for argument, tensor in enumerate(problem.operators[reader].reads):
                view = problem.tensors[reader].root == tensor
                target = ways[reader].inputs[argument]
                if (reader == now or (view and now <= last(problem, reader))) and target != ways[tensor].outputs[0]:
                    held += problem.tensors[tensor].bytes * share(target, p)
        if held > problem.memory_bytes * (1 + 1e-9):
            return math.inf
        total += one.weight * ways[now].ms
    return total
