"""The seconds of a decision and their parts."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.budget import DecisionBudget, Part, ServingPart, choose_seconds
from bricolage.base.efforts import PROFILES
from bricolage.base.options import EFFORTS, Options
from bricolage.base.time_shares import Shares, ThroughputShares

options = st.builds(
    Options, effort=st.sampled_from(EFFORTS), budget_s=st.none() | st.floats(1e-3, 1e9), threads=st.just(1)
)


@given(options, st.integers(0, 100_000))
def test_the_race_and_a_compilation_fit_into_the_budget(made: Options, operators: int) -> None:
    budget = DecisionBudget.of(made, operators)
    assert budget.total_s == budget.whole_s and budget.by_user == (made.budget_s is not None)
    assert 0 < budget.race_s <= budget.whole_s * made.profile.shares.race
    assert budget.race_s <= made.profile.race_seconds
    assert budget.whole_s / 2 <= budget.compile_limit_s <= budget.whole_s


def test_the_default_budget_has_an_end() -> None:
    for effort in EFFORTS:
        few, more, most = (DecisionBudget.of(Options(effort=effort), n).whole_s for n in (10, 1_000, 200_000))
        assert few < more < most <= 3 * 3600.0
    assert DecisionBudget.of(Options(budget_s=5.0), 200_000).whole_s == 5.0


def test_reading_the_model_is_off_a_budget_in_seconds_up_to_half_of_it() -> None:
    given_s, effort = Options(budget_s=60.0), Options()
    assert DecisionBudget.of(given_s, 100, spent_s=6.0).total_s == 54.0
    assert DecisionBudget.of(given_s, 100, spent_s=50.0).total_s == 30.0
    assert DecisionBudget.of(given_s, 100, 0.5, 6.0) == DecisionBudget(effort.profile, 60.0, 27.0, by_user=True)
    assert DecisionBudget.of(effort, 100, spent_s=50.0) == DecisionBudget.of(effort, 100)


def test_parts_are_shares_of_what_the_decision_has() -> None:
    budget = DecisionBudget.of(Options(budget_s=60.0), 100).within(40.0)
    assert set(get_args(Part)) <= {share.name for share in fields(Shares)}
    assert set(get_args(ServingPart)) <= {share.name for share in fields(ThroughputShares)}
    assert (budget.part_s("regions"), budget.serving_s("exploring")) == (8.0, 16.0)
    assert budget.kernel_tuning_s(0.0) == 12.0 and budget.within(400.0).kernel_tuning_s(0.0) == 80.0
    assert budget.other_sizes_s(4.0) == 5.0 and budget.other_sizes_s(40.0) == 10.0
    assert budget.race_s == budget.within(1.0).race_s and budget.tailoring_s("opset") == 6.0, "of all seconds"
    assert budget.gives_turns and not DecisionBudget.of(Options(budget_s=9.0), 100).gives_turns


def test_what_takes_a_sixth_of_the_time_is_left_out_at_the_risk_of_the_effort() -> None:
    budget = DecisionBudget.of(Options(budget_s=60.0), 100)
    assert budget.accepted_risk(20.0) == budget.accepted_risk(10.0) == PROFILES["quick"].risk
    assert budget.accepted_risk(5.0) == pytest.approx(PROFILES["quick"].risk / 2)


def test_time_that_others_took_is_given_back() -> None:
    budget = DecisionBudget.of(Options(budget_s=60.0), 100)
    assert budget.start(lambda: 7.0).given_back == 7.0 * (budget.shares.given_back > 0)


def test_commands_that_decide_nothing_have_seconds_of_their_own() -> None:
    assert choose_seconds(Options(), 600.0) == 600.0 and choose_seconds(Options(budget_s=5.0), 600.0) == 5.0
