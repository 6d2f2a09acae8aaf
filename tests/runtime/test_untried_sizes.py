"""Sizes that were never tried: what harms a process harms another one, and what is wrong there does not run here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bricolage.errors import SizeFailed
from bricolage.runtime import programs, trial, untried_sizes
from bricolage.runtime.executable import Executable
from bricolage.runtime.process_environment import TRY_SIZES
from bricolage.runtime.untried_sizes import Tried, size_class
from bricolage.work.implementation import Implementation
from tests.runtime.made_plans import TESTS, Quick, baseline, expected, graph_of_size, made_bucket, made_plan, whole

FRAGILE, QUICK = Implementation("fragile"), Implementation("quick")


@pytest.fixture
def tried(backends: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sizes are tried; what came of each trial."""
    monkeypatch.setenv(TRY_SIZES, "1")
    monkeypatch.setenv(TESTS, str(os.getpid()))
    told: list[str] = []
    real = programs.trial

    def counted(*given: object) -> str:
        told.append(real(*given))  # type: ignore[arg-type]
        return told[-1]

    monkeypatch.setattr(programs, "trial", counted)
    return told


@pytest.fixture
def nearby(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As `tried`, and trials take place in this process, where starting another is not what is tested."""

    def here(folder: Path, variables: dict[str, str]) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(TESTS, "another process")
            return trial.run_trial(json.loads((folder / "request.json").read_text(encoding="utf-8")))

    monkeypatch.setattr(untried_sizes, "_run", here)
    return tried


def executable(folder: Path) -> Executable:
    contestants = (baseline(FRAGILE, 1.0), baseline(QUICK, 2.0))
    bucket = made_bucket(folder, graph_of_size(4), whole(graph_of_size(4), FRAGILE), {"n": 4}, contestants)
    return Executable(made_plan(folder, bucket), folder)


def ran_by(fast: Executable, n: int) -> set[str]:
    """Runs it at a size; who compiled that in this process."""
    Quick.compiled.clear()
    x = np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)
    np.testing.assert_allclose(fast(x), expected(x), rtol=1e-5, atol=1e-6)
    return {name for name, *_ in Quick.compiled}


def test_classes_are_told_from_what_is_planned() -> None:
    planned = [{"n": 4, "m": 1}, {"n": 8, "m": 1}]
    assert size_class({"n": 0, "m": 1}, planned) == (("m", "1"), ("n", "0"))
    assert size_class({"n": 9, "m": 2}, planned) == (("m", "larger"), ("n", "larger"))
    assert size_class({"n": 5, "m": 0}, planned) == (("m", "0"), ("n", "other"))


def test_a_size_that_ends_a_process_falls_to_another_backend(tmp_path: Path, tried: list[str]) -> None:
    fast = executable(tmp_path)
    assert ran_by(fast, 4) == {"fragile"} and tried == [], "planned sizes were tried when they were planned"
    assert ran_by(fast, 0) == {"quick"}
    assert tried == ["its process died (SIGABRT)", ""]
    again = executable(tmp_path)
    assert ran_by(again, 0) == {"quick"} and len(tried) == 2, "the cache remembers"


def test_a_size_at_which_the_answer_is_wrong_falls_to_another_backend(tmp_path: Path, nearby: list[str]) -> None:
    assert ran_by(executable(tmp_path), 1) and Quick.compiled[-1][0] == "quick"
    assert "relative error" in nearby[0] and nearby[1:] == [""]


def test_a_class_is_tried_once(tmp_path: Path, nearby: list[str]) -> None:
    fast = executable(tmp_path)
    assert ran_by(fast, 6) == {"fragile"} and nearby == [""]
    assert ran_by(fast, 7) == {"fragile"} and nearby == [""]


def test_where_nothing_runs_it_the_error_says_so(
    tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "trial", lambda *_: "its process died (SIGABRT)")
    with pytest.raises(
        SizeFailed, match=r"at n=9: fragile f32: its process died \(SIGABRT\); quick f32: .*; reference f"
    ):
        executable(tmp_path)(np.ones((9, 4), np.float32))


def test_what_is_damaged_on_disk_is_tried_again(tmp_path: Path, backends: None) -> None:
    plan = executable(tmp_path).plan
    first = Tried(plan)
    first.put((("n", "0"),), 1)
    assert Tried(plan).get((("n", "0"),)) == 1
    first._file.write_text("[[", encoding="utf-8")
    assert Tried(plan).get((("n", "0"),)) is None
