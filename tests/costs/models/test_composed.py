from __future__ import annotations

from dataclasses import replace

import pytest

from bricolage.costs.models.composed import RegionCosts, merged_samples
from bricolage.costs.models.fusion_gain import FusionGain, Merged
from bricolage.costs.models.measured_transfer import MeasuredTransferCosts
from bricolage.costs.models.roofline import NOMINAL
from bricolage.work.cost import Work
from bricolage.work.implementation import Assignment, Endpoint, Implementation, KernelConfig
from bricolage.work.placement import price
from bricolage.work.placement_prediction import Predictor, operator_endpoints
from bricolage.work.transfer import NoTransferCosts
from tests.search.problems import PairCosts, graph_of, offer

A, B = Implementation("a"), Implementation("b")
UNKNOWN = Implementation("b", KernelConfig("bf16"))
CHAIN = graph_of([[1], [2], [3], []], [10, 20, 30, 40])
SINGLES = [offer(1 << number, "a", 1.5) for number in range(4)]
FREE = NoTransferCosts()


def region(predictor: Predictor, bits: int, implementation: Implementation) -> float | None:
    (found,) = predictor.costs.estimate([Work(implementation=implementation, region=bits)], NOMINAL)
    return None if found is None else found.ms


def test_a_placement_of_known_regions_is_predicted() -> None:
    predictor = Predictor(CHAIN, RegionCosts(SINGLES, FusionGain()), NOMINAL, FREE)
    assert predictor.placement(tuple(one.assignment for one in SINGLES)) == 6.0


def test_a_placement_with_an_unknown_region_has_no_finite_prediction() -> None:
    """One that was timed end to end before its regions were."""
    predictor = Predictor(CHAIN, RegionCosts(SINGLES, FusionGain()), NOMINAL, FREE)
    assert predictor.placement((Assignment(0b0111, A), Assignment(0b1000, UNKNOWN))) == float("inf")
    assert region(predictor, 0b1000, UNKNOWN) is None


def test_a_measured_region_is_taken_as_measured_the_fastest_of_several() -> None:
    candidates = [*SINGLES, offer(0b0011, "a", 2.5), offer(0b0011, "a", 2.0)]
    assert region(Predictor(CHAIN, RegionCosts(candidates, FusionGain({A: 0.5})), NOMINAL, FREE), 0b0011, A) == 2.0


def test_an_unmeasured_region_is_merged_from_the_largest_parts() -> None:
    model = FusionGain({A: 0.5}, {A: 0.8})
    predictor = Predictor(CHAIN, RegionCosts([*SINGLES, offer(0b0011, "a", 2.5)], model), NOMINAL, FREE)
    assert region(predictor, 0b0111, A) == pytest.approx(0.5 + 0.8 * (2.0 + 1.0))
    assert region(predictor, 0b1100, A) == pytest.approx(0.5 + 0.8 * (1.0 + 1.0))
    assert region(predictor, 0b0111, B) is None


def test_the_same_backend_on_another_device_is_not_known() -> None:
    assert (
        region(Predictor(CHAIN, RegionCosts(SINGLES, FusionGain()), NOMINAL, FREE), 1, replace(A, device="cpu:0-1"))
        is None
    )


def test_transfers_are_paid_for_each_tensor_that_others_computed() -> None:
    costs = MeasuredTransferCosts({(A.endpoint, B.endpoint): [(0, 0.0), (10, 1.0)]})
    candidates = [*SINGLES, offer(0b1100, "b", 1.0)]
    predictor = Predictor(CHAIN, RegionCosts(candidates, FusionGain()), NOMINAL, costs)
    owner = operator_endpoints((Assignment(0b0011, A), Assignment(0b1100, B)))
    assert owner == {0: Endpoint("a"), 1: Endpoint("a"), 2: Endpoint("b"), 3: Endpoint("b")}
    assert predictor.transfer(0b1100, B.endpoint, owner) == pytest.approx(2.0), "20 bytes from operator 1"
    assert predictor.transfer(0b0011, A.endpoint, owner) == 0.0, "graph inputs are free"
    placement = (Assignment(0b0001, A), Assignment(0b0010, A), Assignment(0b1100, B))
    assert predictor.placement(placement) == pytest.approx(1.5 + 1.5 + 1.0 + 2.0)


def test_a_placement_of_candidates_costs_what_the_searches_minimise() -> None:
    costs = PairCosts(((0.0, 0.25, 0.5), (1.0, 0.0, 0.5), (3.0, 0.25, 0.0)))
    choices = [offer(0b0001, "a", 1.0), offer(0b0110, "b", 2.0), offer(0b1000, "c", 4.0)]
    priced = price(CHAIN, choices, costs)
    predictor = Predictor(CHAIN, RegionCosts(choices, FusionGain()), NOMINAL, costs)
    assert predictor.placement(tuple(one.assignment for one in priced.choices)) == pytest.approx(priced.total_ms)


def test_the_gain_of_merging_is_learnt_from_measured_regions_with_measured_parts() -> None:
    measured = [replace(one, key=str(number)) for number, one in enumerate(SINGLES[:3])]
    pair, beyond, elsewhere = offer(0b0011, "a", 2.0), offer(0b1100, "a", 2.0), offer(0b0011, "b", 2.0)
    larger = [replace(one, key="larger") for one in (pair, beyond, elsewhere)]
    predicted = [SINGLES[3], offer(0b0110, "a", 1.0)]
    assert merged_samples([*larger, *measured, *predicted]) == [Merged(A, (1.5, 1.5), 2.0)]
