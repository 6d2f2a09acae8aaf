"""Parts of a plan: what runs them where the plan's own configuration does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.driver.sub_graphs import of_part
from bricolage.graph.graph import Region
from bricolage.runtime.programs import PlanSource
from bricolage.work.implementation import Assignment, Implementation, KernelConfig
from tests.graph.models import graph
from tests.runtime.made_plans import made_bucket, made_plan

W = np.ones((64, 64, 3, 3), np.float32)
BODY = "a=Conv<pads=[1,1,1,1]>(x,w) b=Conv<pads=[1,1,1,1]>(a,w) c=Relu(x) y=Add(b,c)"


def test_parts_without_anything_that_the_configuration_is_for_run_in_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    folder = tmp_path / "run"
    folder.mkdir()
    model = graph(BODY, "float[1,64,56,56] x", "float[1,64,56,56] y", w=W)
    tuned = Implementation("native", KernelConfig("f32-winograd2", (("waves", True),)), host().name)
    bucket = made_bucket(folder, model, (Assignment(0b1111, tuned),), {})
    plan = made_plan(folder, bucket, options=Options(backends=("native",)))
    source = PlanSource(plan, folder)
    product, rest = (of_part(source, Region(source.graph(bucket), bits), tuned) for bits in (0b0011, 0b1100))
    assert product.config == KernelConfig("f32-winograd2"), "what was tuned for the whole is not for a part"
    assert rest.config == KernelConfig("f32") and rest.device == tuned.device
