"""Packs of a small model, decided, written, loaded and refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import bricolage
from bricolage.api.bisect import bisect
from bricolage.api.pack import pack, read_targets
from bricolage.base.options import Options, available_cores
from bricolage.cli.main import app
from bricolage.device.host import unlimited
from bricolage.driver.bucket_decision import Start
from bricolage.driver.packs.pack_making import Packed
from bricolage.errors import BadArtifact, BadTargets, MissingFile, NoTarget, NotPack, UnservedTargets
from bricolage.graph.prepare import prepare
from bricolage.plan import artifact
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.pack import PackTarget
from bricolage.plan.race_outcome import Contestant
from bricolage.work.implementation import Implementation
from tests.api.test_optimize import NET, expected, sample, weights
from tests.graph.models import parse
from tests.plan.bucket_facts import alter_bucket

OPTIONS = Options(backends=("onnxruntime",), effort="instant", budget_s=6.0, shapes={"batch": (1,)})
TARGETS = (PackTarget("here"), PackTarget("one", threads=1), PackTarget("rough", precision="medium", threads=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        found = tmp_path_factory.mktemp("packs")
        patch.setenv("BRICOLAGE_CACHE", str(found / "cache"))
        yield found


@pytest.fixture(scope="module")
def made(folder: Path) -> Packed:
    return pack(parse(NET, **weights()), TARGETS, folder / "net.pack", OPTIONS)


def test_every_plan_is_right(folder: Path, made: Packed) -> None:
    assert [entry.target.name for entry in made.pack.entries] == ["here", "one", "rough"]
    assert {entry.target.name: entry.parent for entry in made.pack.entries} == {"here": "", "one": "here", "rough": ""}
    assert all(entry.resident_bytes > 1 << 20 and entry.median_ms for entry in made.pack.entries)
    x = sample(1)
    for name, threads in (("here", available_cores()), ("one", 1), ("rough", 1)):
        loaded = bricolage.load(folder / "net.pack", target=name)
        assert loaded.choice is not None and loaded.choice.entry.target.name == name
        assert loaded.plan.provenance.options.threads == threads
        for actual, wanted in zip(loaded(x), expected(x), strict=True):
            np.testing.assert_allclose(
                actual, wanted, rtol=2e-2 if name == "rough" else 1e-4, atol=1e-2 if name == "rough" else 1e-5
            )


def test_loading_picks(folder: Path, made: Packed) -> None:
    picked = bricolage.load(folder / "net.pack")
    assert picked.choice is not None and picked.choice.entry.target.precision == "highest"
    assert picked.choice.because.startswith("the fastest of 2")
    with pytest.raises(NoTarget, match="no target 'phone'"):
        bricolage.load(folder / "net.pack", target="phone")


def test_weights_stand_in_it_once(folder: Path, made: Packed) -> None:
    with zipfile.ZipFile(folder / "net.pack") as archive:
        names = archive.namelist()
    assert names.count("weights.data") == 1
    assert {"plan.json", "plan-one.json", "plan-rough.json", "pack.json"} <= set(names)
    single = folder / "single.bricolage"
    artifact.save(made.plans[0], artifact.load_artifact(folder / "net.pack")[1], single)
    assert (folder / "net.pack").stat().st_size < 2.5 * single.stat().st_size


def test_an_artifact_with_one_plan_has_no_targets(folder: Path, made: Packed) -> None:
    single = folder / "one-plan.bricolage"
    artifact.save(made.plans[0], artifact.load_artifact(folder / "net.pack")[1], single)
    assert bricolage.load(single).choice is None
    for words in ({"target": "here"}, {"precision": "medium"}):
        with pytest.raises(NotPack):
            bricolage.load(single, **words)  # type: ignore[arg-type]


def test_damaged_packs(folder: Path, made: Packed) -> None:
    """A plan that the index names and the file lacks; an index that is no index."""
    import hashlib

    def rewritten(name: str, without: str, index: bytes | None = None) -> Path:
        path = folder / name
        with zipfile.ZipFile(folder / "net.pack") as source, zipfile.ZipFile(path, "w") as target:
            manifest = json.loads(source.read("manifest.json"))
            members = {one: source.read(one) for one in manifest["members"] if one != without}
            members |= {"pack.json": index} if index is not None else {}
            manifest["members"] = {
                one: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for one, data in members.items()
            }
            target.writestr("manifest.json", json.dumps(manifest))
            for one, data in members.items():
                target.writestr(one, data)
        return path

    with pytest.raises(BadArtifact, match="names plans that are not there"):
        bricolage.load(rewritten("lacking.pack", "plan-one.json"))
    with pytest.raises(BadArtifact, match="its index"):
        bricolage.load(rewritten("odd.pack", "", b'{"entries": []}'))


def test_a_second_pack_is_found_again(folder: Path, made: Packed) -> None:
    again = pack(parse(NET, **weights()), TARGETS, folder / "again.pack", OPTIONS)
    assert [plan.buckets for plan in again.plans] == [plan.buckets for plan in made.plans]


def test_what_gained_nothing_above_is_not_tried_below(made: Packed) -> None:
    def item(name: str, outcome: str, gained: float = 0.0) -> AgendaItem:
        return AgendaItem(name, outcome, "", 1.0, gained=gained)  # type: ignore[arg-type]

    agenda = (
        item("a", "measured"),
        item("b", "measured", 0.1),
        item("c", "unlikely"),
        item("d", "no time"),
        item("b", "measured", -0.2),
    )

    def alone(name: str, ms: float, accepted: bool = True) -> Contestant:
        return Contestant(f"{name} f32", "baseline", ms, None, 0.0, accepted, implementation=Implementation(name))

    contestants = (
        alone("quick", 1.0),
        alone("near", 1.9),
        alone("far", 2.1),
        alone("wrong", 0.5, False),
        alone("other", 9.0),
    )
    names = {"chosen": "quick f32", "best_baseline": "quick f32", "best_other": "other f32"}
    parent = alter_bucket(made.plans[0].buckets[0], agenda=agenda, contestants=contestants, **names)
    start = Start.after(parent)
    assert start.without == {"a", "d", "whole model on far f32"} and start.budget < 1
    assert [one.backend for one in start.first] == ["quick", "near", "other"]
    other = Start.after(parent, same_device=False)
    assert other.without == {"a", "d"} and not other.first
    assert Start().key("k") == "k" and len({Start().key("k"), start.key("k"), Start(memory_mb=1).key("k")}) == 3


def test_every_plan_is_explained_reported_and_raced(folder: Path, made: Packed) -> None:
    path = str(folder / "net.pack")
    told = json.loads(CliRunner().invoke(app, ["explain", path, "--json"]).stdout)
    assert [one["target"] for one in told["targets"]] == ["here", "one", "rough"]
    assert all(one["regions"] for one in told["targets"])
    shown = CliRunner().invoke(app, ["explain", path, "--target", "one"])
    assert "target 'one'" in shown.stdout and "target 'here'" not in shown.stdout
    assert CliRunner().invoke(app, ["explain", path, "--target", "none"]).exit_code != 0
    page = folder / "pack.html"
    assert CliRunner().invoke(app, ["report", path, "-o", str(page)]).exit_code == 0
    text = page.read_text()
    assert text.count("<iframe") == 3 and "src=" not in text and "Content-Security-Policy" in text
    bench = ["bench", path, "--target", "one", "--backend", "onnxruntime", "--json", "--effort", "instant"]
    (raced,) = json.loads(CliRunner().invoke(app, bench).stdout)["targets"]
    assert raced["target"] == "one" and "bricolage" in json.dumps(raced)
    (examined,) = bisect(path, OPTIONS)
    assert not examined.diagnosis.faulty and examined.diagnosis.name, "the first plan is looked at, not each backend"


def test_a_described_device_is_predicted_and_taken_by_name(folder: Path, made: Packed) -> None:
    """With half of this machine's peaks everything takes twice as long; with half of the bandwidth alone, once to twice."""
    from dataclasses import replace as changed

    from bricolage.device.host import select_device
    from bricolage.driver.packs.described_target import predict_described

    peaks = select_device("", None).peaks
    there = (PackTarget("here"), PackTarget("half", gflops=peaks.gflops / 2, gbytes=peaks.gbytes / 2))
    found = pack(parse(NET, **weights()), there, folder / "described.pack", OPTIONS)
    here, half = found.pack.entries
    assert half.parent == "here" and here.predicted_ms is None and half.predicted_ms is not None
    assert half.median_ms == pytest.approx(2 * (here.median_ms or 0.0), rel=1e-6)
    assert half.predicted_ms == pytest.approx((half.median_ms, half.median_ms))
    slow = changed(there[1], gflops=peaks.gflops)
    graph = prepare(parse(NET, **weights()), {"batch": 1})
    predicted = predict_described(slow, found.plans[1], [graph])
    assert predicted is not None and predicted.low_ms == pytest.approx(here.median_ms)
    assert predicted.low_ms < predicted.ms <= predicted.high_ms == pytest.approx(2 * (here.median_ms or 0.0))
    loaded = bricolage.load(folder / "described.pack")
    assert loaded.choice is not None and loaded.choice.entry.target.name == "here"
    assert "predictions for another device" in loaded.choice.because
    assert bricolage.load(folder / "described.pack", target="half").choice is not None


