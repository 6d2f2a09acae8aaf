"""Variants made again with less: the first applications are the same, and what is left out is not made."""

from __future__ import annotations

import pytest

from bricolage.costs.models.roofline import OperatorRoofline
from bricolage.graph.graph import Graph
from bricolage.plan.rewrite_steps import RewriteConfig
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.retrace import Configured, Finished, Fixpoint, Recorded, Retrace
from bricolage.rewrite.search.graph_search import search_graphs
from bricolage.rewrite.search.search_options import SearchOptions
from tests.graph.models import graph

BODY = """a = Neg(x) b = Neg(a) c = Transpose<perm=[1,0]>(b) d = Transpose<perm=[1,0]>(c) e = Dropout(d) f = Relu(e)
    g = Relu(f) y = Abs(g)"""


def start() -> Graph:
    return graph(BODY, "float[4, 8] x", "float[4, 8] y")


def retraces() -> dict[str, Retrace]:
    made, rules = start(), choose_rules(generated=False)
    best = search_graphs(made.model, rules, OperatorRoofline(), SearchOptions()).best
    return {
        "fixpoint": Fixpoint(made.model, rules),
        "configured": Configured(made.model, rules, RewriteConfig(opset=20)),
        "recorded": Recorded(made.model, rules, best.steps),
    }


@pytest.mark.parametrize("way", ["fixpoint", "configured", "recorded"])
def test_the_first_applications_are_the_same(way: str) -> None:
    retrace = retraces()[way]
    whole = retrace.made()
    assert len(whole.applications) > 2 and whole.exact
    for limit in range(len(whole.applications) + 1):
        part = retrace.made(limit)
        assert part.applications == whole.applications[:limit] and part.exact
    assert len(retrace.made(0).model.graph) == len(start())
    assert len(whole.model.graph) < len(start())


@pytest.mark.parametrize("way", ["fixpoint", "configured", "recorded"])
def test_each_application_can_be_left_out(way: str) -> None:
    retrace = retraces()[way]
    for number, left_out in enumerate(retrace.made().applications):
        assert left_out.site is not None
        part = retrace.made(None, [left_out.site])
        assert part.exact and left_out.site not in [one.site for one in part.applications]
        assert [one.site for one in part.applications[:number]] == [
            one.site for one in retrace.made(number).applications
        ]


def test_what_never_came_up_was_not_left_out() -> None:
    assert not retraces()["fixpoint"].made(None, [("compose-transposes", ("nowhere",))]).exact


def test_raising_the_opset_is_an_application() -> None:
    retrace = retraces()["configured"]
    assert retrace.made(0).model.graph.opset_imports[""] == 18
    assert retrace.made(1).model.graph.opset_imports[""] == 20
    assert retrace.made(1).applications[0].rule == "opset 20"


def test_a_result_alone_is_one_application() -> None:
    before, after = start(), graph("y = Abs(x)", "float[4, 8] x", "float[4, 8] y")
    retrace = Finished(before.model, after.model, ["some-rule"])
    (only,) = retrace.made().applications
    assert retrace.made().model is after.model and retrace.made(0).model is before.model
    assert only.site is not None and retrace.made(None, [only.site]).model is before.model
