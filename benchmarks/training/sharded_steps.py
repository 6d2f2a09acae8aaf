"""A described Transformer as operators that can be divided: what `benchmarks.training.parallel_plans --sharding` plans."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.training.contraction_layouts import contraction_layouts
from bricolage.device.collective import Ring
from bricolage.device.device import Link, Peaks
from bricolage.errors import NoShardingPlan
from bricolage.search.sharding.layout_programme import best_sharding, frontier
from bricolage.search.sharding.layouts import REPLICATED, Layout, held_bytes, split_axis, splits
from bricolage.search.sharding.sharding_problem import (
    DividedOperator,
    DividedTensor,
    ShardingPlan,
    ShardingProblem,
    Signature,
)
from bricolage.train.sharded.two_levels import Hosts, LayerRow, ShardedPipeline, plan_sharded


@dataclass(frozen=True)
class DescribedTransformer:
    """Sizes, and what a device does; 16 bits an element, Adam's state and weights in 32."""

    layers: int
    hidden: int
    tokens: int
    samples: int
    """Of a micro-batch."""
    micro_batches: int
    peaks: Peaks
    memory_bytes: float
    start_ms: float = 0.005
    """Of each operator."""

    def row(self, clusters: int, most: int = 4) -> LayerRow:
        """So many clusters of layers, as even as can be; layers are alike, so that at most `most` of them are solved for a run."""
        ends = [round(self.layers * one / clusters) for one in range(clusters + 1)]

        def count(begin: int, end: int) -> int:
            return ends[end] - ends[begin]

        return LayerRow(
            clusters,
            lambda begin, end, ring: self.choices(min(count(begin, end), most), ring),
            lambda begin, end: min(count(begin, end), most),
            1 / 3,
            lambda _begin: 2.0 * self.samples * self.tokens * self.hidden,
            lambda begin, end: max(1.0, count(begin, end) / most),
        )

    def choices(self, layers: int, ring: Ring) -> tuple[ShardingProblem, list[ShardingPlan]]:
        """The problem, and its layouts from the fastest to those that keep little."""
        problem = self.problem(layers, ring)
        return problem, frontier(problem)

    def problem(self, layers: int, ring: Ring) -> ShardingProblem:
        """Forward and backward passes of a micro-batch, and a share of the updates."""
        return _Writer(self, ring).layers(layers)


