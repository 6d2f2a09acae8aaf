"""Who ships for throughput, by figures that are made up: what the race says, limits, queues, and who races at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.driver.operating_point_search import ThroughputSearch, TriedCandidate
from bricolage.driver.serving import Batch, ServingCandidate
from bricolage.errors import LatencyLimit, NoBackend
from bricolage.measure.race_record import Race
from bricolage.measure.request_rates import ServedLoad
from bricolage.plan.throughput import Kind
from bricolage.report.operating_points import no_gain_sentence, points_verdict
from bricolage.work.implementation import Assignment, Implementation


class Nothing:
    """Stands for a session whose backends are never asked."""

    options = Options(objective="throughput", threads=2)


def candidate(program: str, kind: Kind = "copies", streams: int = 2, rows: int = 1) -> ServingCandidate:
    nothing = cast(Any, None)
    batch = Batch(rows, nothing, Path(), Path(), 1e-6, 1e-6)
    placement = (Assignment(1, Implementation(program.partition(" ")[0])),)
    queue = 0 if kind == "queue" else None
    return ServingCandidate(program, kind, batch, nothing, placement, streams, 2 // streams, queue)


def search(limit: float | None = None, **tried: tuple[ServingCandidate, float, float]) -> ThroughputSearch:
    """Of candidates with their milliseconds a request and their p99."""
    found = ThroughputSearch(cast(Any, Nothing()), cast(Any, None), (1,), limit)
    for one, ms, late in tried.values():
        found.tried[one.name] = TriedCandidate(one, ServedLoad(Cost("ok", Latency(ms, ms, ms, 7)), late / 2, late))
    return found


def raced(found: ThroughputSearch, rounds: int = 30) -> Race:
    """A race in which everyone's figures are those of before, with a little scatter."""
    costs = {name: one.served.cost for name, one in found.tried.items()}
    turns = [{n: ((c.ms or 0.0) * (1 + 0.001 * (i % 5)),) for n, c in costs.items()} for i in range(rounds)]
    for one in found.tried.values():
        one.raced = True
    return Race(tuple(turns), costs, {})


FAST, SLOW = candidate("openvino f32"), candidate("onnxruntime f32")
PLAN, QUEUE = candidate("a plan", "plan"), candidate("openvino f32", "queue", 1)


def test_the_best_copies_ship_where_no_plan_is_clearly_better() -> None:
    found = search(a=(FAST, 1.0, 3.0), b=(SLOW, 2.0, 4.0), c=(PLAN, 0.99, 3.0))
    told = found._chosen(raced(found))
    assert told.chosen == told.best_peer == FAST.name and told.ratio == 1.0 and not told.significant
    assert told.server(PLAN.name).ratio == pytest.approx(1 / 0.99) and told.server(SLOW.name).ratio == pytest.approx(
        0.5
    )
    assert told.front == (PLAN.name,)
    assert (told.best_other, told.over_other, told.over_other_ci) == (FAST.name, 1.0, (1.0, 1.0))


def test_a_plan_ships_that_answers_more_by_two_per_cent() -> None:
    found = search(a=(FAST, 1.0, 3.0), b=(SLOW, 2.0, 2.0), c=(PLAN, 0.9, 5.0))
    told = found._chosen(raced(found))
    assert (told.chosen, told.best_peer, told.significant) == (PLAN.name, FAST.name, True)
    assert told.ratio == pytest.approx(1 / 0.9)
    assert told.front == (PLAN.name, FAST.name, SLOW.name)


def test_a_queue_is_the_best_peer_and_never_ships() -> None:
    found = search(a=(FAST, 1.0, 3.0), q=(QUEUE, 0.5, 3.0), c=(PLAN, 0.8, 3.0))
    told = found._chosen(raced(found))
    assert (told.chosen, told.best_peer, told.significant) == (PLAN.name, QUEUE.name, False)
    assert told.ratio == pytest.approx(0.5 / 0.8)
    assert "no plan can hold" in told.server(QUEUE.name).reason


def test_whoever_is_too_late_does_not_ship() -> None:
    found = search(3.5, a=(FAST, 1.0, 4.0), b=(SLOW, 2.0, 3.0), c=(PLAN, 0.5, 9.0))
    told = found._chosen(raced(found))
    assert told.chosen == told.best_peer == SLOW.name and "too late" in told.server(FAST.name).reason
    assert told.front == (PLAN.name, FAST.name, SLOW.name), "the front shows what other limits would give"


