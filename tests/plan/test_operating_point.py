"""Operating points: what they refuse, the cores of their streams, and the way through JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.errors import BadOption
from bricolage.plan.operating_point import LONGEST_DELAY_MS, MOST_ROWS, MOST_STREAMS, MOST_WAITING, OperatingPoint

POINTS = st.builds(
    OperatingPoint,
    streams=st.integers(1, MOST_STREAMS),
    threads=st.integers(1, MOST_STREAMS),
    batch=st.integers(1, MOST_ROWS),
    max_delay_ms=st.floats(0.0, LONGEST_DELAY_MS),
    queue=st.integers(1, MOST_WAITING),
)


@given(POINTS)
def test_points_survive_the_way_through_json(point: OperatingPoint) -> None:
    assert decode(OperatingPoint, encode(point)) == point


@given(POINTS)
def test_points_survive_the_way_through_words(point: OperatingPoint) -> None:
    words = ",".join(f"{one.name}={getattr(point, one.name)}" for one in dataclasses.fields(point))
    assert OperatingPoint.parse(words) == point
    assert OperatingPoint.parse("streams=3") == OperatingPoint(streams=3)


@pytest.mark.parametrize(
    "words", ["", "streams", "streams=", "streams=two", "lanes=2", "streams=0", "batch=1.5", "2x1"]
)
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(BadOption):
        OperatingPoint.parse(words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("streams", 0), ("streams", MOST_STREAMS + 1), ("streams", 1.5), ("streams", True), ("threads", 0), ("threads", "2"),
        ("batch", 0), ("batch", -1), ("max_delay_ms", -0.1), ("max_delay_ms", float("nan")), ("max_delay_ms", float("inf")),
        ("queue", 0), ("queue", None),
    ],
)  # fmt: skip
def test_what_no_stream_can_be_is_refused_here_and_in_a_file(field: str, value: Any) -> None:
    with pytest.raises(BadOption, match=field):
        OperatingPoint(**{field: value})
    with pytest.raises(DecodeError, match=field):
        decode(OperatingPoint, {**encode(OperatingPoint()), field: value})


@given(
    POINTS.map(lambda one: dataclasses.replace(one, streams=one.streams % 9 + 1, threads=one.threads % 5 + 1)),
    st.data(),
)
def test_groups_are_disjoint_and_within_what_there_is(point: OperatingPoint, data: st.DataObject) -> None:
    cores = data.draw(st.lists(st.integers(0, 99), unique=True, max_size=60).map(sorted))
    most = data.draw(st.integers(1, 60))
    if point.cores > min(len(cores), most):
        with pytest.raises(BadOption, match=f"may use {min(len(cores), most)}"):
            point.groups(cores, most)
        return
    groups = point.groups(cores, most)
    assert [len(group) for group in groups] == [point.threads] * point.streams
    used = [core for group in groups for core in group]
    assert len(set(used)) == len(used) and set(used) <= set(cores)
