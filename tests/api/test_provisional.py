"""A provisional decision is gone on with until it is final: real backends, a budget that is too short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import bricolage
from bricolage.base.efforts import PROFILES
from bricolage.base.options import Options
from bricolage.base.progress import Silent
from bricolage.driver import bucket_decision
from bricolage.driver.stages import profiling
from bricolage.errors import BadOption
from bricolage.measure.pool import Pool
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import RaceOutcome
from tests.graph.models import parse
from tests.plan.bucket_facts import alter_bucket

NET = """<ir_version: 8, opset_import: ["" : 18]> net (float[8,64] x) => (float[8,64] y) { y = Tanh(x) }"""
SHORT = Options(backends=("onnxruntime",), budget_s=0.5, threads=1)
"""The reference alone takes about as long, and a slice of tuning many times as long."""

GOING_ON = "going on with a decision that is provisional"

pytestmark = pytest.mark.usefixtures("light_reference")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as workers:
        yield workers


@pytest.fixture(autouse=True)
def going_on(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As outside the tests, on a machine that is quiet, whatever this one is."""
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setitem(PROFILES, "quick", replace(PROFILES["quick"], continued=2))  # type: ignore[arg-type]
    monkeypatch.setattr(RaceOutcome, "under_load", False)
    yield


class Heard(Silent):
    """Remembers the phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def start(self, phase: str, total: int | None = None) -> None:
        del total
        self.phases.append(phase)

    @property
    def measured(self) -> bool:
        """Whether a decision was made."""
        return any("reference" in phase for phase in self.phases)


def decided(pool: Pool, **more: Any) -> tuple[Bucket, Heard]:
    heard = Heard()
    return bricolage.optimize(parse(NET), SHORT, progress=heard, pool=pool, **more).plan.buckets[0], heard


def test_a_provisional_decision_is_gone_on_with_until_it_is_final(pool: Pool) -> None:
    first, heard = decided(pool)
    assert first.record.provisional == ("no time",) and "no time" in {one.outcome for one in first.record.agenda}
    assert first.record.continued == 0 and heard.measured and GOING_ON not in heard.phases
    stored, heard = decided(pool, provisional=True)
    assert stored == first and not heard.measured
    last = first
    while last.record.provisional:
        following, heard = decided(pool)
        assert heard.measured and GOING_ON in heard.phases and following.record.continued == last.record.continued + 1
        last = following
    assert last.record.continued <= 2
    again, heard = decided(pool)
    assert again == last and not heard.measured and GOING_ON not in heard.phases


def test_what_load_disturbed_is_gone_on_with_in_quiet_and_no_interruption_loses_it(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "quick", replace(PROFILES["quick"], continued=1))  # type: ignore[arg-type]
    monkeypatch.setattr(RaceOutcome, "under_load", True)
    monkeypatch.setattr(bucket_decision, "share_taken", lambda _: 0.5)
    first, second = decided(pool)[0], decided(pool)[0]
    assert (
        "load" in first.record.provisional and second.record.provisional == ("load",) and second.record.continued == 1
    )
    third, heard = decided(pool)
    assert third == second and not heard.measured, "the machine is as busy as then"
    monkeypatch.setattr(bucket_decision, "share_taken", lambda _: 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(profiling, "measure_dropped", interrupt)
        assert decided(pool)[0] == alter_bucket(second, interrupted=True)
    assert decided(pool, provisional=True)[0] == second
    monkeypatch.setattr(RaceOutcome, "under_load", False)
    last, heard = decided(pool)
    assert heard.measured and last.record.continued == 2 and last.record.provisional == ()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_to_decide_again_and_to_take_what_there_is_contradict_each_other() -> None:
    with pytest.raises(BadOption, match="--replan makes another one"):
        bricolage.optimize(parse(NET), SHORT, replan=True, provisional=True)
