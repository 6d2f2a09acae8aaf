"""The search of the rewrite tuner on made-up machines, whose time of each variant is known: what it finds, in spite of noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.backends import registry
from bricolage.base.budget import DecisionBudget
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.base.progress import Silent
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.device.host import host
from bricolage.graph.prepare import prepare, simplify
from bricolage.graph.store import Store
from bricolage.measure.measurer import Measurer
from bricolage.measure.race_record import Race
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.rewrite_steps import EnabledRule, RewriteConfig
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.rule import Example
from bricolage.tune import rewrites as tuning
from bricolage.tune.rewrites import RewriteTuner, ahead
from bricolage.verify.oracle import Oracle
from bricolage.work.implementation import KernelConfig

LAYERS = Example(
    "float[6,8] x",
    "a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) d = Tanh(c) e = MatMul(d, u) f = Div(e, r) g = Erf(f) h = Add(g, o)"
    " i = Mul(e, h) y = Mul(i, p)",
    {"w": (8, 16), "v": (16, 8), "u": (8, 8), "r": 2**0.5, "o": 1.0, "p": 0.5},
)
APART = Example(
    "float[6,8] x", "a = MatMul(x, w) b, c = Split<axis=1>(a, s) d = Mul(b, c) y = Relu(d)", {"w": (8, 16), "s": [8, 8]}
)
PLAIN = Example("float[6,8] x", "a = MatMul(x, w) b = Relu(a) y = MatMul(b, v)", {"w": (8, 16), "v": (16, 8)})

Price = Callable[[Counter[str], ir.Model], float]


def machine(monkeypatch: pytest.MonkeyPatch, price: Price, noise: float) -> list[str]:
    """Makes races on a machine where a form takes `price` of its operators, in milliseconds, times log-normal noise. Returns the
    list of all that raced."""
    rng, seen = np.random.default_rng(0), list[str]()

    def race(measurer: object, contestants: Mapping[str, CandidateSpec], *_: object, rounds: int, **__: object) -> Race:
        seen.extend(contestants)
        times = {}
        for name, spec in contestants.items():
            model = ir.load(spec.steps[0].path)
            times[name] = price(Counter(node.op_type for node in model.graph), model)
        ran = [{name: (ms * rng.lognormal(0, noise),) for name, ms in times.items()} for _ in range(rounds)]
        costs = {name: Cost("ok", Latency.of([one[name][0] for one in ran])) for name in times}
        return Race(tuple(ran), costs, {})

    monkeypatch.setattr(tuning, "race", race)
    return seen


SOME = ("convolution", "splitting", "activation")
"""Families of which two rules are wanted here; the search among all of them is tested once."""


def search(example: Example, folder: Path, only: tuple[str, ...] = ()) -> RewriteConfig:
    start = example.model()
    simplify(start)
    graph = prepare(start.clone(), {})
    oracle = Oracle(graph, {"x": np.zeros((6, 8), np.float32)}, Store(folder), 1e-5, "model")
    options = Options(threads=1, budget_s=300.0)
    own = RewriteTuner(
        start,
        {},
        choose_rules(only, stable=True, generated=False),
        oracle,
        registry.get("onnxruntime"),
        options,
        DecisionBudget.of(options, len(graph)),
        cast(Measurer, None),  # races do not measure here
        Silent(),
        device=host(),
        config=KernelConfig("f32"),
    )
    return own.search(Deadline(60.0))


def test_a_gain_of_three_in_a_hundred_is_found_in_noise_of_six(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, lambda count, _: 10.0 - 0.1 * count["Conv"] + 0.05 * (count["Gelu"] == 0), 0.06)
    found = search(LAYERS, tmp_path)
    assert "product-as-pointwise" in {entry.rule for entry in found.enabled}


def test_on_a_machine_without_noise_nothing_is_kept_that_does_not_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, lambda count, _: 10.0 + count["Conv"], 0.0)
    found = search(LAYERS, tmp_path)
    assert found == RewriteConfig()


def test_a_place_that_loses_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def price(count: Counter[str], model: ir.Model) -> float:
        square = sum(
            list(n.inputs[1].shape or ())[:2] == [8, 8] for n in model.graph if n.op_type == "Conv" and n.inputs[1]
        )
        return 10.0 - count["Conv"] + 1.5 * square

    machine(monkeypatch, price, 0.0)
    (entry,) = search(LAYERS, tmp_path, SOME).enabled
    assert entry.rule == "product-as-pointwise" and len(entry.not_at) == 1
    assert "8, 8" in next(iter(entry.not_at))


def test_the_newest_opset_and_a_cost_based_rule_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, lambda count, _: 10.0 - count["Gelu"] - count["Conv"], 0.01)
    found = search(LAYERS, tmp_path, SOME)
    assert found.opset is not None and found.enabled == (EnabledRule("product-as-pointwise"),)


def test_a_rule_comes_before_another_where_it_needs_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, lambda count, _: 10.0 - 2 * count["Conv"] + count["Split"], 0.0)
    found = search(APART, tmp_path, SOME)
    assert [one.rule for one in found.enabled] == ["split-of-linear", "product-as-pointwise"]


def test_a_model_is_not_raised_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = machine(monkeypatch, lambda *_: 10.0, 0.0)
    assert search(PLAIN, tmp_path).opset is None
    assert seen and not any("opset" in name for name in seen)


def test_the_weights_of_a_model_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = Example("float[6,8] x", "a = MatMul(x, w) b = Relu(a) y = MatMul(b, v)", {"w": (8, 4096), "v": (4096, 8)})
    machine(monkeypatch, lambda *_: 10.0, 0.0)
    search(big, tmp_path)
    weights = 2 * 8 * 4096 * 4
    kept = [path for path in tmp_path.glob("rewrites-base-*.data") if path.stat().st_size]
    assert len(kept) == 1 and kept[0].stat().st_size == pytest.approx(weights, rel=0.01)


def test_ahead_names_the_faster_ones_in_their_order() -> None:
    times = {"old": 1.0, "same": 1.0, "little": 0.99, "more": 0.8, "less": 1.2}
    costs = {name: Cost("ok", Latency.of([ms] * 8)) for name, ms in times.items()} | {"never": Cost("timed-out")}
    costs["died"] = Cost("crashed")  # after it had been fast
    ran = Race(tuple({name: (ms,) for name, ms in times.items()} | {"died": (0.5,)} for _ in range(8)), costs, {})
    assert ahead(ran, "old", 1.0) == ["more", "little"]
    assert ahead(ran, "old", 1.05) == ["more"]