def test_without_a_race_what_was_measured_before_decides() -> None:
    told = search(a=(FAST, 1.0, 3.0), b=(SLOW, 2.0, 3.0), c=(PLAN, 0.5, 3.0))._chosen(None)
    assert told.chosen == FAST.name, "a plan that did not race never ships"
    assert not told.server(FAST.name).raced


def test_a_limit_out_of_reach_names_the_best() -> None:
    found = search(1.0, a=(FAST, 1.0, 3.0), b=(SLOW, 2.0, 2.5))
    with pytest.raises(LatencyLimit, match=r"within 1 ms: the best p99 is 2.5 ms \(onnxruntime f32, 2 streams"):
        found._check()
    with pytest.raises(NoBackend, match="in the time given"):
        search(1.0)._check()
    found = search(1.0)
    found.tried["a"] = TriedCandidate(FAST, ServedLoad(Cost("crashed", reason="it ended with SIGSEGV")))
    with pytest.raises(NoBackend, match="a: it ended with SIGSEGV"):
        found._check()


def test_who_races() -> None:
    batches = {
        f"b{rows}": (candidate("openvino f32", rows=rows), 1.0 + 0.04 * i, 3.0) for i, rows in enumerate((4, 8, 16, 2))
    }
    others = {
        "q": (QUEUE, 1.1, 3.0),
        "s": (SLOW, 1.4, 3.0),
        "t": (candidate("torch f32"), 9.0, 9.0),
        "p": (PLAN, 20.0, 30.0),
    }
    found = [one.name for one in search(**batches, **others).finalists()]
    assert found == [batches["b4"][0].name, batches["b8"][0].name, QUEUE.name, SLOW.name, PLAN.name]
    far = search(
        a=(FAST, 1.0, 1.0),
        b=(SLOW, 9.0, 9.0),
        c=(candidate("torch f32"), 9.5, 9.5),
        d=(candidate("tvm f32"), 10.0, 10.0),
    )
    assert [one.program for one in far.finalists()] == ["openvino f32", "onnxruntime f32", "torch f32"]


def test_the_best_other_tool_races_and_is_compared_in_the_same_rounds() -> None:
    own = [candidate(f"native f32{suffix}") for suffix in ("", "-a", "-b")]
    figures = {f"n{i}": (one, 1.0 + 0.01 * i, 1.0) for i, one in enumerate(own)}
    found = search(**figures, o=(SLOW, 9.0, 9.0), t=(candidate("torch f32"), 9.5, 9.5))
    assert [one.program for one in found.finalists()] == [*(one.program for one in own), SLOW.program]
    ran = raced(found)
    told = found._chosen(ran)
    assert (told.chosen, told.best_other, told.over_other) == (own[0].name, SLOW.name, pytest.approx(9.0))
    assert told.over_other_ci is not None
    shown = points_verdict(told, None)
    assert f"9.00x [9.00, 9.00] the requests of {SLOW.name}, the best other tool here; the best single" in shown
    assert no_gain_sentence(told).startswith("9.00x [9.00, 9.00] the requests of onnxruntime f32")
    for one in found.tried.values():
        one.raced = False
    apart = found._chosen(None)
    assert (
        apart.over_other == pytest.approx(9.0)
        and apart.over_other_ci is None
        and "about 9.00x" in points_verdict(apart, None)
    )
    alone = search(n=(own[0], 1.0, 1.0))._chosen(None)
    assert alone.best_other == "" and no_gain_sentence(alone) == "no plan beats the best single configuration"


def test_placements_are_decided_for_the_best_copies_alone() -> None:
    asked: list[str] = []

    def place(one: ServingCandidate, time: Deadline) -> None:
        assert time.left > 0
        asked.append(one.name)

    one = candidate("openvino f32", streams=1)
    found = search(
        a=(FAST, 1.0, 3.0), b=(one, 1.05, 3.0), c=(SLOW, 1.01, 3.0), d=(candidate("tvm f32", rows=4), 5.0, 9.0)
    )
    found.place(place, Deadline(60.0))
    assert asked == [FAST.name, one.name], "one for each operating point near the best"
