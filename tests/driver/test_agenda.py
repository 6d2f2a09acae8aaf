"""The agenda: the most promising for its seconds first, and nothing that cannot gain enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.budget import DecisionBudget
from bricolage.base.deadline import Deadline
from bricolage.base.efforts import PROFILES
from bricolage.base.options import Options
from bricolage.driver.agenda import Agenda, Item, Promise
from bricolage.driver.stages.profiling import Baselines
from bricolage.driver.state import DecisionState
from bricolage.plan.agenda_record import AgendaItem
from bricolage.work.gain import LEAST_GAIN
from tests.driver.made_up import First, made_up_state
from tests.driver.test_stage import Clock
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")


@dataclass
class Made(Item):
    """An item as a test describes it: what it takes by the clock, and to what it brings the incumbent."""

    name: str
    gain: float = 0.1
    seconds: float = 1.0
    finds: float = 1.0
    """Of the incumbent's time."""
    needs: Made | None = None
    raises: type[BaseException] | None = None
    overruns: float = 1.0
    clock: Clock | None = None
    done: int = 0
    turns: int = 1
    chance: float | None = 1.0
    bounded: bool = True
    """Whether it cannot gain more than it says."""
    way = "made"
    asked: bool = False  # type: ignore[misc]  # of a class elsewhere

    def promise(self, state: DecisionState) -> Promise | None:
        del state
        if self.needs is not None and not self.needs.done:
            return None
        bound = self.gain if self.bounded else None
        return Promise(self.gain, self.seconds, "the test says so", self.chance, bound)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        del deadline
        assert self.clock is not None
        self.clock.now += self.seconds * self.overruns
        if self.raises is not None:
            raise self.raises
        self.done += 1
        assert state.incumbent_ms is not None
        state.mixtures[f"{self.name} {self.done}"] = state.incumbent_ms * self.finds

    @property
    def again(self) -> bool:
        return self.done < self.turns


@pytest.fixture
def state(tmp_path: Path) -> DecisionState:
    found, _ = made_up_state(tmp_path, graph("y=Tanh(x)"), [First()])
    Baselines().run(found, Deadline(100.0))
    return found


def work(state: DecisionState, *items: Made, seconds: float = 100.0) -> list[tuple[str, str]]:
    """Name and outcome of each, in the order of the record."""
    clock = Clock()
    for item in items:
        item.clock = clock
    deadline = Deadline(seconds, clock)
    with deadline.catching_interrupts():
        Agenda(lambda _: items).run(state, deadline)
    return [(one.name, one.outcome) for one in state.agenda]


def test_the_best_gain_for_its_seconds_comes_first(state: DecisionState) -> None:
    told = work(state, Made("long", 0.5, 50.0), Made("short", 0.1, 1.0), Made("middle", 0.4, 10.0))
    assert told == [("short", "measured"), ("middle", "measured"), ("long", "measured")]


def test_what_is_likely_comes_before_what_could_gain_more(state: DecisionState) -> None:
    told = work(
        state, Made("bold", 0.9, chance=0.2), Made("likely", 0.3, chance=0.9), Made("unlikely", 0.1, chance=0.2)
    )
    assert told == [("likely", "measured"), ("bold", "measured"), ("unlikely", "measured")]


def test_what_was_asked_for_comes_first_and_takes_no_time_from_the_others(state: DecisionState) -> None:
    """Under an effort's own budget; it begins even where baselines took all the time."""
    told = work(state, Made("sure", 0.5, 10.0), Made("asked", 0.1, 50.0, chance=0.1, asked=True), seconds=10.0)
    assert told == [("asked", "measured"), ("sure", "measured")]
    state.agenda.clear()
    assert work(state, Made("late", 0.5), Made("asked", 0.1, 5.0, asked=True), seconds=0.0)[0] == ("asked", "measured")


def test_what_was_asked_for_keeps_to_a_budget_that_was_given(state: DecisionState) -> None:
    state.session = replace(state.session, budget=replace(state.budget, by_user=True))
    told = work(
        state,
        Made("sure", 0.5, 1.0),
        Made("asked", 0.1, 6.0, asked=True),
        Made("long", 0.9, 11.0, asked=True),
        seconds=10.0,
    )
    assert told == [("asked", "measured"), ("sure", "measured"), ("long", "no time")]


def test_what_was_asked_for_and_cannot_gain_is_left_out(state: DecisionState) -> None:
    assert work(state, Made("asked", 0.01, asked=True)) == [("asked", "bounded")]


def test_what_cannot_gain_enough_is_left_out_with_its_bound(state: DecisionState) -> None:
    told = work(state, Made("hopeless", LEAST_GAIN, 0.1), Made("worse", -3.0), Made("good", 0.03, finds=0.9))
    assert told == [("good", "measured"), ("hopeless", "bounded"), ("worse", "bounded")]
    good, hopeless, worse = state.agenda
    assert good.gained == pytest.approx(0.1) and good.seconds == 1.0 and good.because == "the test says so"
    assert (good.incumbent, good.candidate, good.way, good.interval) == ("first f32", "good 1", "made", None)
    assert hopeless.bound == LEAST_GAIN and worse.bound == 0.0 == worse.seconds == worse.expected_loss
    assert hopeless.incumbent == "good 1" and not hopeless.candidate


def test_what_would_take_longer_than_is_left_has_no_time(state: DecisionState) -> None:
    told = work(state, Made("first", 0.5, 6.0), Made("second", 0.5, 7.0), Made("third", 0.02, 2.0), seconds=10.0)
    assert told == [("first", "measured"), ("second", "no time"), ("third", "bounded")]