@dataclass
class _Writer:
    sizes: DescribedTransformer
    ring: Ring
    tensors: list[DividedTensor] = field(default_factory=list)
    operators: list[DividedOperator] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    updates: list[tuple[int, int]] = field(default_factory=list)

    def length(self, letter: str) -> int:
        """n: tokens of all samples; h, i, j: hidden units; k: of the wide layer; q: of queries, keys and values."""
        one = self.sizes
        return {"n": one.samples * one.tokens, "k": 4 * one.hidden, "q": 3 * one.hidden}.get(letter, one.hidden)

    def tensor(self, letters: str, lasting: float = 0.0) -> int:
        size = 2.0
        for letter in letters:
            size *= self.length(letter)
        self.letters.append(letters)
        self.tensors.append(DividedTensor(f"t{len(self.tensors)}", size, lasting * size))
        return len(self.tensors) - 1

    def given(self, letters: str, lasting: float = 0.0) -> int:
        """What comes into the graph: whole, or divided along an axis."""
        made = self.tensor(letters, lasting)
        shape = [self.length(one) for one in letters]
        ways = [Signature((), (one,), 0.0) for one in (REPLICATED, *splits(shape, self.ring.workers))]
        self.operators.append(DividedOperator("given", (), (made,), tuple(ways)))
        return made

    def call(
        self, name: str, expression: str, *reads: int, flops: float = 1.0, linear: bool = True, whole: str = ""
    ) -> int:
        """An operator; `flops` for each element of its index space."""
        sizes = {letter: self.length(letter) for letter in expression if letter.isalpha()}
        made = self.tensor(expression.partition("->")[2])
        space = flops
        for size in sizes.values():
            space *= size
        found = contraction_layouts(expression, sizes, self.ring.workers, linear=linear, whole=whole)
        ways = [Signature(inputs, (out,), self.ms(space, (*reads, made), (*inputs, out))) for inputs, out in found]
        self.operators.append(DividedOperator(name, reads, (made,), tuple(ways)))
        return made

    def ms(self, flops: float, tensors: Sequence[int], layouts: Sequence[Layout]) -> float:
        workers = self.ring.workers
        held = sum(held_bytes(how, self.tensors[one].bytes, workers) for one, how in zip(tensors, layouts, strict=True))
        divided = any(split_axis(one) is not None for one in layouts)
        return self.sizes.peaks.floor_ms(flops / (workers if divided else 1), held) + self.sizes.start_ms

    def linear(self, x: int, letters: str, out: str) -> tuple[int, int]:
        """Product with a weight; both."""
        weight = self.given(letters + out, 8.0)
        return self.call("matmul", f"n{letters},{letters}{out}->n{out}", x, weight, flops=2.0), weight

    def back(self, gradient: int, x: int, weight: int) -> int:
        """The gradient of what a product reads; that of its weight is updated in the end."""
        letters = self.letters[weight]
        a, b = letters[0], letters[1]
        self.updates.append((weight, self.call("matmul", f"n{a},n{b}->{a}{b}", x, gradient, flops=2.0)))
        return self.call("matmul", f"n{b},{a}{b}->n{a}", gradient, weight, flops=2.0)

    def layers(self, count: int) -> ShardingProblem:
        """All of them: forward, backward, updates."""
        x, kept = self.given("nh"), []
        for _ in range(count):
            x, layer = self.forward(x)
            kept.append(layer)
        gradient = self.given("nh")
        for layer in reversed(kept):
            gradient = self.backward(gradient, layer)
        for weight, made in self.updates:
            layouts = [REPLICATED, *splits([self.length(one) for one in self.letters[weight]], self.ring.workers)]
            held = [held_bytes(one, 8 * self.tensors[weight].bytes, self.ring.workers) for one in layouts]
            ways = [
                Signature((one, one), (), self.sizes.peaks.floor_ms(0.0, size))
                for one, size in zip(layouts, held, strict=True)
            ]
            share = 1.0 / self.sizes.micro_batches
            self.operators.append(DividedOperator("update", (weight, made), (), tuple(ways), (0,), share))
        return ShardingProblem(tuple(self.operators), tuple(self.tensors), self.ring, self.sizes.memory_bytes)

    def forward(self, x: int) -> tuple[int, dict[str, int]]:
        one: dict[str, int] = {"x": x}
        one["norm"] = self.call("norm", "nh->nh", x, flops=5.0, linear=False, whole="h")
        one["qkv"], one["w_qkv"] = self.linear(one["norm"], "h", "q")
        one["seen"] = self.attention(one["qkv"], "nh")
        one["out"], one["w_out"] = self.linear(one["seen"], "h", "i")
        one["sum"] = self.add(x, one["out"])
        one["after"] = self.call("norm", "nh->nh", one["sum"], flops=5.0, linear=False, whole="h")
        one["up"], one["w_up"] = self.linear(one["after"], "h", "k")
        one["gelu"] = self.call("gelu", "nk->nk", one["up"], flops=8.0, linear=False)
        one["down"], one["w_down"] = self.linear(one["gelu"], "k", "i")
        return self.add(one["sum"], one["down"]), one

    def backward(self, gradient: int, one: dict[str, int]) -> int:
        wide = self.back(gradient, one["gelu"], one["w_down"])
        wide = self.call("gelu backward", "nk,nk->nk", wide, one["up"], flops=12.0, linear=False)
        inner = self.back(wide, one["after"], one["w_up"])
        inner = self.call("norm backward", "nh,nh->nh", inner, one["sum"], flops=10.0, linear=False, whole="h")
        gradient = self.add(gradient, inner)
        seen = self.back(gradient, one["seen"], one["w_out"])
        qkv = self.attention(one["qkv"], "nq", seen)
        inner = self.back(qkv, one["norm"], one["w_qkv"])
        inner = self.call("norm backward", "nh,nh->nh", inner, one["x"], flops=10.0, linear=False, whole="h")
        return self.add(gradient, inner)

    def attention(self, qkv: int, output: str, *more: int) -> int:
        """By samples and by heads: what it reads and writes is divided alike. 4 T operations a token and unit, twice as many
        back."""
        made, workers = self.tensor(output), self.ring.workers
        reads = (qkv, *more)
        flops = (8.0 if more else 4.0) * self.sizes.tokens * self.length("n") * self.sizes.hidden
        heads = self.sizes.hidden // 64
        layouts = [REPLICATED]
        layouts += ["S(0)"] if self.sizes.samples % workers == 0 else []
        layouts += ["S(1)"] if heads % workers == 0 else []
        ways = [
            Signature((how,) * len(reads), (how,), self.ms(flops, (*reads, made), (how,) * (len(reads) + 1)))
            for how in layouts
        ]
        self.operators.append(DividedOperator("attention", reads, (made,), tuple(ways)))
        return made

    def add(self, left: int, right: int) -> int:
        """A sum: both are divided alike, or both are summands."""
        made, workers = self.tensor("nh"), self.ring.workers
        layouts = [REPLICATED, "P", *splits([self.length("n"), self.length("h")], workers)]
        ways = [
            Signature(
                (how, how),
                (how,),
                self.ms(float(self.length("n")) * self.sizes.hidden, (left, right, made), (how,) * 3),
            )
            for how in layouts
        ]
        self.operators.append(DividedOperator("add", (left, right), (made,), tuple(ways)))
        return made