def test_what_targets_have_in_common_is_found_once() -> None:
    """Claims and references of a graph, found for one device, are there for the next."""
    from bricolage.backends import registry
    from bricolage.driver.candidates import KnownClaims
    from bricolage.graph.store import Store
    from bricolage.verify.oracle import KnownReferences, Oracle
    from bricolage.verify.reference import evaluate

    graph, known = prepare(parse(NET, **weights()), {"batch": 1}), KnownClaims()
    backends = registry.available(["onnxruntime"])
    claims = known.of(graph, backends)
    assert known.of(graph, backends) is claims and dict(KnownClaims().of(graph, backends)) == claims
    references, asked = KnownReferences(), list[object]()

    def counted(*given: object, **more: object) -> object:
        asked.append(given)
        return evaluate(*given, **more)  # type: ignore[arg-type]

    def oracle() -> Oracle:
        found = Oracle(graph, {"x": sample(1)}, Store(Path()), 1e-4, "m", evaluate=counted, known=references)  # type: ignore[arg-type]
        found.compute(varied=True)
        return found

    first = oracle()
    count = len(asked)
    assert count > 1 and oracle().bound == first.bound and len(asked) == count


def written(folder: Path, text: str) -> Path:
    path = folder / "targets.toml"
    path.write_text(text)
    return path