def test_three_words_say_why_something_is_left_out(state: DecisionState) -> None:
    """At the risk of `quick`, a tenth: what is unknown has its turn, and so has what has no bound and a chance above the risk."""
    seldom, unknown = Made("seldom", 0.5, 20.0, chance=0.1, bounded=False), Made("unknown", 0.1, 2.0, chance=None)
    told = work(state, seldom, unknown, Made("small", 0.01), Made("long", 0.3, 99.0, chance=0.11), seconds=50.0)
    assert told == [("unknown", "measured"), ("seldom", "unlikely"), ("small", "bounded"), ("long", "no time")]
    _, unlikely, bounded, late = state.agenda
    assert (unlikely.bound, unlikely.chance, unlikely.gain) == (None, 0.1, 0.5)
    assert unlikely.expected_loss == pytest.approx(0.05) and late.expected_loss == pytest.approx(0.033)
    assert bounded.bound == 0.01 and bounded.expected_loss <= 0.01


def test_what_is_shorter_is_left_out_at_a_smaller_risk(state: DecisionState) -> None:
    """A tenth holds for a sixth of the budget; half of that, for half as long."""
    sixth = state.budget.total_s / 6
    work(state, Made("long", chance=0.09, seconds=2 * sixth), Made("short", chance=0.09, seconds=sixth / 2))
    work(state, Made("shorter", chance=0.04, seconds=sixth / 2), Made("sixth", chance=0.11, seconds=sixth))
    told = {one.name: one.outcome for one in state.agenda}
    assert told == {"long": "unlikely", "short": "measured", "shorter": "unlikely", "sixth": "measured"}


def test_instant_alone_leaves_out_what_is_unknown(state: DecisionState) -> None:
    state.session = replace(state.session, budget=replace(state.budget, profile=PROFILES["instant"]))
    told = work(state, Made("unknown", 0.5, 20.0, chance=None), Made("likely", 0.5, chance=0.51))
    assert told == [("likely", "measured"), ("unknown", "unlikely")] and state.agenda[1].chance is None


def test_full_leaves_out_only_what_is_bounded(state: DecisionState) -> None:
    state.session = replace(state.session, budget=replace(state.budget, profile=PROFILES["full"]))
    told = work(state, Made("never", 0.5, chance=0.001, bounded=False), Made("small", 0.02, chance=1.0))
    assert told == [("never", "measured"), ("small", "bounded")]


def test_what_an_item_finds_is_compared_with_who_led_until_then(state: DecisionState) -> None:
    """Also where it is slower, and where it brings nothing."""
    work(state, Made("slower", 0.3, finds=1.25), Made("nothing", 0.1, finds=math.inf))
    slower, nothing = state.agenda
    assert slower.gained == pytest.approx(-0.25) and slower.candidate == "slower 1"
    assert slower.incumbent == nothing.incumbent == "first f32"
    assert nothing.gained == 0.0 and not nothing.candidate


def test_an_item_waits_for_what_it_needs_and_is_not_told_of_where_that_never_comes(state: DecisionState) -> None:
    source, absent = Made("source", 0.03, 1.0), Made("absent", 0.01, 1.0)
    told = work(state, Made("needs", 0.9, 1.0, needs=source), source, absent, Made("never", needs=absent))
    assert told == [("source", "measured"), ("needs", "measured"), ("absent", "bounded")]


def test_an_item_may_go_on(state: DecisionState) -> None:
    told = work(state, Made("parts", 0.2, 1.0, turns=3), Made("other", 0.1, 1.0))
    assert [name for name, _ in told] == ["parts", "parts", "parts", "other"]


def test_ctrl_c_ends_it_and_keeps_what_was_found(state: DecisionState) -> None:
    before = state.incumbent_ms
    told = work(state, Made("found", 0.9, finds=0.5), Made("cut", 0.5, raises=KeyboardInterrupt), Made("later", 0.3))
    assert told == [("found", "measured"), ("cut", "interrupted"), ("later", "interrupted")]
    assert before is not None and state.incumbent_ms == before / 2


def test_an_item_that_fails_for_good_ends_the_decision_and_is_on_record(state: DecisionState) -> None:
    with pytest.raises(OSError):
        work(state, Made("broken", raises=OSError), Made("later"))
    assert [(one.name, one.outcome) for one in state.agenda] == [("broken", "interrupted"), ("later", "no time")]


class Bare:
    """As much of a decision's state as an agenda needs."""

    def __init__(self) -> None:
        self.agenda: list[AgendaItem] = []
        self.mixtures = {"first": 1.0}
        self.budget = DecisionBudget.of(Options(), 0).within(6.0)

    @property
    def standings(self) -> dict[str, float]:
        return self.mixtures

    @property
    def incumbent_ms(self) -> float:
        return min(self.mixtures.values())


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0.1, 20), st.floats(0.5, 1.0)), max_size=8), st.floats(0.0, 60.0))
def test_no_item_that_could_gain_and_fits_is_left(made: list[tuple[float, float, float]], seconds: float) -> None:
    state = Bare()
    items = [Made(str(number), *one) for number, one in enumerate(made)]
    work(state, *items, seconds=seconds)  # type: ignore[arg-type]
    taken = sum(item.seconds for item in items if item.done)
    assert taken <= seconds + 1e-6
    for item in items:
        entry = next(one for one in state.agenda if one.name == item.name)
        if item.done:
            assert entry.outcome == "measured" and item.gain > LEAST_GAIN
        else:
            assert item.gain <= LEAST_GAIN or item.seconds > seconds - taken - 1e-6
            assert entry.outcome == ("bounded" if item.gain <= LEAST_GAIN else "no time")
