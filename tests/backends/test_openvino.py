"""OpenVINO."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.work.implementation import named
from tests.backends import regions

BACKEND = registry.get("openvino")


def test_bfloat16_is_offered_at_medium_precision_where_the_device_has_it() -> None:
    able, bare = (replace(host(), instructions=frozenset(flags)) for flags in (["avx512_bf16"], ["avx2"]))
    f32, bf16 = named("f32", "bf16")
    offered = [tuple(BACKEND.configs(precision, able)) for precision in ("highest", "high", "medium")]
    assert offered == [(f32,), (f32,), (f32, bf16)]
    assert tuple(BACKEND.configs("medium", bare)) == (f32,)


def test_an_output_that_is_an_input_is_written(tmp_path: Path) -> None:
    """OpenVINO finds that Dropout computes nothing, and then leaves the output tensor as it was."""
    model = regions.region(tmp_path, "y = Dropout (x)")
    x = np.float32([1, -2, 3, 4])
    assert regions.answer(BACKEND, model, x)[0].tolist() == x.tolist()
    assert BACKEND.compile(model, regions.F32, regions.ONE_THREAD).run([x])[0].tolist() == x.tolist()  # type: ignore[attr-defined]


def test_an_output_that_is_an_input_among_others_is_refused(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Dropout (x) \n z = Relu (x)", outputs="float[4] y, float[4] z")
    with pytest.raises(Refused, match="one of several outputs is an input unchanged"):
        BACKEND.compile(model, regions.F32, regions.ONE_THREAD)


def test_nothing_is_reported_over_the_network() -> None:
    script = (
        "import sys; from bricolage.backends.openvino import _core; _core();"
        "import openvino.tools.ovc.telemetry_utils as t; print(t.tm.__name__, sys.modules['openvino_telemetry'])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, encoding="utf-8")
    assert shown.stdout.split() == ["openvino.tools.ovc.telemetry_stub", "None"]
