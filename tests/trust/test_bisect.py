"""Planted faults of every kind are named exactly."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.costs.models.roofline import OperatorRoofline
from bricolage.graph.graph import Graph
from bricolage.plan.rewrite_steps import RewriteConfig
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.engine.retrace import Configured, Fixpoint, Recorded, Retrace
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.rule import Operators, Result, Rule
from bricolage.rewrite.search.graph_search import search_graphs
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.trust.changes import Subject
from bricolage.work import bits
from bricolage.work.implementation import Assignment, Implementation, KernelConfig
from tests.graph.models import graph
from tests.trust.conftest import Look

LAYERS = """a = Neg(x) b = Neg(a) c = MatMul(b, v) d = Abs(c) e = Identity(d) f = Dropout(e) g = MatMul(f, w) h = Add(g, u)
    i = Tanh(h) j = MatMul(i, v) y = Sigmoid(j)"""


def layers() -> Graph:
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(0, 0.4, (8, 8)).astype(np.float32) for n in "vw"} | {"u": np.ones(8, np.float32)}
    made = graph(LAYERS, "float[4, 8] x", "float[4, 8] y", **weights)
    for operator in made.operators:  # as models that users give have them
        operator.node.name = operator.name
    return made


def whole(made: Graph, name: str, config: KernelConfig | None = None) -> tuple[Assignment, ...]:
    return (Assignment(made.everything.bits, Implementation(name, config or KernelConfig())),)


class WrongSquare(Rule):
    """Abs(x) = x · x"""

    family: ClassVar[str] = "wrong"
    enabling = True

    def patterns(self) -> list[Op]:
        return [op.Abs(AnyValue("x"))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mul(match["x"], match["x"])


def retraced(start: Graph, way: str) -> Retrace:
    known, wrong = choose_rules(generated=False), WrongSquare()
    if way == "fixpoint":
        return Fixpoint(start.model, [*known, wrong])
    if way == "configured":
        return Configured(start.model, [*known, wrong], RewriteConfig(opset=20))
    found = search_graphs(start.model, [*known, wrong], OperatorRoofline(), SearchOptions())
    best = next(one for one in found.candidates if any(step.rule == wrong.name for step in one.steps))
    return Recorded(start.model, [*known, wrong], best.steps)


@pytest.mark.parametrize("way", ["fixpoint", "configured", "recorded"])
def test_a_wrong_rule(look: Look, way: str) -> None:
    start = layers()
    retrace = retraced(start, way)
    made = Graph(retrace.made().model)
    found = look(Subject("subject", start, retrace, whole(made, "sound")))
    (culprit,) = found.culprits
    assert found.verdict.outcome == "wrong" and culprit.confirmed
    assert (culprit.change.kind, culprit.change.rule) == ("rewrite", "wrong-square")
    assert culprit.change.operators[0].startswith("Abs")
    assert culprit.without.error is not None and culprit.without.error < 1e-5
    assert culprit.present.error is not None and culprit.present.error > 1e-2
    assert [change.number for change in found.changes] == list(range(1, len(found.changes) + 1))
    assert len([change for change in found.changes if change.kind == "rewrite"]) > 2


def divided(made: Graph, *names: str) -> tuple[Assignment, ...]:
    """Equal parts, one for each backend."""
    cuts = [len(made) * i // len(names) for i in range(len(names) + 1)]
    return tuple(
        Assignment(bits.of(range(start, end)), Implementation(name))
        for name, start, end in zip(names, cuts[:-1], cuts[1:], strict=True)
    )


@pytest.mark.parametrize(
    ("name", "symptom"),
    [
        ("crooked", "wrong"),
        ("crashing", "crashed with SIGSEGV"),
        pytest.param("hanging", "timed-out", marks=pytest.mark.slow),
    ],
)
def test_a_region_on_a_backend(look: Look, name: str, symptom: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "hanging":  # which is waited for
        monkeypatch.setattr("bricolage.measure.pool._START_GRACE_S", 8.0)
    start = layers()
    found = look(
        Subject("subject", start, None, divided(start, "sound", "sound", name)), 60.0 if name != "hanging" else 8.0
    )
    (culprit,) = found.culprits
    assert found.verdict.symptom == symptom and culprit.confirmed and culprit.without.right
    assert culprit.change.kind == "region" and culprit.change.region == 2
    tanh = next(operator.name for operator in start.operators if operator.op_type == "Tanh")
    assert culprit.operators == (tanh,)


def test_a_fused_kernel(look: Look) -> None:
    if not isinstance(registry.get("misfused").status(), Available):
        pytest.skip("there is no C compiler")
    start = layers()
    found = look(Subject("subject", start, None, whole(start, "misfused")))
    (culprit,) = found.culprits
    kinds = [operator.op_type for operator in start.operators if operator.name in culprit.change.operators]
    assert culprit.confirmed and culprit.change.kind == "kernel" and kinds == ["MatMul", "Add", "Tanh"]
    assert len([change for change in found.changes if change.kind == "kernel"]) > 1


def test_a_tuned_parameter(look: Look) -> None:
    start = layers()
    config = KernelConfig().tuned({"a.cut": 3, "b.cut": 3, "c.cut": 3})
    found = look(Subject("subject", start, None, whole(start, "detuned", config)))
    (culprit,) = found.culprits
    assert culprit.confirmed and (culprit.change.kind, culprit.change.parameter) == ("parameter", "b.cut")


def test_a_rule_and_a_region_at_once(look: Look) -> None:
    start = layers()
    retrace = retraced(start, "fixpoint")
    found = look(Subject("subject", start, retrace, whole(Graph(retrace.made().model), "crooked")))
    assert [culprit.change.kind for culprit in found.culprits] == ["rewrite", "region"]
    assert all(culprit.confirmed for culprit in found.culprits)


def test_nothing_is_wrong(look: Look) -> None:
    start = layers()
    retrace = Fixpoint(start.model, choose_rules(generated=False))
    made = Graph(retrace.made().model)
    found = look(Subject("subject", start, retrace, whole(made, "sound")))
    assert found.verdict.right and not found.faulty and not found.culprits and found.tried == 1
    assert found.verdict.error is not None and 0 < found.verdict.error <= found.verdict.bound
