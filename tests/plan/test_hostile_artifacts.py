"""Artifacts that somebody made up: whatever they hold, `load` refuses them by name, reads nothing else, and ends."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from bricolage.api.bench import bench
from bricolage.api.optimize import optimize
from bricolage.base.cache import cache_directory
from bricolage.base.codec import encode
from bricolage.errors import BadArtifact, CacheNotWritable
from bricolage.plan import artifact
from bricolage.plan.plan import FORMAT
from tests.plan.test_artifact import a_plan, cache, saved, saved_once

__all__ = ["cache", "saved", "saved_once"]

Members = dict[str, bytes]


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != "manifest.json"}


def manifest_of(members: Members) -> bytes:
    facts = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()}
    return json.dumps({"format": FORMAT, "members": facts}).encode()


def written(path: Path, members: Members, manifest: bytes | None = None) -> Path:
    """An artifact of these members, with hashes that are right."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", manifest_of(members) if manifest is None else manifest)
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def set_at(data: Any, path: str, value: Any) -> None:
    *way, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    for key in way:
        data = data[key]
    data[last] = value


HOSTILE_VALUES = [
    ("provenance.options.threads", -3),
    ("provenance.options.threads", 0),
    ("provenance.options.threads", 10**6),
    ("provenance.options.threads", 10**30),
    ("provenance.options.cores", [10**9]),
    ("provenance.options.seed", 10**30),
    ("provenance.fingerprint", "/tmp/evil"),
    ("provenance.fingerprint", "../../evil"),
    ("digest", "../x"),
    ("format", True),
    ("format", FORMAT + 1),
    ("buckets", []),
    ("buckets.0.graph", "mlp.onnx"),
    ("buckets.0.graph", "../../graph-0.onnx"),
    ("buckets.0.graph", "graph-ff.onnx"),
    ("buckets.0.operators", 3),
    ("buckets.0.operators", 10**12),
    ("buckets.0.sizes", {"n": -1}),
    ("buckets.0.sizes", {"n": 2**62}),
    ("buckets.0.chosen", "nobody"),
    ("buckets.0.bound", float("nan")),
    ("buckets.0.peak_bytes", {"cpu": -1}),
    ("buckets.0.contestants.0.median_ms", -1.0),
    ("buckets.0.contestants.0.median_ms", float("inf")),
    ("buckets.0.regions.0.operators", "0-999999999999"),
    ("buckets.0.regions.0.operators", "0-99999999"),
    ("buckets.0.regions.0.operators", "1-0"),
    ("buckets.0.regions.0.operators", "0,0"),
    ("buckets.0.regions.0.operators", "-1"),
    ("buckets.0.regions.0.operators", "0-2"),
    ("buckets.0.regions.0.operators", "0x1"),
    ("buckets.0.regions.0.count", 1),
    ("buckets.0.regions.0.flops", -1),
    ("buckets.0.regions.0.implementation.backend", "../native"),
    ("buckets.0.regions.0.implementation.config.name", "../../f32"),
    ("buckets.0.regions.0.implementation.config.parameters", [["b", 1], ["a", 1]]),
    ("buckets.0.regions.0.implementation.device", "a/b"),
    ("inputs.0.shape", [3, -64]),
    ("inputs.0.shape", [3, 2**62]),
    ("inputs.0.shape", [3, 1]),
    ("inputs.0.dtype", "float64"),
    ("inputs.0.name", "other"),
    ("inputs", []),
    ("outputs.0.shape", [1, 1]),
    ("defaults", [{"name": "k", "dtype": "float32", "shape": [1]}]),
    ("defaults", [{"name": "x", "dtype": "float32", "shape": [3, 64]}]),
    ("buckets.0.overridden", {"k": [1]}),
    ("buckets.0.overridden", {"x": [-1]}),
    ("outputs", []),
]


@pytest.mark.parametrize(("path", "value"), HOSTILE_VALUES, ids=str)
def test_values_out_of_range_are_refused(saved: Path, path: str, value: object) -> None:
    members = members_of(saved)
    plan = encode(a_plan())
    set_at(plan, path, value)
    members["plan.json"] = json.dumps(plan).encode()
    with pytest.raises(BadArtifact) as caught:
        artifact.load_artifact(written(saved, members))
    assert caught.value.sentence.isprintable() and len(str(caught.value)) < 2_000


