"""Commands that read artifacts: explain, report, run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bricolage import errors
from bricolage.cli.main import app

run = CliRunner()


def test_explain_lists_regions(small: Path) -> None:
    found = run.invoke(app, ["explain", str(small)])
    assert found.exit_code == 0, found.stderr
    assert (
        "1.14 [1.12, 1.16] times as fast as openvino f32, the best other tool here" in found.stdout
        and "GlobalAveragePool" in found.stdout
    )
    assert "\x1b" not in found.stdout


def test_explain_one_operator(small: Path) -> None:
    found = run.invoke(app, ["explain", str(small), "--op", "/cell.8/gemm_0"])
    assert found.exit_code == 0 and "Region 9 of 10" in found.stdout and "the fastest of 3" in found.stdout


def test_explain_unknown_operator(small: Path) -> None:
    found = run.invoke(app, ["explain", str(small), "--op", "nothing"])
    assert found.exit_code == errors.USAGE and "--op cannot be 'nothing'" in found.stderr


def test_explain_as_json(small: Path, several: Path) -> None:
    assert several == small.with_name("several.bricolage")
    one = json.loads(run.invoke(app, ["explain", str(small), "--op", "Gemm", "--json"]).stdout)
    assert [region["number"] for region in one["regions"]] == [9]
    assert one["provisional"] == [] and one["disturbance"]["given_back_s"] == 0.0
    two = json.loads(run.invoke(app, ["explain", str(several), "--json"]).stdout)
    assert [bucket["sizes"]["batch"] for bucket in two["buckets"]] == [1, 8]


def test_report_is_written(small: Path) -> None:
    found = run.invoke(app, ["report", str(small), "-o", "page.html"])
    assert found.exit_code == 0 and found.stdout == "" and "wrote page.html" in found.stderr
    assert Path("page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in Path().iterdir()] == ["page.html"]


def test_report_has_a_default_name_and_json(small: Path) -> None:
    found = run.invoke(app, ["report", str(small), "--json"])
    assert json.loads(found.stdout)["report"] == "small.html" and Path("small.html").exists()


def test_report_into_an_absent_folder(small: Path) -> None:
    found = run.invoke(app, ["report", str(small), "-o", "absent/page.html"])
    assert found.exit_code == errors.USAGE and "cannot be written" in found.stderr


@pytest.mark.parametrize("command", ["explain", "report"])
def test_damaged_artifact(small: Path, command: str) -> None:
    data = bytearray(small.read_bytes())
    data[len(data) // 2 :] = b""
    broken = small.with_name("broken.bricolage")
    broken.write_bytes(data)
    found = run.invoke(app, [command, str(broken)])
    assert found.exit_code == errors.USAGE and "is not a usable bricolage artifact" in found.stderr
    assert not list(Path().iterdir())


def test_run_computes_and_writes(runnable: Path) -> None:
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    np.savez("x.npz", x=x)
    found = run.invoke(app, ["run", str(runnable), "--input", "x.npz", "-o", "y.npz", "--json"])
    assert found.exit_code == 0, found.stderr
    with np.load("y.npz") as y:
        np.testing.assert_allclose(y["y"], np.maximum(x, 0) + x)
    assert json.loads(found.stdout)["outputs"]["y"] == {
        "type": "float32", "shape": [2, 3], "min": -5.0, "max": 12.0, "mean": pytest.approx(15 / 6),
    }  # fmt: skip


def test_run_traces_each_region(runnable: Path) -> None:
    x = np.ones((2, 3), np.float32)
    np.savez("x.npz", x=x)
    found = run.invoke(app, ["run", str(runnable), "--input", "x.npz", "-o", "y.npz", "--trace", "t.json"])
    assert found.exit_code == 0 and "wrote t.json: 1 regions" in found.stderr, found.stderr
    (call,) = [
        event for event in json.loads(Path("t.json").read_text(encoding="utf-8"))["traceEvents"] if event["ph"] == "X"
    ]
    assert call["ts"] == 0.0 and call["dur"] > 0.0 and call["args"]["operators"] == "0-1"
    with np.load("y.npz") as y:
        np.testing.assert_allclose(y["y"], np.maximum(x, 0) + x)
    assert run.invoke(app, ["run", str(runnable), "--input", "x.npz", "--trace", "no/t.json"]).exit_code == errors.USAGE


def test_run_serves_requests(runnable: Path) -> None:
    np.savez("x.npz", x=np.ones((2, 3), np.float32))
    words = ["run", str(runnable), "--input", "x.npz", "--requests", "20", "--concurrency", "3"]
    found = run.invoke(app, [*words, "--operating-point", "queue=2", "--json"])
    assert found.exit_code == 0, found.stderr
    served = json.loads(found.stdout)["served"]
    assert served["point"]["queue"] == 2 and served["statistics"]["done"] == 20 and served["requests_per_s"] > 0
    found = run.invoke(app, words)
    assert found.exit_code == 0 and "20 requests, 3 under way" in found.stdout and "p99" in found.stdout
    for point, what in (
        ("streams=9999", "streams cannot be"),
        ("streams=1000", "this process may use"),
        ("2x1", "Write for"),
    ):
        found = run.invoke(app, [*words, "--operating-point", point])
        assert found.exit_code == errors.USAGE and what in found.stderr
    found = run.invoke(app, [*words, "--operating-point", "batch=2"])
    assert found.exit_code == errors.USAGE and "cannot be put together" in found.stderr
    found = run.invoke(app, ["run", str(runnable), "--input", "x.npz", "--operating-point", "streams=1"])
    assert found.exit_code == errors.USAGE and "add --requests" in found.stderr


def test_run_shows_a_table(runnable: Path) -> None:
    np.savez("x.npz", x=np.ones((2, 3), np.float32))
    found = run.invoke(app, ["run", str(runnable), "--input", "x.npz"])
    assert found.exit_code == 0 and "float32" in found.stdout and "2x3" in found.stdout


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"z": np.ones((2, 3), np.float32)}, "the model has no input 'z'"),
        ({}, "input 'x' is missing"),
        ({"x": np.ones((2, 3), np.float64)}, "input 'x' has the type float64"),
        ({"x": np.ones((2, 4), np.float32)}, "input 'x' has the shape 2×4"),
        ({"x": np.ones(3, np.float32)}, "input 'x' has the shape 3"),
    ],
)
def test_run_with_wrong_inputs(runnable: Path, arrays: dict[str, np.ndarray], what: str) -> None:
    np.savez("x.npz", **arrays)  # type: ignore[arg-type]
    found = run.invoke(app, ["run", str(runnable), "--input", "x.npz", "-o", "y.npz"])
    assert found.exit_code == errors.USAGE and what in found.stderr and not Path("y.npz").exists()


def test_run_refuses_files_that_hold_no_arrays(runnable: Path) -> None:
    Path("text.npz").write_text("not a zip", encoding="utf-8")
    np.save("one.npy", np.ones(3))
    np.savez("objects.npz", x=np.array([{}], dtype=object))
    for name in ("text.npz", "one.npy", "objects.npz"):
        found = run.invoke(app, ["run", str(runnable), "--input", name])
        assert found.exit_code == errors.USAGE and f"--input cannot be '{name}'" in found.stderr


def test_run_of_a_foreign_artifact_is_refused_politely(small: Path) -> None:
    np.savez("x.npz", x=np.ones((1, 64, 56, 56), np.float32))
    found = run.invoke(app, ["run", str(small), "--input", "x.npz"])
    assert found.exit_code == errors.USAGE and "was planned for another machine" in found.stderr
