"""Precision by structure: what passes alone, what passes together, several precisions, limits."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bricolage.driver.precision_search import PrecisionSearchResult, breadth_first
from bricolage.work.implementation import Implementation, KernelConfig, Placement

FULL = Implementation("engine")
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

    def __call__(self, placements: Sequence[Placement]) -> list[float | None]:
        self.tried += placements
        return [self.ms(one) if self.error(one) <= self.bound else None for one in placements]

    @staticmethod
    def ms(placement: Placement) -> float:
        each = {FULL: 1.0, BF16: 0.5, INT8: 0.25}
        return sum(each[one.implementation] * one.region.bit_count() for one in placement)


def search(
    network: Network, count: int, lows: Sequence[Implementation] = (BF16,), *, size: int = 2, trials: int = 200
) -> PrecisionSearchResult:
    numbers = [sum(1 << n for n in range(at, min(at + size, count))) for at in range(0, count, size)]
    return breadth_first(numbers, dict.fromkeys(range(count), 1.0), FULL, lows, network, trials=trials)


def lowered(placement: Placement, low: Implementation = BF16) -> set[int]:
    return {n for one in placement if one.implementation == low for n in range(64) if one.region >> n & 1}


def test_one_operator_that_must_stay_is_found() -> None:
    network = Network({BF16: [1e-3, 1e-3, 1e-3, 1.0, 1e-3, 1e-3, 1e-3, 1e-3]}, 0.02)
    found = search(network, 8)
    assert found.best is not None and lowered(found.best[0]) == set(range(8)) - {3}
    assert found.trials < 12, "halves that pass are not divided"


def test_a_network_that_passes_as_a_whole_takes_one_trial() -> None:
    found = search(Network({BF16: [1e-3] * 8}, 0.02), 8)
    assert found.trials == 1 and found.best is not None and len(found.best[0]) == 1


def test_what_passes_alone_and_not_together_is_thinned() -> None:
    network = Network({BF16: [0.01] * 8}, 0.0201)  # any four operators pass
    found = search(network, 8)
    assert found.best is not None and len(lowered(found.best[0])) == 4


def test_two_precisions_at_once() -> None:
    """Eight bits for half of the operators, sixteen for what is left of the error."""
    network = Network({INT8: [1e-3] * 4 + [1.0] * 4, BF16: [1e-3] * 7 + [1.0]}, 0.02)
    found = search(network, 8, (BF16, INT8))
    assert found.best is not None
    assert lowered(found.best[0], INT8) == {0, 1, 2, 3} and lowered(found.best[0]) == {4, 5, 6}


@given(
    st.lists(st.floats(1e-4, 0.05), min_size=1, max_size=9),
    st.integers(1, 3),
    st.integers(1, 40),
)
def test_all_that_is_returned_passes_and_covers_the_graph(errors: list[float], size: int, trials: int) -> None:
    network = Network({BF16: errors}, 0.02)
    found = search(network, len(errors), size=size, trials=trials)
    assert len(network.tried) == found.trials <= trials and len(set(network.tried)) == found.trials
    for placement, ms in found.passed:
        assert network.error(placement) <= network.bound and ms == network.ms(placement)
        assert sum(one.region for one in placement) == (1 << len(errors)) - 1
    if trials == 40 and any(one <= 0.02 for one in errors):
        assert found.best is not None, "an operator that passes alone is found"
