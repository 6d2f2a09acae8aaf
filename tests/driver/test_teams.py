"""Teams of threads: when others than the usual one are measured, and what a backend then gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.backends.interface import Resources
from bricolage.base.efforts import PROFILES
from bricolage.base.options import Options
from bricolage.driver.whole_models import is_shared, measure_teams
from bricolage.measure.specs import never
from bricolage.work.implementation import Implementation, KernelConfig
from tests.driver.made_up import Answers, First, Spinning, made_up_state, whole
from tests.graph.models import graph

ALONE = Implementation("spinning", KernelConfig(team="one-thread"))
WAITING = Implementation("spinning", KernelConfig(team="waiting"))


def measured(
    monkeypatch: pytest.MonkeyPatch, folder: Path, ms: Mapping[str, float], *, threads: int = 2, shared: bool = False
) -> set[Implementation]:
    """Whole models that are measured after the baselines, where each of two operators takes these milliseconds."""
    monkeypatch.setitem(PROFILES, "quick", replace(PROFILES["quick"], teams=True))  # type: ignore[misc]
    options = Options(threads=threads, shared=shared)
    state, _ = made_up_state(
        folder, graph("a=Relu(x) y=Tanh(a)"), [First(), Spinning()], Answers(factors=ms), options=options
    )
    baselines = [whole(name) for name in ms]
    state.original.measure_whole(baselines, never)
    measure_teams(state.original, never)
    return set(state.original.whole) - set(baselines)


def test_a_small_model_is_measured_on_other_teams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert measured(monkeypatch, tmp_path, {"first": 1.0, "spinning": 1.0}) == {ALONE, WAITING}


def test_a_large_one_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not measured(monkeypatch, tmp_path, {"first": 10.0, "spinning": 10.0})


def test_who_is_far_behind_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not measured(monkeypatch, tmp_path, {"first": 0.1, "spinning": 1.0})


def test_one_thread_has_no_other_team(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not measured(monkeypatch, tmp_path, {"first": 1.0, "spinning": 1.0}, threads=1)


def test_on_a_shared_machine_threads_that_wait_are_measured_whatever_the_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert measured(monkeypatch, tmp_path, {"first": 10.0, "spinning": 10.0}, shared=True) == {WAITING}


def test_a_machine_is_shared_where_others_were_seen(tmp_path: Path) -> None:
    state, _ = made_up_state(tmp_path, graph("y=Relu(x)"), [First()])
    tally = state.session.measurer.log.tally
    assert not is_shared(state.session)
    tally.cores_s, tally.others_s = 100.0, 40.0
    assert is_shared(state.session)


def test_what_a_backend_gets_of_a_team() -> None:
    every = Resources(4, alone=True)
    assert every.of_team("") is every
    assert every.of_team("one-thread") == replace(every, threads=1)
    assert every.of_team("waiting") == replace(every, alone=False)


def test_a_team_has_a_name_and_a_key_of_its_own() -> None:
    names = {str(one) for one in (whole("spinning"), ALONE, WAITING)}
    texts = {one.config.text for one in (whole("spinning"), ALONE, WAITING)}
    assert len(names) == len(texts) == 3
    assert ALONE.config.of_all == WAITING.config.of_all == KernelConfig()


def test_it_has_a_process_of_its_own(tmp_path: Path) -> None:
    state, _ = made_up_state(tmp_path, graph("y=Relu(x)"), [Spinning()], options=Options(threads=2))
    usual, alone, waiting = (state.original.whole_spec(one).regime for one in (whole("spinning"), ALONE, WAITING))
    assert (usual.threads, alone.threads, waiting.threads) == (2, 1, 2)
    assert (usual.alone, alone.alone, waiting.alone) == (True, True, False)
    assert len({usual, alone, waiting}) == 3
