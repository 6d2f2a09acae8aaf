"""Candidates of a small graph, for an engine that accepts everything and one that accepts a part."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from bricolage.backends.interface import (
    Available,
    Backend,
    Claim,
    Growth,
    Kernel,
    Refused,
    RegionModel,
    Resources,
    Status,
    any_operator,
)
from bricolage.graph.graph import Graph, Operator
from bricolage.optimize.candidates import Candidates, Way, find
from tests.graph.models import graph

W = np.ones((4, 4), np.float32)


class Everything(Backend):
    """Claims every operator. Finding candidates compiles nothing."""

    name = "everything"

    def status(self) -> Status:
        return Available("1")

    def claims(self) -> Iterable[Claim]:
        def accepts(_graph: Graph, operator: Operator) -> str | None:
            return self.declines(operator)

        return [
            Claim(
                "operator",
                any_operator(),
                lambda g, operators: accepts(g, operators[0]),
                Growth(accepts, limit=1, maximal=True),
            )
        ]

    def declines(self, _operator: Operator) -> str | None:
        return None

    def compile(self, region: RegionModel, variant: str, resources: Resources) -> Kernel:
        del region, variant, resources
        raise Refused(backend=self.name, reason="it only claims")


class Elementwise(Everything):
    """Accepts no matrix products."""

    name = "elementwise"

    def declines(self, operator: Operator) -> str | None:
        return "a matrix product" if operator.op_type == "MatMul" else None


@pytest.fixture
def model() -> Graph:
    """Two element-wise stretches around each of two matrix products."""
    body = "a=Relu(x) b=Abs(a) c=MatMul(b,w) d=Neg(c) e=Add(d,c) f=MatMul(e,w) g=Exp(f) y=Relu(g)"
    return graph(body, "float[4,4] x", "float[4,4] y", w=W)


def regions(candidates: Candidates, way: Way) -> set[int]:
    return {region for group in candidates.groups if way in group.ways for region in group.regions}


def test_an_engine_that_takes_everything_is_a_candidate_for_the_whole(model: Graph) -> None:
    found = find(model, [Everything()], "highest", slow_per_region=True)
    assert found.whole == (Way("everything", "f32"),)
    assert model.everything.bits not in regions(found, Way("everything", "f32"))


def test_an_engine_that_takes_a_part_gets_its_maximal_regions(model: Graph) -> None:
    found = find(model, [Everything(), Elementwise()], "highest", slow_per_region=True)
    assert found.whole == (Way("everything", "f32"),)
    assert {0b11, 0b11000, 0b11000000} <= regions(found, Way("elementwise", "f32"))
    assert found.claimed["elementwise"] == 0b11011011
    assert not any(region & 0b100100 for region in regions(found, Way("elementwise", "f32")))
    assert {group.level for group in found.groups} >= {"operator", "maximal"}


def test_others_are_measured_on_an_engines_maximal_regions_too(model: Graph) -> None:
    found = find(model, [Everything(), Elementwise()], "highest", slow_per_region=True)
    both = {Way("everything", "f32"), Way("elementwise", "f32")}
    for group in found.groups:
        if group.level == "maximal":
            assert set(group.ways) == both
