"""Grids, techniques and the task scheduler, without anything that is timed."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.tune.grid import Grid, History, Point
from bricolage.tune.surrogate import Surrogate
from bricolage.tune.task_scheduler import TaskProgress, expected_gain, next_tasks
from bricolage.tune.technique import Technique
from bricolage.tune.techniques import TECHNIQUES, Bandit, RandomSearch, technique
from bricolage.work.config_space import TuningTask

NAMES = [*TECHNIQUES, *(["surrogate"] if Surrogate.installed() else [])]
values = st.one_of(
    st.lists(st.integers(-5, 50), min_size=1, max_size=5, unique=True).map(lambda found: tuple(sorted(found))),
    st.sampled_from([(True,), (True, False), ("n", "m"), (1, True)]),
)
tasks = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), values, min_size=1, max_size=4).map(
    lambda parameters: TuningTask("task", parameters)
)


def points(grid: Grid) -> list[Point]:
    return list(itertools.product(*map(range, grid.radix)))


@given(tasks)
def test_points_and_choices_are_one_to_one(task: TuningTask) -> None:
    grid = Grid(task)
    choices = [grid.choice(point) for point in points(grid)]
    assert len(set(map(repr, choices))) == grid.size and choices[0] == ()
    assert [grid.point(choice) for choice in choices] == points(grid)
    assert all(task.holds(choice) for choice in choices)
    assert grid.point((("no such name", 1),)) is None and grid.point((*choices[-1], *choices[-1])) is None


@given(tasks, st.randoms(use_true_random=False))
def test_a_step_changes_one_parameter(task: TuningTask, rng) -> None:
    grid = Grid(task)
    point = grid.draw(rng)
    assert point in points(grid)
    assert sum(a != b for a, b in zip(point, grid.step(point, rng), strict=True)) == 1
    assert sorted(grid.neighbours(point)) == sorted(
        other for other in points(grid) if sum(a != b for a, b in zip(point, other, strict=True)) == 1
    )


def run(kind: str, grid: Grid, shares: dict[Point, float], trials: int, seed: int = 0) -> tuple[History, list[Point]]:
    history = History()
    history.shares[grid.origin] = 1.0
    made, proposed = technique(kind, grid, history, seed), list[Point]()
    for _ in range(trials):
        point = made.propose()
        if point is None:
            break
        proposed.append(point)
        history.tell(point, shares[point])
        made.tell(point, shares[point])
    return history, proposed


@pytest.mark.parametrize("kind", NAMES)
@settings(max_examples=5, deadline=None)
@given(task=tasks, seed=st.integers(0, 5))
def test_each_point_is_proposed_once(kind: str, task: TuningTask, seed: int) -> None:
    grid = Grid(task)
    shares = {point: 1.0 + (hash(point) % 7) / 10 for point in points(grid)}
    _, proposed = run(kind, grid, shares, 2 * grid.size, seed)
    assert len(set(proposed)) == len(proposed) and grid.origin not in proposed and set(proposed) <= set(points(grid))
    if len(grid.radix) == 1:
        assert len(proposed) == grid.size - 1, "on a line all points are neighbours of the usual one"


def bowl() -> tuple[Grid, dict[Point, float]]:
    """Four ordered parameters of 12 values and one that is not: a smooth valley with one bottom."""
    task = TuningTask("bowl", {**{f"p{n}": tuple(range(12)) for n in range(4)}, "flag": ("x", "y", "z")})
    grid = Grid(task)
    bottom = dict(zip(grid.names, (2, 9, 3, 7, 11), strict=True))

    def share(point: Point) -> float:
        far = sum(abs(at - bottom[name]) for name, at in zip(grid.names, point, strict=True) if name != "flag")
        flag = point[grid.names.index("flag")]
        return 0.5 + 0.02 * far + (0.0 if flag == 2 else 0.1)

    return grid, {point: share(point) for point in points(grid)}


@pytest.mark.parametrize("kind", [name for name in NAMES if name != "random"])
def test_techniques_find_more_than_chance_in_a_valley(kind: str) -> None:
    grid, shares = bowl()
    by_chance = [run("random", grid, shares, 90, seed)[0].least for seed in range(2)]
    found = [run(kind, grid, shares, 90, seed)[0].least for seed in range(2)]
    assert sum(found) < sum(by_chance)


def test_failures_are_remembered_and_never_best() -> None:
    grid = Grid(TuningTask("task", {"n": (1, 2, 3)}))
    history, proposed = run("bandit", grid, dict.fromkeys(points(grid), math.inf), 9)
    assert len(proposed) == 3 and history.least == 1.0 and history.best(5) == [grid.origin]


class Fixed(Technique):
    """Proposes the points of a list."""

    def __init__(self, name: str, grid: Grid, history: History, own: list[Point]) -> None:
        super().__init__(grid, history, 0)
        self.name, self.own = name, own  # type: ignore[misc]

    def _draw(self) -> Point | None:
        return next(self.history.fresh(self.own), None)

    def _last(self) -> list[Point]:
        return []


def test_the_bandit_asks_who_finds_new_bests() -> None:
    """By OpenTuner's formula, on counts worked out by hand."""
    grid = Grid(TuningTask("task", {"n": tuple(range(1, 101))}))
    history = History()
    good = Fixed("good", grid, history, [(n,) for n in range(1, 51)])
    bad = Fixed("bad", grid, history, [(n,) for n in range(51, 101)])
    bandit = Bandit(grid, history, 0, arms=[good, bad])
    asked: list[str] = []
    for n in range(40):
        point = bandit.propose()
        assert point is not None
        asked.append("good" if point[0] <= 50 else "bad")
        share = 0.9 - 0.01 * n if point[0] <= 50 else 2.0
        history.tell(point, share)
        bandit.tell(point, share)
    assert asked[:2] == ["good", "bad"] and asked.count("good") > 30
    n = asked.count("bad")
    assert bandit.score("bad") == pytest.approx(0.05 * math.sqrt(2 * math.log2(40) / n))
    assert bandit.score("good") == pytest.approx(1.0 + 0.05 * math.sqrt(2 * math.log2(40) / (40 - n)))


