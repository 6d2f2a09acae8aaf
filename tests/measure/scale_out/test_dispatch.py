"""Whatever happens to nodes, every item has one result, or nobody could do it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bricolage.measure.scale_out.dispatch import Dispatch


def anybody(_item: str, _node: str) -> bool:
    return True


def test_items_go_to_those_who_may() -> None:
    work = Dispatch(["a", "b"], lambda item, node: (item, node) != ("a", "slow"))
    assert work.next("slow", 0.0) == (1, "b")
    assert work.next("slow", 0.0) is None
    assert not work.hopeless(["slow"])  # somebody is at b
    work.done(1, "slow", 1.0)
    assert work.open and work.hopeless(["slow"]) and not work.hopeless(["slow", "quick"])


def test_the_work_of_a_lost_node_goes_to_another() -> None:
    work = Dispatch(["a"], anybody)
    assert work.next("one", 0.0) == (0, "a")
    assert work.next("two", 0.0) is None
    work.failed(0, "one")
    assert work.next("two", 0.0) == (0, "a")
    assert work.done(0, "two", 1.0)
    assert not work.open


def test_an_item_that_fails_everywhere_is_given_up() -> None:
    work = Dispatch(["a", "b"], anybody)
    for _ in range(3):
        found = work.next("one", 0.0)
        assert found == (0, "a")
        work.failed(0, "one")
    assert work.given_up == ["a"]
    assert work.next("one", 0.0) == (1, "b")


def test_a_slow_node_gets_company_and_the_first_result_counts() -> None:
    work = Dispatch(["a", "b", "c"], anybody)
    work.next("slow", 0.0)
    for now in (0.0, 4.0):
        number, _ = work.next("quick", now) or (-1, "")
        assert work.done(number, "quick", now + 4.0)
    assert work.next("quick", 8.0) is None  # not yet twice the median
    assert work.next("quick", 8.1) == (0, "a")
    assert work.next("third", 99.0) is None  # two are enough
    assert work.duplicates == 1
    assert work.done(0, "quick", 9.0)
    assert not work.done(0, "slow", 9.5)
    assert work.dropped == 1 and not work.open


def test_one_that_is_sent_back_is_done_in_its_other_form() -> None:
    work = Dispatch(["a"], anybody)
    work.next("one", 0.0)
    assert work.done(0, "one", 1.0)
    work.restore(0, "a with limits")
    assert work.open
    assert work.next("two", 1.0) == (0, "a with limits")


@given(st.integers(1, 6), st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=80))
def test_every_item_has_at_most_one_result_and_none_is_forgotten(
    items: int, nodes: int, events: list[tuple[int, int]]
) -> None:
    """Events: a node asks, answers, or fails, in any order, with time going on."""
    work = Dispatch([str(number) for number in range(items)], anybody)
    busy: dict[str, list[int]] = {f"node {number}": [] for number in range(nodes)}
    results: list[int] = []
    for now, (who, what) in enumerate(events):
        node = f"node {who % nodes}"
        if what == 0 and (found := work.next(node, float(now))) is not None:
            number, item = found
            assert item == str(number) and number not in results and number not in busy[node]
            busy[node].append(number)
        elif what == 1 and busy[node]:
            number = busy[node].pop(0)
            if work.done(number, node, float(now)):
                results.append(number)
        elif what == 2 and busy[node]:
            work.failed(busy[node].pop(0), node)
    assert len(results) == len(set(results))
    now = float(len(events))
    for node, numbers in busy.items():
        for number in numbers:
            work.failed(number, node)
    while work.open:  # one node that lives is enough
        if (found := work.next("last", now)) is not None:
            assert work.done(found[0], "last", now)
            results.append(found[0])
        now += 100.0
    assert sorted([*map(str, results), *work.given_up]) == [str(number) for number in range(items)]