def test_targets_of_a_file(folder: Path) -> None:
    text = '[[target]]\nname = "here"\n\n[[target]]\nname = "edge"\nisa = "avx2"\nthreads = 1\nmemory_mb = 500\n'
    text += 'precision = "high"\n'
    assert read_targets(written(folder, text)) == (PackTarget("here"), PackTarget("edge", "high", 1, "avx2", 500))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "lacks the field 'target'"),
        ("[[target]]\nthreads = 1\n", "lacks the field 'name'"),
        ('[[target]]\nname = "a"\n[[target]]\nname = "a"\n', "several targets 'a'"),
        ('[[target]]\nname = "a"\nisa = "sse"\n', "isa"),
        ('[[target]]\nname = "a"\nprecision = "poor"\n', "precision"),
        ('[[target]]\nname = "a/b"\n', "name"),
        ('[[target]]\nname = "a"\nthreads = 0\n', "threads"),
        ('[[target]]\nname = "a"\nmemory_mb = 16\n', "memory_mb"),
        ('[[target]]\nname = "a"\ngflops = 9.0\n', "only one of gflops and gbytes"),
        ('[[target]]\nname = "a"\ngflops = 9.0\ngbytes = 1.0\nscale = 2.0\n', "both scale and gflops"),
        ("[[target", "it is not TOML"),
    ],
)
def test_bad_targets(folder: Path, text: str, told: str) -> None:
    with pytest.raises(BadTargets, match=told):
        read_targets(written(folder, text))


def test_targets_that_this_machine_has_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingFile):
        read_targets(folder / "none.toml")
    many = PackTarget("many", threads=available_cores() + 1)
    with pytest.raises(BadTargets, match="target 'many' has"):
        pack(parse(NET, **weights()), (many,), folder / "x.pack", OPTIONS)
    narrow = replace(unlimited(), instructions=frozenset(["avx2", "fma"]))
    monkeypatch.setattr("bricolage.driver.packs.described_target.unlimited", lambda: narrow)
    with pytest.raises(BadTargets, match="target 'wide' has avx512, and this processor has not"):
        pack(parse(NET, **weights()), (PackTarget("wide", isa="avx512"),), folder / "x.pack", OPTIONS)
    assert not (folder / "x.pack").exists()


def test_limits_of_memory(folder: Path, made: Packed) -> None:
    """Workers are held to it, and so is the fresh process in which the artifact is tried."""
    found = pack(parse(NET, **weights()), (PackTarget("roomy", memory_mb=4000),), folder / "roomy.pack", OPTIONS)
    assert found.pack.entries[0].resident_bytes < 4000 << 20
    with pytest.raises(UnservedTargets, match="1 of 1 targets .* target 'tiny': .* 64 MB"):
        pack(parse(NET, **weights()), (PackTarget("tiny", memory_mb=64),), folder / "tiny.pack", OPTIONS)
    assert not (folder / "tiny.pack").exists()


def test_the_command(folder: Path, made: Packed) -> None:
    model = folder / "net.onnx"
    ir.save(parse(NET, **weights()), model)
    targets = written(folder, '[[target]]\nname = "here"\n[[target]]\nname = "one"\nthreads = 1\n')
    words = [
        "pack",
        str(model),
        "--targets",
        str(targets),
        "--backend",
        "onnxruntime",
        "--effort",
        "instant",
        "--budget",
        "6s",
        "--shape",
        "batch=1",
    ]
    done = CliRunner().invoke(app, [*words, "-o", str(folder / "cli.pack"), "--json"])
    assert done.exit_code == 0, done.output
    assert [entry["target"]["name"] for entry in json.loads(done.stdout)["entries"]] == ["here", "one"]
    np.savez(folder / "x.npz", x=sample(1))
    ran = ["run", str(folder / "cli.pack"), "--input", str(folder / "x.npz")]
    done = CliRunner().invoke(app, ran)
    assert done.exit_code == 0 and "plan '" in done.output and "that run here" in done.output, done.output
    done = CliRunner().invoke(app, [*ran, "--target", "one"])
    assert done.exit_code == 0 and "plan 'one', it was asked for by name" in done.output
    done = CliRunner().invoke(app, [*words, "-o", str(targets)])
    assert done.exit_code == 2 and "It would overwrite" in done.output
