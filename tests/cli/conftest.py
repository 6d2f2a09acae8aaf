"""Artifacts on disk for the commands that read them, each test with a cache of its own."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

import report_samples as samples

from bricolage.backends import registry
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.graph.extract import write_model
from bricolage.graph.graph import Graph
from bricolage.plan import artifact
from bricolage.plan.plan import Plan, TensorSpec
from bricolage.plan.planned_interface import input_specs, output_specs
from bricolage.plan.race_outcome import Contestant
from bricolage.plan.shipped_program import PlannedRegion
from bricolage.work.implementation import Implementation
from tests.plan.bucket_facts import alter_bucket


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a working folder with nothing in it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BRICOLAGE_CACHE", str(folder))
    monkeypatch.setenv("COLUMNS", "100")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return folder


def save(plan: Plan, graphs: list[Graph | None], folder: Path, path: Path) -> Path:
    """Writes an artifact the way `optimize` does."""
    folder.mkdir(parents=True)
    for bucket, graph in zip(plan.buckets, graphs, strict=True):
        assert graph is not None
        write_model(graph.model, folder / bucket.program.graph)
        write_model(graph.model, folder / artifact.MODEL)
        plan = dataclasses.replace(plan, inputs=input_specs(graph.model), outputs=output_specs(graph.model))
    artifact.save(plan, folder, path)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """An artifact to read: its hardware is another one."""
    plan, graphs = samples.small()
    return save(plan, graphs, tmp_path / "parts", tmp_path / "small.bricolage")


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """An artifact with two shape buckets."""
    plan, graphs = samples.several()
    return save(plan, graphs, tmp_path / "several-parts", tmp_path / "several.bricolage")


def model_proto() -> onnx.ModelProto:
    """y = relu(x) + x for x of 2 × 3."""
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), helper.make_node("Add", ["r", "x"], ["y"], "add")]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    onnx.save(model_proto(), str(path))
    return path


@pytest.fixture
def runnable(tmp_path: Path) -> Path:
    """An artifact of `model_proto` for this machine, on ONNX Runtime."""
    import onnx_ir as ir

    graph = Graph(ir.from_proto(model_proto()))
    plan, _ = samples.small(gain=False)
    bucket = plan.buckets[0]
    region = PlannedRegion(Implementation("onnxruntime"), "0-1", 2, "Relu+Add", "", 12, 48, 0.01, measured=True)
    single = Contestant(
        "onnxruntime f32",
        "baseline",
        0.01,
        (0.009, 0.011),
        0.0,
        accepted=True,
        implementation=Implementation("onnxruntime"),
    )
    bucket = alter_bucket(
        bucket,
        operators=2,
        chosen=single.name,
        best_baseline=single.name,
        best_other=single.name,
        regions=(region,),
        contestants=(single,),
    )
    origin = dataclasses.replace(
        plan.provenance,
        fingerprint=host().fingerprint(),
        hardware=str(host()),
        versions={"onnxruntime": registry.version("onnxruntime")},
        options=Options(threads=1),
    )
    spec = TensorSpec("x", "float32", (2, 3))
    plan = dataclasses.replace(
        plan,
        buckets=(bucket,),
        provenance=origin,
        inputs=(spec,),
        outputs=(dataclasses.replace(spec, name="y"),),
    )
    return save(plan, [graph], tmp_path / "parts", tmp_path / "tiny.bricolage")
