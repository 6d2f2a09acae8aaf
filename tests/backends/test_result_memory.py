"""Which results lie in memory that something else has, too."""

from __future__ import annotations

from bricolage.backends.result_memory import find_shared


def test_memory_that_is_taken() -> None:
    assert find_shared([(0, 8), (8, 16), (20, 24)], [(16, 20)]) == ()
    assert find_shared([(0, 8), (15, 17), (18, 19)], [(16, 20)]) == (1, 2)


def test_results_that_repeat_or_overlap() -> None:
    assert find_shared([(0, 8), (0, 8), (4, 12), (12, 16)], []) == (1, 2)


def test_empty_results_lie_nowhere() -> None:
    assert find_shared([(5, 5), (0, 8)], []) == (0,)
