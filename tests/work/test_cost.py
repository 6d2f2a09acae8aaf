"""Models of costs joined: each work is answered by the first model that knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.models.roofline import NOMINAL
from bricolage.work.cost import Estimate, FirstKnown, Setting, Work


@dataclass(frozen=True)
class Table:
    """Knows some keys, and says what it was asked."""

    ms: dict[str, float]
    asked: list[str] = field(default_factory=list)

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        del on
        self.asked.extend(one.key for one in works)
        return [Estimate.of(self.ms[one.key], "measured") if one.key in self.ms else None for one in works]


keys = st.sampled_from("abcdef")
tables = st.dictionaries(keys, st.floats(0, 10))


@given(st.lists(tables, max_size=4), st.lists(keys, max_size=8))
def test_the_first_that_knows_answers_and_is_the_last_that_is_asked(
    known: list[dict[str, float]], asked: list[str]
) -> None:
    models = tuple(map(Table, known))
    found = FirstKnown(models).estimate([Work(key=key) for key in asked], NOMINAL)
    expected = [next((one[key] for one in known if key in one), None) for key in asked]
    assert [None if one is None else one.ms for one in found] == expected
    for number, model in enumerate(models):
        assert model.asked == [key for key in asked if not any(key in one for one in known[:number])]


def test_a_longer_time_has_a_longer_interval() -> None:
    found = Estimate(2.0, 1.0, 4.0, "learned").times(3.0)
    assert found == Estimate(6.0, 3.0, 12.0, "learned")
    assert found.times(1.0, "described").source == "described" and Estimate.of(1.0, "measured").high_ms == 1.0
