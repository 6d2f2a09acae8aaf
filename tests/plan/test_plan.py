import json
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.plan.disturbance_record import Disturbance
from bricolage.plan.number_sets import format_numbers, parse_numbers
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.schedules import PlannedSchedule
from bricolage.plan.shipped_program import ShippedProgram
from tests.plan.plans import plans


@given(st.sets(st.integers(0, 200)))
def test_ranges_round_trip(wanted: set[int]) -> None:
    ascending = tuple(sorted(wanted))
    assert parse_numbers(format_numbers(ascending)) == ascending


def test_ranges_are_short() -> None:
    assert format_numbers((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=12)
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


SCHEDULE = {"cores": [[0], [1]], "method": "exact", "predicted_ms": 1.0, "lower_ms": 1.0, "upper_ms": 2.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cores": [[0], []]}, "has 0 items"),
        ({"cores": [[0], [1, 0]]}, "do not ascend"),
        ({"cores": [[0], [1, 1]]}, "do not ascend"),
        ({"cores": [[0], [-1]]}, "not between 0"),
        ({"cores": [[0], [10**7]]}, "not between 0"),
        ({"cores": [[0], ["1"]]}, "is no int"),
        ({"predicted_ms": -1.0}, "not between 0"),
        ({"ms": [1.0]}, "times of 1 regions, and cores of 2"),
        ({"ms": [1.0, -1.0]}, "not between 0"),
        ({"lower_ms": float("nan")}, "not"),
        ({"upper_ms": float("inf")}, "not between 0"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    assert decode(PlannedSchedule, SCHEDULE).cores == ((0,), (1,))
    with pytest.raises(DecodeError, match=message):
        decode(PlannedSchedule, {**SCHEDULE, **change})


def test_a_schedule_is_of_all_regions() -> None:
    bucket = Bucket.unraced(ShippedProgram({}, "graph-0.onnx", 0, ()), "a", 0.0)
    data = encode(bucket)
    assert decode(Bucket, data) == bucket
    data["schedule"] = {**SCHEDULE, "cores": [[0]]}
    with pytest.raises(DecodeError, match="its schedule is of"):
        decode(Bucket, data)