def test_an_arm_that_is_done_leaves_the_others() -> None:
    grid = Grid(TuningTask("task", {"n": (1, 2, 3, 4)}))
    history = History()
    arms: list[Technique] = [Fixed("done", grid, history, []), RandomSearch(grid, history, 0)]
    bandit = Bandit(grid, history, 0, arms=arms)
    assert len({bandit.propose() for _ in range(4)}) == 4


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_expected_gains_by_hand() -> None:
    task = TaskProgress(10.0, flops=100, group="conv")
    assert expected_gain(task, [task]) == math.inf, "who had no turn comes first"
    for ms in (9.0, 8.0, 7.0, 6.0):
        task.tell(ms)
    assert expected_gain(task, [task]) == pytest.approx(0.2 * (9.0 - 6.0) / 3 + 0.8 * 6.0 / 4)
    alike = TaskProgress(1.0, flops=100, group="conv")
    assert expected_gain(task, [task, alike]) == pytest.approx(0.2 * 1.0 + 0.8 * (6.0 - 2.0 * 100 / 100.0)), (
        "alike: 1 ms"
    )
    task.exhausted = True
    assert expected_gain(task, [task]) == 0.0


def test_time_goes_to_what_is_long_and_still_gains() -> None:
    long, short, done = TaskProgress(100.0), TaskProgress(1.0), TaskProgress(50.0, exhausted=True)
    turns = [0, 0, 0]
    for _ in range(30):
        (number,) = next_tasks([long, short, done], 1)
        turns[number] += 1
        (long, short, done)[number].tell((long, short, done)[number].best_ms * 0.99)
    assert turns[0] > 20 and turns[1] >= 1 and turns[2] == 0
    assert next_tasks([done], 3) == []
