"""The runner of stages, on a clock that moves when a stage says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.deadline import Deadline
from bricolage.driver.stage import Runner, StageTime

FOREVER = float("inf")


class Clock:
    """Seconds that pass when a stage takes them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Log:
    """The state of these tests: what the stages saw."""

    left: dict[str, float] = field(default_factory=dict)
    """Seconds that each had when it began."""
    ended: dict[str, bool] = field(default_factory=dict)
    """Whether its time was over then."""
    interrupted: dict[str, bool] = field(default_factory=dict)
    given: float | None = None
    """By nobody."""


@dataclass
class Made:
    """A stage as a test describes it. It takes `wants` seconds, or what it has where it `obeys` the clock."""

    name: str  # type: ignore[misc]
    kept: float | Callable[[Log], float] = 0.0
    wants: float = 0.0
    obeys: bool = True
    essential: bool = False  # type: ignore[misc]
    raises: BaseException | None = None
    clock: Clock = field(default_factory=Clock)
    reads: frozenset[str] = frozenset()  # type: ignore[misc]
    adds: frozenset[str] = frozenset()  # type: ignore[misc]

    def share(self, state: Log) -> float:
        return self.kept(state) if callable(self.kept) else self.kept

    def run(self, state: Log, deadline: Deadline) -> None:
        state.left[self.name] = deadline.left
        state.ended[self.name] = deadline()
        state.interrupted[self.name] = deadline.interrupted
        self.clock.now += min(self.wants, deadline.left) if self.obeys else self.wants
        if self.raises is not None:
            raise self.raises


def run(budget: float, *stages: Made) -> tuple[Log, tuple[StageTime, ...], Deadline]:
    clock, log = Clock(), Log()
    for stage in stages:
        stage.clock = clock
    deadline = Deadline(budget, clock)
    return log, Runner(stages).run(log, deadline), deadline


def test_the_shares_of_later_stages_are_kept_free() -> None:
    log, _, _ = run(100.0, Made("a", wants=FOREVER), Made("b", 20.0, wants=5.0), Made("c", 30.0, wants=FOREVER))
    assert log.left == {"a": 50.0, "b": 20.0, "c": 45.0}, "what b leaves goes to whoever comes next"


def test_a_stage_that_ignores_its_time_costs_the_next_ones_theirs_but_never_gives_them_more() -> None:
    log, times, _ = run(100.0, Made("a", wants=70.0, obeys=False), Made("b", 20.0, wants=FOREVER), Made("c", 30.0))
    assert log.left == {"a": 50.0, "b": 0.0, "c": 30.0}, "the last share is the surest"
    assert [one.seconds for one in times] == [70.0, 0.0, 0.0]


def test_a_share_may_depend_on_what_earlier_stages_found() -> None:
    later = Made("b", lambda log: 0.0 if "a" in log.left else 40.0, wants=FOREVER)
    log, times, _ = run(100.0, Made("a", wants=10.0), later, Made("c"))
    assert log.left == {"a": 60.0, "b": 90.0, "c": 0.0}
    assert times[1].share == 0.0


def test_times_are_in_order_and_add_up() -> None:
    _, times, deadline = run(60.0, Made("a", wants=11.0), Made("b", 5.0, wants=2.5), Made("c", 20.0, wants=FOREVER))
    assert [(one.name, one.share) for one in times] == [("a", 0.0), ("b", 5.0), ("c", 20.0)]
    assert sum(one.seconds for one in times) == 60.0 and deadline()


@given(
    st.floats(1, 1000),
    st.lists(st.tuples(st.floats(0, 300), st.floats(0, 500)), min_size=1, max_size=6),
)
def test_who_obeys_its_deadline_leaves_every_later_share(budget: float, drawn: list[tuple[float, float]]) -> None:
    stages = [Made(str(number), kept, wants) for number, (kept, wants) in enumerate(drawn)]
    log, times, _ = run(budget, *stages)
    taken, total = 0.0, sum(kept for kept, _ in drawn)
    scale = min(1.0, 0.85 * budget / total) if total else 1.0  # shares that are too much are cut alike
    for number, (stage, time) in enumerate(zip(stages, times, strict=True)):
        later = scale * sum(other.share(log) for other in stages[number + 1 :])
        allowed = max(0.0, budget - taken - later)
        assert log.left[stage.name] == pytest.approx(allowed, abs=1e-6)
        assert time.seconds == pytest.approx(min(stage.wants, allowed), abs=1e-6)
        assert allowed >= scale * stage.share(log) - 1e-6, "its own share was left to it"
        taken += time.seconds
    assert taken <= budget + 1e-6


def test_an_interruption_ends_its_stage_and_the_others_see_it() -> None:
    stages = Made("a"), Made("b", raises=KeyboardInterrupt()), Made("c", 30.0), Made("d", essential=True)
    log, times, deadline = run(100.0, *stages)
    assert log.interrupted == {"a": False, "b": False, "c": True, "d": True}
    assert log.ended == {"a": False, "b": False, "c": True, "d": True} and log.left["c"] == 0.0
    assert [one.name for one in times] == ["a", "b", "c", "d"] and deadline.interrupted


def test_the_second_interruption_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(100.0, Made("a", raises=KeyboardInterrupt()), Made("b", raises=KeyboardInterrupt()))


def test_an_interruption_of_an_essential_stage_is_raised() -> None:
    last = Made("b")
    with pytest.raises(KeyboardInterrupt):
        run(100.0, Made("a", essential=True, raises=KeyboardInterrupt()), last)
    assert last.clock.now == 1000.0


def test_errors_pass() -> None:
    with pytest.raises(ValueError, match="broken"):
        run(100.0, Made("a", raises=ValueError("broken")), Made("b"))


def test_a_stage_that_reads_what_comes_later_is_refused() -> None:
    reads, adds = frozenset({"ended"}), frozenset({"ended"})
    with pytest.raises(ValueError, match="'a' reads 'ended' before"):
        run(100.0, Made("a", reads=reads), Made("b", adds=adds))
    run(100.0, Made("b", adds=adds), Made("a", reads=reads))
    run(100.0, Made("a", reads=reads))  # nobody fills it: it is empty


def test_a_stage_that_reads_what_nobody_fills_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' reads 'given' before"):
        run(100.0, Made("a", reads=frozenset({"given"})))
