"""`optimize`, `explain`, `report` and `bench` for throughput, on a tiny network with real backends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from bricolage import errors
from bricolage.base.codec import decode
from bricolage.cli.main import app
from bricolage.driver import operating_point_search
from bricolage.plan.plan import Plan
from bricolage.runtime.load import load

pytestmark = pytest.mark.usefixtures("light_reference")
run = CliRunner()
QUICK = ["--objective", "throughput", "--budget", "5s", "--threads", "2", "--no-rewrite"]
TWO = [word for name in ("openvino", "native") for word in ("--backend", name)]
ONE = ["--backend", "onnxruntime"]


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks who wins: what a decision tries runs for three turns, and no longer than a turn beforehand."""
    few = replace(operating_point_search._POLICY, rounds=2, most_rounds=3, warm_s=0.02)
    monkeypatch.setattr(operating_point_search, "_POLICY", few)


def network(path: Path, batch: str | int, mixing: bool = False) -> Path:
    """y = relu(x · w) for rows of 8 numbers; where `mixing`, less the mean over the batch."""
    weights = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], "product"), helper.make_node("Relu", ["m"], ["r"], "relu")]
    if mixing:
        nodes.append(helper.make_node("ReduceMean", ["r"], ["mean"], "mean", axes=[0], keepdims=1))
        nodes.append(helper.make_node("Sub", ["r", "mean"], ["y"], "centred"))
    else:
        nodes.append(helper.make_node("Add", ["r", "r"], ["y"], "twice"))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, k]) for n, k in (("x", 8), ("y", 4))]
    graph = helper.make_graph(nodes, "rows", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def optimize(*words: str) -> Any:
    return run.invoke(app, ["optimize", *words])


def test_from_a_model_to_an_operating_point_and_what_is_told_of_it(tmp_path: Path) -> None:
    model = network(tmp_path / "rows.onnx", "batch")
    words = [str(model), "-o", "out.bricolage", "--report", "out.html", "--shape", "batch=1,4", *QUICK, *TWO]
    found = optimize(*words, "--json", "--require-gain")
    assert found.exit_code in (errors.OK, errors.NO_GAIN), found.stderr
    plan = decode(Plan, json.loads(found.stdout)["plan"])
    assert plan.throughput is not None and plan.operating_point is not None
    told, won = plan.throughput, plan.throughput.winner
    assert (found.exit_code == errors.OK) == told.significant
    assert won.kind != "queue" and won.accepted and won.rate and won.p99_ms and told.batch_dimension == "batch"
    assert (plan.operating_point.streams, plan.operating_point.threads, plan.operating_point.batch) == (
        won.streams,
        won.threads,
        won.batch,
    )
    tried = {one.program.split()[0] for one in told.servers}
    assert len(tried) > 1 and tried <= {"openvino", "native"}, "those within reach, of whatever processor"
    assert {one.kind for one in told.servers} >= {"copies", "queue"}
    assert {(one.streams, one.threads) for one in told.servers if one.kind == "copies"} == {(2, 1), (1, 2)}
    assert [dict(bucket.program.sizes) for bucket in plan.buckets][-1] == {"batch": won.batch}

    x = np.random.default_rng(1).standard_normal((won.batch, 8)).astype(np.float32)
    with load("out.bricolage") as fast:
        wanted = fast(x)
        np.testing.assert_allclose(fast.submit(x).result(60), wanted, rtol=1e-5)

    again = optimize(*words)
    assert again.exit_code == errors.OK and "requests/s" in again.stdout, again.stderr
    assert "whole model on each backend" not in again.stderr, "the decision is known"
    with load("out.bricolage") as fast:
        assert fast.plan.throughput == told and fast.plan.operating_point == plan.operating_point

    explained = run.invoke(app, ["explain", "out.bricolage"])
    assert explained.exit_code == 0 and won.name.split(",")[0] in explained.stdout and "requests/s" in explained.stdout
    as_json = json.loads(run.invoke(app, ["explain", "out.bricolage", "--json"]).stdout)
    assert as_json["throughput"]["chosen"] == won.name and as_json["operating_point"]["streams"] == won.streams
    page = Path("out.html").read_text(encoding="utf-8")
    assert ("Requests a second" in page and 'class="front"' in page) or len(told.front) < 2

    raced = run.invoke(app, ["bench", "out.bricolage", "--json", *QUICK, *ONE])
    assert raced.exit_code == 0, raced.stderr
    table = json.loads(raced.stdout)["throughput"]
    kinds = {server["program"].split()[0]: server["kind"] for server in table["servers"]}
    assert kinds["bricolage"] == "plan" and kinds["onnxruntime"] == "copies"
    assert all(
        server["rate"] and server["p50_ms"] and server["p99_ms"] for server in table["servers"] if server["accepted"]
    )


def test_a_limit_that_nobody_keeps_names_the_best_p99(tmp_path: Path) -> None:
    model = network(tmp_path / "rows.onnx", 1)
    found = optimize(str(model), *QUICK, *ONE, "--latency-limit", "0.00001ms")
    assert found.exit_code == errors.USAGE, found.stderr
    assert "1e-05 ms" in found.stderr and "the best p99 is" in found.stderr and "onnxruntime f32" in found.stderr
    assert not list(Path().glob("*.bricolage"))


def test_a_fixed_batch_dimension_is_served_one_by_one(tmp_path: Path) -> None:
    model = network(tmp_path / "rows.onnx", 1)
    found = optimize(str(model), *QUICK, *ONE, "--latency-limit", "60s")
    assert found.exit_code == errors.OK, found.stderr
    with load("rows.bricolage") as fast:
        assert fast.plan.operating_point is not None and fast.plan.operating_point.batch == 1
        assert fast.plan.throughput is not None and fast.plan.throughput.latency_limit_ms == 60_000
    assert "requests are not put together" in found.stdout


def test_rows_that_depend_on_each_other_are_never_put_together(tmp_path: Path) -> None:
    model = network(tmp_path / "rows.onnx", "batch", mixing=True)
    refused = optimize(str(model), *QUICK, *ONE, "--shape", "batch=4")
    assert refused.exit_code == errors.USAGE and "depends on the other rows" in refused.stderr, refused.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--latency-limit", "50ms"], "--objective throughput"),
        (["--objective", "speed"], "Use latency or throughput"),
        (["--objective", "throughput", "--latency-limit", "soon"], "50ms or 0.2s"),
        (["--objective", "throughput", "--latency-limit", "0"], "positive time"),
        (["--objective", "throughput", "--latency-limit=-5ms"], "positive time"),
        (["--objective", "throughput", "--shape", "batch=1", "--shape", "n=3,4"], "one size of each"),
    ],
)
def test_words_that_make_no_sense_are_wrong_usage(words: list[str], told: str, tmp_path: Path) -> None:
    model = network(tmp_path / "rows.onnx", "batch")
    if "n=3,4" in words:
        loaded = onnx.load(str(model))
        loaded.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, ["batch", "n"]))
        onnx.save(loaded, str(model))
    result = run.invoke(app, ["optimize", str(model), *words])
    assert result.exit_code == errors.USAGE and told in " ".join(result.stderr.split())
