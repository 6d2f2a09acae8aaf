"""Stages: in which order they work, and when they are done."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.train.predict.predicted_pipeline import Action, PipelineStage, passes, stage_memory
from bricolage.work.liveness import alive, peak
from bricolage.work.pipeline.generators import one_f_one_b


def stage(forward: float, backward: float) -> PipelineStage:
    return PipelineStage("", forward, backward, 0.0, 0, {"weights": 100}, 10, 15, 13, 7)


@given(st.integers(1, 6), st.integers(0, 10))
def test_equal_stages_take_what_the_formula_says(stages: int, more: int) -> None:
    """(micro-batches + stages - 1) (forward + backward): the bubble of 1F1B (Narayanan et al., 2021)."""
    micro = stages + more
    found = passes([stage(1.0, 2.0)] * stages, micro, [0.0] * (stages - 1))
    assert max(one.end_ms for one in found) == pytest.approx((micro + stages - 1) * 3.0)
    assert len(found) == 2 * stages * micro


def of_stage(found: list[Action], number: int) -> list[Action]:
    return [one for one in found if one.stage == number]


@given(
    st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0)), min_size=2, max_size=4),
    st.integers(0, 5),
    st.floats(0.0, 2.0),
)
def test_nothing_runs_before_its_input_or_at_once_with_another(
    times: list[tuple[float, float]], more: int, send: float
) -> None:
    stages, count = [stage(*one) for one in times], len(times)
    micro = count + more
    found = passes(stages, micro, [send] * (count - 1))
    ends = {(one.stage, one.kind, one.micro_batch): one.end_ms for one in found}
    for one in found:
        if one.kind == "forward" and one.stage:
            assert one.start_ms >= ends[one.stage - 1, "forward", one.micro_batch] + send
        if one.kind == "backward":
            assert one.start_ms >= ends[one.stage, "forward", one.micro_batch]
            if one.stage + 1 < count:
                assert one.start_ms >= ends[one.stage + 1, "backward", one.micro_batch] + send
    for number in range(count):
        own = of_stage(found, number)
        assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(own))
        row = one_f_one_b(count, micro).rows[number]
        assert [(one.kind[0].upper(), one.micro_batch) for one in own] == [(one.kind, one.micro_batch) for one in row]
        ahead = most = 0
        for one in own:
            ahead += 1 if one.kind == "forward" else -1
            most = max(most, ahead)
        assert most == count - number and ahead == 0


def test_memory_of_a_stage() -> None:
    found = passes([stage(1.0, 2.0)] * 2, 3, [0.0])
    first, last = (stage_memory(stage(1.0, 2.0), of_stage(found, number), 99.0) for number in (0, 1))
    assert peak(one for _, one in first) == 100 + 2 * 10 + 5
    assert peak(one for _, one in last) == 100 + 10 + 5
    assert alive(first, 99.0) == {"weights": 100, "temporary": 7}
