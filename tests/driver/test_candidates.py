"""Candidates of a small graph, for an engine that accepts everything and one that accepts a part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
from bricolage.base.options import Precision
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.driver.candidates import Candidates, find_candidates
from bricolage.graph.graph import Graph, Operator
from bricolage.work.implementation import Implementation, KernelConfig, named
from tests.graph.models import graph

W = np.ones((4, 4), np.float32)
EVERYTHING, ELEMENTWISE = Implementation("everything"), Implementation("elementwise")


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

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        del region, config, resources
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


def regions(candidates: Candidates, one: Implementation) -> set[int]:
    return {region for group in candidates.groups if one in group.implementations for region in group.regions}


def test_an_engine_that_takes_everything_is_a_candidate_for_the_whole(model: Graph) -> None:
    found = find_candidates(model, [Everything()], "highest", host(), slow_per_region=True)
    assert found.whole == (EVERYTHING,)
    assert model.everything.bits not in regions(found, EVERYTHING)


def test_an_engine_that_takes_a_part_gets_its_maximal_regions(model: Graph) -> None:
    found = find_candidates(model, [Everything(), Elementwise()], "highest", host(), slow_per_region=True)
    assert found.whole == (EVERYTHING,)
    assert {0b11, 0b11000, 0b11000000} <= regions(found, ELEMENTWISE)
    assert found.claimed["elementwise"] == 0b11011011
    assert not any(region & 0b100100 for region in regions(found, ELEMENTWISE))
    assert {group.level for group in found.groups} >= {"operator", "maximal"}


def test_others_are_measured_on_an_engines_maximal_regions_too(model: Graph) -> None:
    found = find_candidates(model, [Everything(), Elementwise()], "highest", host(), slow_per_region=True)
    both = {EVERYTHING, ELEMENTWISE}
    for group in found.groups:
        if group.level == "maximal":
            assert set(group.implementations) == both


class Configured(Everything):
    """Offers bfloat16 where precision and device allow it, and compiles slowly."""

    name, compiles_slowly = "configured", True

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        return named("f32", "bf16") if precision == "medium" and device.bfloat16 else named("f32")


def test_configurations_follow_precision_and_device(model: Graph) -> None:
    able = replace(host(), name="cpu:0", instructions=frozenset({"avx512_bf16"}))
    f32, bf16 = (Implementation("configured", config, "cpu:0") for config in named("f32", "bf16"))
    assert find_candidates(model, [Configured()], "medium", able, slow_per_region=True).whole == (f32, bf16)
    assert find_candidates(model, [Configured()], "high", able, slow_per_region=True).whole == (f32,)
    assert find_candidates(model, [Configured()], "medium", able.kept_to("avx2"), slow_per_region=True).whole == (f32,)


def test_slow_compilers_may_be_left_to_large_regions(model: Graph) -> None:
    one = Implementation("configured")
    everywhere = regions(
        find_candidates(model, [Configured(), Elementwise()], "highest", host(), slow_per_region=True), one
    )
    large = regions(
        find_candidates(model, [Configured(), Elementwise()], "highest", host(), slow_per_region=False), one
    )
    assert large < everywhere and large and all(region.bit_count() > 1 for region in large)


def test_the_largest_share_of_the_time_comes_first(model: Graph) -> None:
    device = host()
    found = find_candidates(model, [Everything()], "highest", device, slow_per_region=True)
    weights = [group.weight(device.peaks) for group in found.groups if group.level == "operator"]
    assert weights == sorted(weights, reverse=True) and weights[0] > weights[-1] > 0
