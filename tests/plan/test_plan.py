import json
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.codec import DecodeError, decode, encode
from bricolage.plan.plan import Disturbance, Plan, numbers, ranges
from tests.plan.plans import plans


@given(st.sets(st.integers(0, 200)))
def test_ranges_round_trip(wanted: set[int]) -> None:
    ascending = tuple(sorted(wanted))
    assert numbers(ranges(ascending)) == ascending


def test_ranges_are_short() -> None:
    assert ranges((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(plans())
def test_plans_round_trip_through_json(plan: Plan) -> None:
    assert decode(Plan, json.loads(json.dumps(encode(plan)))) == plan


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"others": 1.5}, "others"),
        ({"stolen": -0.1}, "stolen"),
        ({"pressure": "much"}, "pressure"),
        ({"samples": 10**9}, "samples"),
        ({"samples": 3, "disturbed": 4}, "more samples were disturbed"),
        ({"samples": 3, "repeated": 4}, "more samples were disturbed or repeated"),
        ({"others": 0.5, "neighbours": 2}, "unknown field 'neighbours'"),
    ],
)
def test_what_others_did_has_limits(data: object, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(Disturbance, data)


@dataclass(frozen=True)
class Small:
    count: int
    pair: tuple[float, float]
    word: str | None = None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"count": 1}, "lacks the field 'pair'"),
        ({"count": "1", "pair": [1, 2]}, "plan.count is no int"),
        ({"count": True, "pair": [1, 2]}, "plan.count is no int"),
        ({"count": 1, "pair": [1]}, "1 items instead of 2"),
        ({"count": 1, "pair": [1, 2], "more": 0}, "unknown field 'more'"),
        ({"count": 1, "pair": [1, 2], "word": 3}, "plan.word is no"),
        ([], "is no object"),
    ],
)
def test_what_does_not_fit_is_refused(data: object, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(Small, data)
