"""What loading is said to take, on an artifact that is made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.overhead import _timed_load
from bricolage.plan import artifact
from bricolage.work.implementation import Implementation
from tests.runtime.made_plans import graph_of_size, made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")


def test_checking_is_a_part_of_loading(tmp_path: Path) -> None:
    graph = graph_of_size(2)
    placement = whole(graph, Implementation("quick"))
    plan = made_plan(tmp_path / "run", made_bucket(tmp_path / "run", graph, placement, {"n": 2}, ()))
    artifact.save(plan, tmp_path / "run", tmp_path / "some.bricolage")
    _timed_load(tmp_path / "some.bricolage")  # unpacks it
    seconds, checking = _timed_load(tmp_path / "some.bricolage")
    assert 0.0 < checking < seconds