def changed_proto(change: Callable[[onnx.ModelProto], object]) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        proto = onnx.ModelProto.FromString(data)
        change(proto)
        return proto.SerializeToString()

    return apply


def location(where: str, offset: str = "0") -> Callable[[onnx.ModelProto], None]:
    def change(proto: onnx.ModelProto) -> None:
        tensor = next(t for t in proto.graph.initializer if t.external_data)
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=where)
        tensor.external_data.add(key="offset", value=offset)
        tensor.external_data.add(key="length", value=str(64 * 64 * 4))

    return change


def cycle(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = proto.graph.node[1].output[0]


def lie(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 10_000_000


def clear(proto: onnx.ModelProto) -> None:
    del proto.graph.node[:]


def function(proto: onnx.ModelProto) -> None:
    proto.functions.add(name="f", domain="d").opset_import.add(domain="", version=18)


HOSTILE_MODELS: dict[str, Callable[[bytes], bytes]] = {
    "junk": lambda _: b"junk",
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "weights from outside": changed_proto(location("../../../etc/passwd")),
    "weights from a path": changed_proto(location("/etc/passwd")),
    "weights before their beginning": changed_proto(location("weights.data", "-4")),
    "weights behind their end": changed_proto(location("weights.data", "1000000")),
    "weights nowhere": changed_proto(location("weights.data", "abc")),
    "a cycle": changed_proto(cycle),
    "another shape": changed_proto(lie),
    "no operators": changed_proto(clear),
    "an unknown operator": changed_proto(lambda proto: setattr(proto.graph.node[0], "op_type", "Evil")),
    "a function": changed_proto(function),
    "an old opset": changed_proto(lambda proto: setattr(proto.opset_import[0], "version", 1)),
}


@pytest.mark.parametrize("name", ["model.onnx", "graph-0.onnx"])
@pytest.mark.parametrize("how", HOSTILE_MODELS)
def test_models_that_are_not_what_bricolage_writes_are_refused(saved: Path, name: str, how: str) -> None:
    members = members_of(saved)
    members[name] = HOSTILE_MODELS[how](members[name])
    with pytest.raises(BadArtifact, match=name):
        artifact.load_artifact(written(saved, members))


def test_what_is_refused_for_running_is_refused_for_planning(saved: Path) -> None:
    members = members_of(saved)
    members["model.onnx"] = HOSTILE_MODELS["a cycle"](members["model.onnx"])
    hostile = written(saved, members)
    for use in (optimize, bench):
        with pytest.raises(BadArtifact, match="model.onnx"):
            use(hostile)
    assert not list((cache_directory() / "work").glob("*"))


def odd(saved: Path, change: Callable[[zipfile.ZipFile, Members], object]) -> Path:
    members = members_of(saved)
    with warnings.catch_warnings(), zipfile.ZipFile(saved, "w") as archive:
        warnings.simplefilter("ignore")  # of two members of one name
        archive.writestr("manifest.json", manifest_of(members))
        change(archive, members)
        for name, data in members.items():
            archive.writestr(name, data)
    return saved


def link(archive: zipfile.ZipFile, members: Members) -> None:
    info = zipfile.ZipInfo("graph-0.onnx")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(info, members.pop("graph-0.onnx"))


def bomb(archive: zipfile.ZipFile, members: Members) -> None:
    archive.writestr("weights.data", members.pop("weights.data"), zipfile.ZIP_DEFLATED)


ODD = {
    "compressed": bomb,
    "is no file": link,
    "two members": lambda archive, _: archive.writestr("plan.json", b"{}"),
    "not in the manifest": lambda archive, _: archive.writestr("more", b""),
    "is missing": lambda _, members: members.pop("weights.data"),
}


@pytest.mark.parametrize("reason", ODD)
def test_odd_archives_are_refused(saved: Path, reason: str) -> None:
    with pytest.raises(BadArtifact, match=reason):
        artifact.load_artifact(odd(saved, ODD[reason]))


def test_a_bomb_is_not_unpacked(saved: Path) -> None:
    members = members_of(saved)
    huge = b"\0" * (64 << 20)
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", manifest_of({**members, "weights.data": huge}))
        for name, data in {**members, "weights.data": huge}.items():
            archive.writestr(name, data)
    assert saved.stat().st_size < 1 << 20
    with pytest.raises(BadArtifact, match="compressed"):
        artifact.load_artifact(saved)
    assert not list(cache_directory().glob("artifacts/*"))


def test_a_plan_that_unpacks_to_too_much_is_refused(saved: Path) -> None:
    size = 2 << 20
    members = members_of(saved)
    members["plan.json"] = b" " * size
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json"), manifest_of(members))
        archive.writestr("plan.json", members.pop("plan.json"))
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    saved.write_bytes(target.getvalue())
    with pytest.raises(BadArtifact, match=f"unpacks to {size} bytes"):
        artifact.load_artifact(saved)


MANIFESTS: list[object] = [
    [], {}, {"format": True}, {"format": -1}, {"format": FORMAT}, {"format": FORMAT, "members": []},
    {"format": FORMAT, "members": {"plan.json": "x", "model.onnx": "y"}},
    {"format": FORMAT, "members": {"plan.json": {"size": -1, "sha256": "0" * 64}, "model.onnx": {"size": 1, "sha256": "0" * 64}}},
    {"format": FORMAT, "members": {"plan.json": {"size": 1, "sha256": 5}, "model.onnx": {"size": 1, "sha256": "0" * 64}}},
]  # fmt: skip


@pytest.mark.parametrize("manifest", [*(json.dumps(m).encode() for m in MANIFESTS), b"[" * 100_000, b"{", b"\xff"])
def test_manifests_that_are_none_are_refused(saved: Path, manifest: bytes) -> None:
    with pytest.raises(BadArtifact):
        artifact.load_artifact(written(saved, members_of(saved), manifest))


@pytest.mark.parametrize("name", ["/abs", "../up", "a/b", ".seal", "a\nb", "C:x", "d/"])
def test_members_are_plain_files(saved: Path, name: str) -> None:
    members = {**members_of(saved), name: b"x"}
    with pytest.raises(BadArtifact):
        artifact.load_artifact(written(saved, members))


def test_every_changed_byte_of_the_archives_own_tables_is_told_as_such(saved: Path) -> None:
    """What zipfile raises of them has no common base; none of it is about the cache."""
    sound = saved.read_bytes()
    start = sound.rindex(b"PK\x01\x02" + sound[sound.rindex(b"PK\x01\x02") + 4 :][:2])
    for place in range(start, len(sound), 3):
        for flip in (0x01, 0x80, 0xFF):
            saved.write_bytes(sound[:place] + bytes([sound[place] ^ flip]) + sound[place + 1 :])
            try:
                artifact.load_artifact(saved)
            except BadArtifact as error:
                assert str(saved) in error.sentence


def test_an_unpacked_artifact_that_was_damaged_is_unpacked_again(saved: Path) -> None:
    plan, folder = artifact.load_artifact(saved)
    for name in sorted(os.listdir(folder)):
        sound = (folder / name).read_bytes()
        for damaged in (b"", sound[: len(sound) // 2], bytes([sound[0] ^ 1]) + sound[1:]):
            (folder / name).write_bytes(damaged)
            assert artifact.load_artifact(saved) == (plan, folder)
            if name != ".seal":
                assert (folder / name).read_bytes() == sound
    for path in folder.iterdir():
        path.unlink()
    assert artifact.load_artifact(saved) == (plan, folder)


def test_without_a_writable_cache_it_is_unpacked_elsewhere(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = tmp_path / "file"
    full.write_bytes(b"")
    monkeypatch.setenv("BRICOLAGE_CACHE", str(full / "cache"))  # below a file nothing can be made, whoever tries
    plan, folder = artifact.load_artifact(saved)
    assert plan == a_plan() and (folder / "weights.data").is_file()
    assert not folder.is_relative_to(full) and folder.stat().st_mode & 0o077 == 0
    assert "BRICOLAGE_CACHE or --cache" in caplog.text
    assert artifact.load_artifact(saved)[1] == folder, "once for a process"
    artifact._temporary.cache_clear()
    monkeypatch.setattr("tempfile.tempdir", str(full))
    with pytest.raises(CacheNotWritable, match="BRICOLAGE_CACHE"):
        artifact.load_artifact(saved)
