"""The figure of errors over times, and what is said of integers and of accuracy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bricolage.plan.accuracy_record import FloatOperator, JudgedAccuracy, QuantisedGraph
from bricolage.plan.plan import Bucket
from bricolage.report import accuracy_front, words
from bricolage.report.accuracy_front import Plotted, accuracy_pareto
from bricolage.report.summary import bucket_summary
from tests.plan.bucket_facts import alter_bucket
from tests.report import report_samples

BUCKET: Bucket = report_samples.small()[0].buckets[0]

points = st.builds(
    Plotted,
    name=st.just("p"),
    ms=st.floats(0.01, 100.0),
    error=st.floats(1e-9, 1.0),
    accepted=st.booleans(),
    colour=st.just("c0"),
)


@given(st.lists(points, min_size=1, max_size=8))
def test_the_front_is_what_nothing_beats_in_both(found: list[Plotted]) -> None:
    best = accuracy_pareto(found)
    for one in found:
        beaten = any(o.ms <= one.ms and o.error <= one.error and (o.ms, o.error) != (one.ms, one.error) for o in found)
        assert ((one.ms, one.error) in {(p.ms, p.error) for p in best}) == (not beaten)


def with_integers() -> Bucket:
    """The sample's first contestants, one of them in integers."""
    first, second, *others = BUCKET.race.contestants
    first = replace(first, median_ms=1.0, error=1e-8, reached=0.03, held_back_error=0.03)
    second = replace(second, median_ms=2.0, error=2e-7, reached=2e-7, held_back_error=2e-7)
    tried = QuantisedGraph(
        "quantised", 5, (FloatOperator("head", "MatMul", "it costs"),), 9, (400, 100), "1 ms", "raced", 0.03
    )
    judged = JudgedAccuracy(
        "relative", "relative error", 0.1, at_least=False, samples=3, origin="3 samples", reached=0.03
    )
    return alter_bucket(
        BUCKET,
        contestants=(first, second, *others),
        accuracy=judged,
        quantised=(tried,),
        variant="quantised",
        bound=0.1,
    )


def test_points_show_the_error_against_the_float_model() -> None:
    bucket = with_integers()
    found = {point.name: point.error for point in accuracy_front.points(bucket, {})}
    assert found[bucket.race.contestants[0].name] == 0.03, "and not the one against exact integers"
    drawn = accuracy_front.accuracy_figure(bucket, {})
    assert drawn.count("<circle") == len(found) and 'class="front"' in drawn
    alike = tuple(replace(one, error=1e-7, held_back_error=None) for one in bucket.race.contestants)
    assert accuracy_front.accuracy_figure(alter_bucket(bucket, contestants=alike), {}) == "", (
        "where all are about as accurate it says nothing"
    )


def test_what_was_asked_and_reached_is_said() -> None:
    bucket = with_integers()
    assert words.accuracy(bucket) == "accuracy: relative error 0.03, at most 0.1 asked for, on 3 samples"
    (line,) = words.quantised_lines(bucket)
    assert "5 products in integers, 1 float" in line and "raced: 1 ms" in line
    assert words.kept_float(bucket) == [("head", "MatMul", "it costs")]
    assert words.kept_float(BUCKET) == [] and words.accuracy(BUCKET) == ""
    summary = bucket_summary(bucket)
    assert isinstance(summary["accuracy"], dict) and summary["accuracy"]["reached"] == 0.03
    assert isinstance(summary["quantised"], list) and len(summary["quantised"]) == 1
