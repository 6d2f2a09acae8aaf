"""Precision by structure: what passes alone, what passes together, several precisions, limits."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.driver.precision_search import (
    AloneCost,
    LowPrecision,
    PrecisionSearchResult,
    search_precisions,
    worth_trying,
)
from bricolage.work.implementation import Assignment, Implementation, KernelConfig, Placement

FULL, OTHER = Implementation("engine"), Implementation("other")
BF16, INT8 = (Implementation("engine", KernelConfig(name)) for name in ("bf16", "int8"))


class Network:
    """Operators whose squared errors add up, as those of independent roundings do; low precisions take no time."""

    def __init__(self, errors: dict[Implementation, Sequence[float]], bound: float) -> None:
        self.errors, self.bound, self.tried = errors, bound, list[Placement]()

    def error(self, placement: Placement) -> float:
        squares = 0.0
        for one in placement:
            costs = self.errors.get(one.implementation)
            squares += sum(e**2 for i, e in enumerate(costs) if one.region >> i & 1) if costs else 0.0
        return float(squares**0.5)

    def __call__(self, placements: Sequence[Placement]) -> list[Cost | None]:
        self.tried += placements
        return [self.cost(one) for one in placements]

    def cost(self, placement: Placement) -> Cost:
        error, ms = self.error(placement), self.ms(placement)
        return Cost("ok", Latency(ms, ms, ms, 9), error) if error <= self.bound else Cost("wrong", error=error)

    @staticmethod
    def ms(placement: Placement) -> float:
        each = {FULL: 1.0, OTHER: 1.0, BF16: 0.5, INT8: 0.25}
        return sum(each[one.implementation] * one.region.bit_count() for one in placement)


def search(
    network: Network,
    count: int,
    lows: Sequence[Implementation] = (BF16,),
    *,
    size: int = 2,
    trials: int = 200,
    alone: dict[int, AloneCost] | None = None,
) -> PrecisionSearchResult:
    numbers = [sum(1 << n for n in range(at, min(at + size, count))) for at in range(0, count, size)]
    whole = [(Assignment((1 << count) - 1, low),) for low in lows]
    given = [LowPrecision(low, network.ms(one), network.error(one)) for low, one in zip(lows, whole, strict=True)]
    work = dict.fromkeys(range(count), 1.0)
    fulls = {FULL: float(count)}
    return search_precisions(numbers, work, fulls, given, network.bound, network, alone=alone, trials=trials)


def lowered(placement: Placement, low: Implementation = BF16) -> set[int]:
    return {n for one in placement if one.implementation == low for n in range(64) if one.region >> n & 1}


def test_one_operator_that_must_stay_is_found() -> None:
    network = Network({BF16: [1e-3, 1e-3, 1e-3, 1.0, 1e-3, 1e-3, 1e-3, 1e-3]}, 0.02)
    found = search(network, 8)
    assert found.best is not None and lowered(found.best[0]) == set(range(8)) - {3}
    assert found.trials <= 12, "parts that gain nothing more are not divided"


def test_a_segment_that_is_known_to_bear_nothing_is_left_out_at_once() -> None:
    network = Network({BF16: [1e-3, 1e-3, 1e-3, 1.0, 1e-3, 1e-3, 1e-3, 1e-3]}, 0.02)
    alone = {3 << at: AloneCost(1.0, network.error((Assignment(3 << at, BF16),))) for at in (0, 2, 4, 6)}
    found = search(network, 8, alone=alone)
    assert lowered(network.tried[0]) == {0, 1, 4, 5, 6, 7} and found.passed[0][0] == network.tried[0]
    assert found.best is not None and lowered(found.best[0]) == set(range(8)) - {3}, "a segment is divided, too"


def test_what_passes_alone_and_not_together_is_as_much_as_fits() -> None:
    network = Network({BF16: [0.01] * 64}, 0.0499)  # any 24 operators pass
    found = search(network, 64, size=1, trials=3)
    assert lowered(network.tried[0]) == set(range(23)), "the first choice leaves a little room"
    assert found.best is not None and len(lowered(found.best[0])) >= 23


def test_errors_that_are_less_than_predicted_make_room() -> None:
    """Errors within a part cancel, and so are less than those of its parts would make it."""

    class Cancelling(Network):
        def error(self, placement: Placement) -> float:
            count = len(lowered(placement))
            return 0.01 * count**0.5 * (1.0 if count == 64 else 0.8)

    network = Cancelling({BF16: [0.01] * 64}, 0.05)
    assert max(len(lowered(one)) for one, _ in search(network, 64, size=1).passed) >= 36, "39 pass"


def test_two_precisions_at_once() -> None:
    """Eight bits for half of the operators, sixteen for what is left of the error."""
    network = Network({INT8: [1e-3] * 4 + [1.0] * 4, BF16: [1e-3] * 7 + [1.0]}, 0.02)
    found = search(network, 8, (BF16, INT8))
    assert found.best is not None
    assert lowered(found.best[0], INT8) == {0, 1, 2, 3} and lowered(found.best[0]) == {4, 5, 6}


def test_what_fails_without_an_error_is_divided() -> None:
    class Failing(Network):
        def cost(self, placement: Placement) -> Cost:
            return Cost("failed") if 3 in lowered(placement) else super().cost(placement)

    found = search(Failing({BF16: [0.0075] * 8}, 0.02), 8)
    assert found.best is not None and len(lowered(found.best[0]) - {3}) == 6


def test_who_runs_the_rest_is_the_one_with_which_the_first_choice_is_fastest() -> None:
    class Handing(Network):
        @staticmethod
        def ms(placement: Placement) -> float:
            return Network.ms(placement) + len({one.implementation.backend for one in placement})

    network = Handing({BF16: [0.01] * 8}, 0.0201)
    given = [LowPrecision(BF16, 4.0, 0.01 * 8**0.5)]
    found = search_precisions([1 << n for n in range(8)], {}, {OTHER: 7.5, FULL: 8.0}, given, 0.0201, network)
    assert found.best is not None
    assert {one.implementation for one in found.best[0]} == {FULL, BF16}


def test_a_precision_that_is_neither_faster_nor_more_accurate_is_not_tried() -> None:
    fast, exact, worse, alike = (Implementation("engine", KernelConfig(name)) for name in "abcd")
    lows = [
        LowPrecision(worse, 2.5, 0.5),
        LowPrecision(fast, 1.0, 0.5),
        LowPrecision(exact, 2.0, 0.1),
        LowPrecision(alike, 2.2, 0.099),
    ]
    assert [one.implementation for one in worth_trying(lows)] == [exact, fast]


@given(
    st.lists(st.floats(1e-4, 0.05), min_size=1, max_size=9),
    st.lists(st.floats(1e-4, 0.5), min_size=9, max_size=9),
    st.integers(1, 3),
    st.integers(1, 40),
)
def test_all_that_is_returned_passes_and_covers_the_graph(
    errors: list[float], more: list[float], size: int, trials: int
) -> None:
    network = Network({BF16: errors, INT8: more[: len(errors)]}, 0.02)
    found = search(network, len(errors), (BF16, INT8), size=size, trials=trials)
    assert len(network.tried) == found.trials <= trials and len(set(network.tried)) == found.trials
    for placement, ms in found.passed:
        assert network.error(placement) <= network.bound and ms == network.ms(placement)
        assert sum(one.region for one in placement) == (1 << len(errors)) - 1


@given(st.lists(st.sampled_from([1e-3, 0.004, 0.008, 0.03, 1.0]), min_size=2, max_size=8), st.integers(1, 2))
def test_it_comes_near_the_best_of_all_choices(errors: list[float], size: int) -> None:
    """Within one operator of the largest set that passes (brute force), where errors do add up in squares."""
    network, count = Network({BF16: errors}, 0.02), len(errors)
    found = search(network, count, size=size)
    squares = sorted(error**2 for error in errors)
    fits = sum(sum(squares[: n + 1]) <= network.bound**2 for n in range(count))
    if fits < count:
        best = 0 if found.best is None else len(lowered(found.best[0]))
        assert best >= fits - 1