def data_parallel(problem: ShardingProblem, weights: Sequence[int], samples: Sequence[int]) -> ShardingPlan | None:
    """Plain data parallelism: weights whole, samples divided, the rest as it takes least; None where it does not fit.

    Args:
        problem: the step.
        weights: operators that bring them.
        samples: operators that bring these.
    """
    operators = list(problem.operators)
    for numbers, wanted in ((weights, "R"), (samples, "S(0)")):
        for number in numbers:
            ways = tuple(signature for signature in operators[number].signatures if signature.outputs[0] == wanted)
            operators[number] = replace(operators[number], signatures=ways or operators[number].signatures[:1])
    try:
        return best_sharding(replace(problem, operators=tuple(operators)), limit_s=0.0)
    except NoShardingPlan:
        return None


def report(given: argparse.Namespace) -> dict[str, Any]:
    """What `benchmarks.training.parallel_plans --sharding` prints: layouts on all devices as one group, and stages on groups of
    devices."""
    micro = given.micro_batches
    hosts = Hosts(
        given.devices,
        given.host,
        Link(("one", "other"), given.inside, 5.0),
        Link(("one", "other"), given.bandwidth, given.latency),
        given.copying,
        given.memory * 1e9,
    )
    peaks = Peaks(given.gflops, given.copying)
    step = DescribedTransformer(
        given.layers, given.hidden, given.tokens, given.batch // micro, micro, peaks, given.memory * 1e9
    )
    rows = [_row("one group", lambda: _one_group(step, hosts, given.limit))] if given.layers <= given.whole else []
    if given.layers <= given.whole:
        rows.append(_row("data parallel", lambda: _replicas(step, hosts)))
    groups = [int(one) for one in given.groups.split(",") if int(one) <= given.devices]
    row = step.row(min(given.layers, given.clusters))
    rows.append(_row("stages on groups", lambda: _staged(plan_sharded(row, hosts, micro, groups=groups))))
    return {
        "devices": given.devices,
        "operators": len(step.problem(1, hosts.ring(1)).operators) * given.layers,
        "plans": rows,
    }


def _row(name: str, solve: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    started = time.monotonic()
    try:
        found = solve()
    except NoShardingPlan as error:
        found = {"step_ms": None, "note": str(error)}
    return {"plan": name, **found, "seconds": time.monotonic() - started}


def _one_group(step: DescribedTransformer, hosts: Hosts, limit_s: float) -> dict[str, Any]:
    problem = step.problem(step.layers, hosts.ring(hosts.devices))
    found = best_sharding(problem, limit_s=limit_s)
    return _facts(found, step)


def _replicas(step: DescribedTransformer, hosts: Hosts) -> dict[str, Any]:
    problem = step.problem(step.layers, hosts.ring(hosts.devices))
    given = [number for number, one in enumerate(problem.operators) if not one.reads]
    samples = [one for one in given if not problem.tensors[problem.operators[one].writes[0]].lasting_bytes]
    found = data_parallel(problem, [one for one in given if one not in samples], samples)
    if found is None:
        raise NoShardingPlan(workers=hosts.devices, memory=f"{hosts.memory_bytes / 1e9:.3g} GB")
    return _facts(found, step)


def _facts(found: ShardingPlan, step: DescribedTransformer) -> dict[str, Any]:
    return {
        "step_ms": step.micro_batches * found.ms,
        "bound_ms": step.micro_batches * found.bound_ms,
        "conversions_ms": step.micro_batches * found.conversion_ms,
        "peak_bytes": found.peak_bytes,
        "method": found.method,
    }


def _staged(found: ShardedPipeline) -> dict[str, Any]:
    stages = [[one.begin, one.end, one.devices] for one in found.stages]
    return {
        "step_ms": found.step_ms,
        "formula_ms": found.formula_ms,
        "bubble": found.bubble,
        "peak_bytes": found.peak_bytes,
        "stages": stages,
        "solved": found.solved,
    }
