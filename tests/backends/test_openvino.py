"""OpenVINO."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import openvino, registry
from bricolage.errors import Refused
from tests.backends import regions

BACKEND = registry.get("openvino")


def test_bfloat16_is_offered_at_medium_precision_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: True)
    assert [tuple(BACKEND.variants(p)) for p in ("highest", "high", "medium")] == [("f32",), ("f32",), ("f32", "bf16")]
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: False)
    assert tuple(BACKEND.variants("medium")) == ("f32",)


def test_an_output_that_is_an_input_is_written(tmp_path: Path) -> None:
    """OpenVINO finds that Dropout computes nothing, and then leaves the output tensor as it was."""
    model = regions.region(tmp_path, "y = Dropout (x)")
    x = np.float32([1, -2, 3, 4])
    assert regions.answer(BACKEND, model, x)[0].tolist() == x.tolist()
    assert BACKEND.compile(model, "f32", regions.ONE_THREAD).run([x])[0].tolist() == x.tolist()  # type: ignore[attr-defined]


def test_an_output_that_is_an_input_among_others_is_refused(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Dropout (x) \n z = Relu (x)", outputs="float[4] y, float[4] z")
    with pytest.raises(Refused, match="one of several outputs is an input unchanged"):
        BACKEND.compile(model, "f32", regions.ONE_THREAD)


def test_nothing_is_reported_over_the_network() -> None:
    script = (
        "import sys; from bricolage.backends.openvino import _core; _core();"
        "import openvino.tools.ovc.telemetry_utils as t; print(t.tm.__name__, sys.modules['openvino_telemetry'])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["openvino.tools.ovc.telemetry_stub", "None"]
