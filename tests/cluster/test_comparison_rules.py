"""Rules as the code of published comparisons has them, beside enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.history.batch_growth import grown_phases
from bricolage.cluster.history.rates import RateTable
from bricolage.cluster.policies.comparison_rules import AlloXShares, equal_time, most_minibatches
from bricolage.cluster.shares import ShareProblem
from tests.cluster.making import job, one_kind, replay
from tests.cluster.test_policies import problem

NUMBERS = st.integers(1, 9)


def queues(jobs: int, devices: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to put jobs into queues of devices."""
    for order in permutations(range(jobs)):
        for cuts in combinations(range(jobs + devices - 1), devices - 1):
            ends = [cut - number for number, cut in enumerate(cuts)]
            yield tuple(order[low:high] for low, high in zip([0, *ends], [*ends, jobs], strict=True))


def sum_of_ends(run_s: np.ndarray, queue: tuple[tuple[int, ...], ...]) -> float:
    return sum(
        run_s[row, device] * (len(rows) - place) for device, rows in enumerate(queue) for place, row in enumerate(rows)
    )


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_jobs_that_allox_starts_are_the_first_of_a_schedule_with_the_least_sum(
    drawn: list[tuple[int, int, int]],
) -> None:
    given_ = numbered(problem([[a, b] for a, b, _ in drawn], [1, 1], [12.0 * steps for *_, steps in drawn]))
    shares = AlloXShares()(given_)
    assert (shares.sum(axis=0) <= 1.0).all() and (shares.sum(axis=1) <= 1.0).all()
    run_s = given_.steps_left[:, None] / given_.rates
    least = min(sum_of_ends(run_s, queue) for queue in queues(len(drawn), 2))
    started = {device: row for row, device in zip(*(index.tolist() for index in np.nonzero(shares)), strict=True)}
    kept = [
        sum_of_ends(run_s, queue)
        for queue in queues(len(drawn), 2)
        if {device: rows[0] for device, rows in enumerate(queue) if rows} == started
    ]
    assert min(kept) == pytest.approx(least)


def numbered(given_: ShareProblem) -> ShareProblem:
    return ShareProblem(**{**given_.__dict__, "numbers": tuple(range(len(given_.gangs)))})


def test_allox_keeps_what_it_gave_and_counts_it_as_taken() -> None:
    rule = AlloXShares()
    first = rule(numbered(problem([[4.0, 1.0], [4.0, 2.0], [4.0, 1.0]], [1, 1], [100, 100, 10])))
    assert first[2].tolist() == [1.0, 0.0] and first[1].tolist() == [0.0, 1.0], "the short job first on the fast device"
    short = numbered(problem([[4.0, 1.0]] * 2 + [[4.0, 1.0], [40.0, 40.0]], [1, 1], [100, 100, 10, 1]))
    assert (rule(short)[:3] == first).all(), "a shorter job takes nothing from who has a share"


def test_the_oldest_part_of_the_queue_takes_part() -> None:
    """One device and alpha a half: of four jobs the two oldest, the shorter of which starts."""
    waiting = problem([[1.0]] * 4, [1], [1.0, 5.0, 9.0, 2.0], elapsed_s=np.array([0.0, 2.0, 9.0, 1.0]))
    assert np.flatnonzero(AlloXShares(0.5)(numbered(waiting))[:, 0]).tolist() == [1]


def test_a_gang_gets_its_part_of_the_time() -> None:
    assert AlloXShares()(numbered(problem([[1.0]], [2], [10.0], gangs=np.array([2.0])))).tolist() == [[0.5]]


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.integers(1, 3)), min_size=1, max_size=4), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_most_throughput_is_that_of_the_best_corner(drawn: list[tuple[int, int, int, int]], devices: int) -> None:
    """Corners of the programme by enumeration: as many of the constraints as there are shares hold with equality."""
    rates = [[a, b] for a, b, *_ in drawn]
    more = {
        "gangs": np.array([float(gang) for *_, gang in drawn]),
        "minibatches": np.array([float(n) for *_, n, _ in drawn]),
    }
    given_ = problem(rates, [devices, 1], [1.0] * len(drawn), **more)
    worth = given_.rates * given_.minibatches[:, None]
    shares = most_minibatches(given_)
    assert (shares.sum(axis=1) <= 1.0 + 1e-6).all()
    assert (given_.gangs @ shares <= given_.capacity + 1e-6).all()
    if len(drawn) <= 2:
        assert (worth * shares).sum() == pytest.approx(best_corner(given_, worth), rel=1e-6)
    for part in product((0.0, 0.5, 1.0), repeat=worth.size):
        other = np.array(part).reshape(worth.shape)
        if (other.sum(axis=1) <= 1.0).all() and (given_.gangs @ other <= given_.capacity).all():
            assert (worth * other).sum() <= (worth * shares).sum() * (1.0 + 1e-6)


def best_corner(given_: ShareProblem, worth: np.ndarray) -> float:
    """The largest sum over all corners."""
    m, k = worth.shape
    rows = [np.repeat(np.eye(m)[row], k) for row in range(m)] + [
        np.tile(np.eye(k)[kind], m) * np.repeat(given_.gangs, k) for kind in range(k)
    ]
    limits = [*[1.0] * m, *given_.capacity, *[0.0] * (m * k)]
    all_rows = np.array([*rows, *-np.eye(m * k)])
    best = 0.0
    for chosen in combinations(range(len(all_rows)), m * k):
        matrix = all_rows[list(chosen)]
        if abs(np.linalg.det(matrix)) > 1e-9:
            corner = np.linalg.solve(matrix, np.array(limits)[list(chosen)])
            if (all_rows @ corner <= np.array(limits) + 1e-9).all():
                best = max(best, float(worth.ravel() @ corner))
    return best


def test_steps_are_counted_at_the_present_batch_size() -> None:
    """An epoch of the language model has 5,968 steps of ten samples; it is worth more than 30 steps a second of another job."""
    table = RateTable({("LM (batch size 10)", 1): {"v100": 50.0}, ("LM (batch size 80)", 1): {"v100": 8.0}})
    phases = grown_phases("accordion", "LM (batch size 10)", 1, 5968.0 * 12, table, ["v100"])
    assert [(phase.steps, phase.minibatches) for phase in phases] == [(10.0, 5968.0), (2.0, 746.0)]
    given_ = problem(
        [[phases[0].rates["v100"]], [phases[1].rates["v100"]], [30.0]], [2], [1.0] * 3,
        gangs=np.array([1.0, 1.0, 2.0]), minibatches=np.array([5968.0, 746.0, 1.0]),
    )  # fmt: skip
    shares = most_minibatches(given_)[:, 0]
    assert shares == pytest.approx([1.0, 0.0, 0.5], abs=1e-6) and shares[1] > 0.0, (
        "by 50, 8 and 15 steps a second and device"
    )


def test_equal_time_counts_no_gang() -> None:
    shares = equal_time(problem([[1.0]] * 3, [2], [1.0] * 3, gangs=np.array([1.0, 2.0, 1.0])))
    assert shares[:, 0] == pytest.approx(2 / 3)
    assert equal_time(problem([[1.0, 2.0]], [3, 1], [1.0]))[0] == pytest.approx([0.75, 0.25]), (
        "a row is at most all of its time"
    )


@pytest.mark.parametrize("policy", ["gandiva-fair", "max-sum", "allox-shares"])
def test_they_serve_all(policy: str) -> None:
    states = replay(policy, [job(n, 10.0 * n, 500.0, 1 + n % 2) for n in range(5)], one_kind(2)).states
    assert all(np.isfinite(state.finish_s) for state in states)
