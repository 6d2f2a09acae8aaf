import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.base.options import Options
from bricolage.errors import BadArtifact, MissingFile, NewerArtifact, NotWritable, OlderArtifact, UnreadableArtifact
from bricolage.graph.extract import graph_of, write_model
from bricolage.graph.store import Store
from bricolage.plan import artifact
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.decision_record import DecisionRecord
from bricolage.plan.plan import Bucket, Plan, Provenance, TensorSpec
from bricolage.plan.race_outcome import Contestant, Quality, RaceOutcome
from bricolage.plan.shipped_program import PlannedRegion, ShippedProgram
from bricolage.work.implementation import Implementation
from tests.graph.models import graph


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))


def a_plan() -> Plan:
    region = PlannedRegion(Implementation("onnxruntime"), "0-1", 2, "MatMul+Relu", "k", 8, 8, 1.0, True)
    winner = Contestant("onnxruntime f32", "baseline", 1.0, (1.0, 1.0), 0.0, True)
    race = RaceOutcome("onnxruntime f32", (winner,), "onnxruntime f32", 1.0, (1.0, 1.0), False, Quality(None, 0.0, 0.0))
    program = ShippedProgram({}, "graph-0.onnx", 2, (region,))
    bucket = Bucket(program, race, Verification(0.0, 1e-6), DecisionRecord(None))
    provenance = Provenance("0", {}, "f0", "h", Options(threads=1), "2026-01-01T00:00:00Z")
    inputs, outputs = (TensorSpec("x", "float32", (3, 64)),), (TensorSpec("y", "float32", (3, 64)),)
    return Plan("m", "d0", inputs, outputs, (bucket,), provenance)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that many tests take copies of."""
    folder = tmp_path_factory.mktemp("saved")
    g = graph("a=MatMul(x,w) y=Relu(a)", "float[3,64] x", "float[3,64] y", w=np.ones((64, 64), np.float32))
    Store(folder).share([g.model])
    write_model(g.model, folder / artifact.MODEL)
    write_model(g.model, folder / "graph-0.onnx")
    path = folder.with_name(f"{folder.name}.bricolage")
    artifact.save(a_plan(), folder, path)
    return path


@pytest.fixture
def saved(saved_once: Path, tmp_path: Path) -> Path:
    """A test's own, with the folder that it was written from."""
    shutil.copytree(saved_once.with_suffix(""), tmp_path / "work")
    return Path(shutil.copyfile(saved_once, tmp_path / "a.bricolage"))


def test_an_artifact_round_trips(saved: Path) -> None:
    plan, folder = artifact.load_artifact(saved)
    assert plan == a_plan()
    loaded = graph_of(folder / "graph-0.onnx")
    assert len(loaded) == 2
    assert np.array_equal(next(iter(loaded.constants.values())).const_value.numpy(), np.ones((64, 64)))


def test_equal_plans_make_equal_bytes(saved: Path, tmp_path: Path) -> None:
    artifact.save(a_plan(), tmp_path / "work", tmp_path / "b.bricolage")
    assert saved.read_bytes() == (tmp_path / "b.bricolage").read_bytes()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outputs": (TensorSpec("y", "float32", (3, 1)),)}, "its outputs are not those of the plan"),
        ({"inputs": ()}, "its inputs are not those of the plan"),
        ({"defaults": (TensorSpec("k", "float32", (3,)),)}, "its inputs with a default are not those of the plan"),
        ({"digest": "../x"}, "plan.digest is no hash"),
    ],
)
def test_what_nobody_could_read_is_not_written(
    saved: Path, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    before = saved.read_bytes()
    with pytest.raises(UnreadableArtifact, match=reason):
        artifact.save(replace(a_plan(), **change), tmp_path / "work", saved)
    assert saved.read_bytes() == before


def test_it_holds_no_code(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert sorted(archive.namelist()) == [
            "graph-0.onnx",
            "manifest.json",
            "model.onnx",
            "plan.json",
            "weights.data",
        ]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncation_is_noticed(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadArtifact):
        artifact.load_artifact(saved)


@pytest.mark.parametrize("name", ["plan.json", "weights.data", "graph-0.onnx"])
def test_editing_is_noticed(saved: Path, name: str, tmp_path: Path) -> None:
    edited = tmp_path / "edited.bricolage"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(edited, "w") as target:
        for member in source.namelist():
            data = bytearray(source.read(member))
            if member == name:
                data[len(data) // 2] ^= 1
            target.writestr(member, bytes(data))
    with pytest.raises(BadArtifact, match="changed"):
        artifact.load_artifact(edited)


def rewrite_manifest(saved: Path, **changes: object) -> Path:
    edited = saved.with_name("manifest.bricolage")
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(edited, "w") as target:
        for member in source.namelist():
            data = source.read(member)
            if member == "manifest.json":
                data = json.dumps({**json.loads(data), **changes}).encode()
            target.writestr(member, data)
    return edited


def test_an_older_format_is_refused(saved: Path) -> None:
    with pytest.raises(OlderArtifact, match="format 1"):
        artifact.load_artifact(rewrite_manifest(saved, format=1))


def test_a_newer_format_is_refused(saved: Path) -> None:
    with pytest.raises(NewerArtifact, match="format 999"):
        artifact.load_artifact(rewrite_manifest(saved, format=999))


def test_a_path_that_climbs_out_is_refused(saved: Path) -> None:
    with pytest.raises(BadArtifact):
        artifact.load_artifact(
            rewrite_manifest(saved, members={"plan.json": {}, "model.onnx": {}, "../evil": {"size": 1}})
        )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="nothing.bricolage"):
        artifact.load_artifact(tmp_path / "nothing.bricolage")


def test_a_failed_save_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "no" / "such" / "folder.bricolage"
    with pytest.raises(NotWritable):
        artifact.save(a_plan(), tmp_path / "work", target)
    assert not target.parent.exists()
