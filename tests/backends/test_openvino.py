"""OpenVINO."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import openvino, registry
from bricolage.backends.features import has_bfloat16
from bricolage.backends.interface import Available, Resources
from bricolage.errors import Refused
from tests.backends import engine_checks, regions

BACKEND = registry.get("openvino")


def test_it_is_here_with_its_version() -> None:
    status = BACKEND.status()
    assert isinstance(status, Available)
    assert status.version == registry.version("openvino")


@pytest.mark.parametrize(
    "check", [f for name, f in vars(engine_checks).items() if name.startswith("check_")], ids=lambda f: f.__name__
)
def test_engine(check: object, tmp_path: Path) -> None:
    check(BACKEND, tmp_path)  # type: ignore[operator]


def test_bfloat16_is_offered_at_medium_precision_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: True)
    assert [tuple(BACKEND.variants(p)) for p in ("highest", "high", "medium")] == [("f32",), ("f32",), ("f32", "bf16")]
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: False)
    assert tuple(BACKEND.variants("medium")) == ("f32",)


@pytest.mark.skipif(not has_bfloat16(), reason="the processor has no bfloat16 instructions")
def test_bfloat16_is_less_exact_but_within_its_bound(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    expected = regions.reference(model, x)
    exact = regions.error(regions.answer(BACKEND, model, x), expected)
    rough = regions.error(regions.answer(BACKEND, model, x, variant="bf16"), expected)
    assert exact < 1e-6 < rough < 2e-2


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


def test_unknown_operators_are_refused_with_their_name(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = strange.Gizmo (x)", domains=', "strange" : 1')
    with pytest.raises(Refused, match="Gizmo"):
        BACKEND.compile(model, "f32", regions.ONE_THREAD)


def test_strings_are_refused(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Identity (x)", "string[2] x", "string[2] y")
    with pytest.raises(Refused, match="'x' has the type STRING"):
        BACKEND.compile(model, "f32", regions.ONE_THREAD)


def test_the_cache_gives_the_same_answer_and_follows_the_weights(tmp_path: Path) -> None:
    resources = Resources(threads=1, cache=tmp_path / "cache")
    x = np.float32([[1, 2, 3, 4]])

    def run(weight: float) -> list[float]:
        w = np.full((4, 4), weight, np.float32)
        model = regions.region(tmp_path, "y = MatMul (x, w)", "float[1, 4] x", "float[1, 4] y", w=w)
        kernel = BACKEND.compile(model, "f32", resources)
        _, outputs, call = regions.bound(kernel, model, x)
        call()  # type: ignore[operator]
        return list(outputs[0][0])

    assert run(1.0) == [10.0] * 4
    assert run(1.0) == [10.0] * 4
    assert any((tmp_path / "cache").iterdir())
    assert run(2.0) == [20.0] * 4


def test_nothing_is_reported_over_the_network() -> None:
    script = (
        "import sys; from bricolage.backends.openvino import _core; _core();"
        "import openvino.tools.ovc.telemetry_utils as t; print(t.tm.__name__, sys.modules['openvino_telemetry'])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["openvino.tools.ovc.telemetry_stub", "None"]
