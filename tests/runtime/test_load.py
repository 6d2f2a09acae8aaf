"""Artifacts made by hand, loaded here, elsewhere, and by a process that only runs them."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.cache import compiled_directory
from bricolage.base.codec import encode
from bricolage.base.options import Options, available_cores
from bricolage.device.host import host
from bricolage.errors import BadArtifact, ForeignArtifact, NoBackend, NotWritable, UnreadableArtifact
from bricolage.graph import store
from bricolage.plan import artifact
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.plan import Plan
from bricolage.plan.schedules import PlannedSchedule
from bricolage.runtime import load as loading
from bricolage.runtime.load import foreign, load
from bricolage.work.implementation import Assignment, Implementation
from tests.needed import needs_avx2
from tests.plan.test_hostile_artifacts import members_of, written
from tests.runtime.made_plans import Quick, allowed, baseline, expected, graph_of_size, made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")
QUICK, NIMBLE, SLOW, ABSENT = map(Implementation, ("quick", "nimble", "slow-compiler", "absent"))
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


def plan_of(tmp_path: Path, *implementations: Implementation, options: Options | None = None) -> Plan:
    """The first runs the first two operators, the second the others; alone it runs all."""
    graph = graph_of_size(2)
    divided = tuple(Assignment(bits, one) for bits, one in zip((0b0011, 0b1100), implementations, strict=False))
    placement = divided if len(implementations) > 1 else whole(graph, implementations[0])
    ranked = (baseline(ABSENT, 0.5), baseline(SLOW, 1.0), baseline(QUICK, 2.0))
    return made_plan(
        tmp_path / "run", made_bucket(tmp_path / "run", graph, placement, {"n": 2}, ranked), options=options
    )


def saved(tmp_path: Path, plan: Plan) -> Path:
    path = tmp_path / "made.bricolage"
    artifact.save(plan, tmp_path / "run", path)
    return path


def test_it_runs_where_it_was_planned(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, NIMBLE, SLOW)
    assert foreign(plan) == ""
    fast = load(saved(tmp_path, plan))
    assert [name for name, *_ in Quick.compiled] == ["nimble", "slow-compiler"], "it is compiled when it is loaded"
    np.testing.assert_allclose(fast(X), expected(X), rtol=1e-5)
    assert fast.plan == plan


@pytest.mark.parametrize(
    "options",
    [pytest.param(Options(threads=1, isa="avx2"), marks=needs_avx2), Options(threads=1, cores=host().cores[:1])],
)
def test_the_hardware_is_the_device_that_the_options_name(tmp_path: Path, options: Options) -> None:
    plan = plan_of(tmp_path, QUICK, options=options)
    assert foreign(plan) == ""
    other = replace(plan.provenance, fingerprint="0123456789ab")
    assert foreign(replace(plan, provenance=other)).startswith("hardware is ")


def test_every_difference_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path, QUICK, ABSENT)
    monkeypatch.setattr(Quick, "status", lambda _: Available("2.0"))
    plan = replace(plan, provenance=replace(plan.provenance, fingerprint="0123456789ab"))
    told = foreign(plan)
    assert "planned on" in told and "quick is 2.0, planned with 1.0" in told and "absent is not installed" in told
    with pytest.raises(ForeignArtifact, match=r"quick is 2\.0"):
        load(saved(tmp_path, plan))
    registry._sources().pop("quick")
    registry.get.cache_clear()
    assert "quick is not installed" in foreign(plan), "nor even known"


def test_elsewhere_it_runs_as_planned_where_its_backends_are(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, NIMBLE, SLOW)
    path = saved(tmp_path, replace(plan, provenance=replace(plan.provenance, fingerprint="0123456789ab")))
    with pytest.raises(ForeignArtifact):
        load(path)
    fast = load(path, any_machine=True)
    assert [name for name, *_ in Quick.compiled] == ["nimble", "slow-compiler"]
    np.testing.assert_allclose(fast(X), expected(X), rtol=1e-5)


def test_elsewhere_the_best_baseline_that_is_installed_runs_it(tmp_path: Path) -> None:
    path = saved(tmp_path, plan_of(tmp_path, ABSENT, QUICK))
    fast = load(path, any_machine=True)
    np.testing.assert_allclose(fast(X), expected(X), rtol=1e-5)
    (bucket,) = fast.plan.buckets
    assert [(r.implementation, r.operators, r.count) for r in bucket.program.regions] == [(SLOW, "0-3", 4)]
    assert bucket.race.chosen == "slow-compiler f32" and bucket.race.winner.implementation == SLOW


def test_elsewhere_without_a_baseline_only_who_takes_any_model_may_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, plan_of(tmp_path, ABSENT))
    nimble = registry.get("nimble")
    monkeypatch.setattr(loading.registry, "available", lambda: (nimble,))
    with pytest.raises(NoBackend, match="for this artifact"):
        load(path, any_machine=True)
    monkeypatch.setattr(type(nimble), "dynamic", True)
    np.testing.assert_allclose(load(path, any_machine=True)(X), expected(X), rtol=1e-5)


def with_schedule(plan: Plan, *cores: tuple[int, ...]) -> Plan:
    schedule = PlannedSchedule(cores, "by hand", 1.0, 1.0, 2.0)
    return replace(plan, buckets=(plan.buckets[0].with_schedule(schedule),))


def test_a_schedule_is_kept_and_run_on_its_cores(tmp_path: Path) -> None:
    cores = host().cores
    plan = with_schedule(plan_of(tmp_path, QUICK, NIMBLE), (cores[0],), (cores[-1],))
    fast = load(saved(tmp_path, plan))
    assert fast.plan.buckets[0].program.schedule == plan.buckets[0].program.schedule
    assert [resources.device.cores for *_, resources in Quick.compiled] == [(cores[0],), (cores[-1],)]
    assert not any(resources.alone for *_, resources in Quick.compiled)
    np.testing.assert_allclose(fast(X), expected(X), rtol=1e-6)
    traced = fast.trace({"x": X})
    np.testing.assert_allclose(traced.outputs["y"], expected(X), rtol=1e-6)
    assert [span.step for span in traced.spans] == [0, 1] and traced.bucket == 0
    if allowed():
        assert [where for what, where in Quick.cores if what == "called"][-2:] == [{cores[0]}, {cores[-1]}]
    assert fast.trace({"x": np.vstack([X, X])}).bucket is None


def test_elsewhere_there_is_no_schedule(tmp_path: Path) -> None:
    path = saved(tmp_path, with_schedule(plan_of(tmp_path, QUICK, NIMBLE), (999_999,), (0,)))
    with pytest.raises(ForeignArtifact, match=r"cores that this process may not use \(999999"):
        load(path)
    fast = load(path, any_machine=True)
    assert fast.plan.buckets[0].program.schedule is None
    np.testing.assert_allclose(fast(X), expected(X), rtol=1e-6)


def test_a_fingerprint_is_no_path(tmp_path: Path) -> None:
    """Compiled code is looked for under it: a path would lead to somebody else's library."""
    path = saved(tmp_path, plan_of(tmp_path, QUICK))
    plan = plan_of(tmp_path, QUICK)
    evil = replace(plan, provenance=replace(plan.provenance, fingerprint=str(tmp_path / "evil")))
    with pytest.raises(UnreadableArtifact, match=r"provenance\.fingerprint is no hash"):
        artifact.save(evil, tmp_path / "run", path)
    written(path, {**members_of(path), "plan.json": json.dumps(encode(evil)).encode()})
    with pytest.raises(BadArtifact, match=r"provenance\.fingerprint is no hash"):
        load(path, any_machine=True)
    other = replace(plan, provenance=replace(plan.provenance, fingerprint="0123456789ab"))
    artifact.save(other, tmp_path / "run", path)
    load(path, any_machine=True)
    folders = [resources.cache for *_, resources in Quick.compiled]
    assert folders == [compiled_directory(host().fingerprint(), "quick", "1.0")], "and code is this machine's"


def test_a_plan_for_no_rows_runs_others(tmp_path: Path) -> None:
    graph = graph_of_size(0)
    path = saved(
        tmp_path, made_plan(tmp_path / "run", made_bucket(tmp_path / "run", graph, whole(graph, QUICK), {"n": 0}))
    )
    fast = load(path)
    for x in (X[:0], X):
        np.testing.assert_allclose(fast(x), expected(x), rtol=1e-6)


def test_an_executable_asks_for_no_more_threads_than_a_processor_can_use(tmp_path: Path) -> None:
    path = saved(tmp_path, plan_of(tmp_path, QUICK, options=Options(threads=1024)))
    load(path)
    (compiled,) = Quick.compiled
    assert compiled[-1].threads == min(1024, 8 * available_cores())


def test_what_is_loaded_is_not_trimmed_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = load(saved(tmp_path, plan_of(tmp_path, QUICK)))
    monkeypatch.setenv("BRICOLAGE_CACHE_LIMIT", "0")
    subprocess.run([sys.executable, "-c", "from bricolage.base.cache import trim; trim()"], check=True, timeout=60)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(fast(x), expected(x), rtol=1e-5)  # a shape that is new: the model is read again
    (folder,) = (tmp_path / "cache" / "artifacts").iterdir()
    del fast
    gc.collect()
    subprocess.run([sys.executable, "-c", "from bricolage.base.cache import trim; trim()"], check=True, timeout=60)
    assert not folder.exists()


def test_it_runs_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, plan_of(tmp_path, QUICK))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "file" / "cache"))
    np.testing.assert_allclose(load(path)(X), expected(X), rtol=1e-5)
    assert [resources.cache for *_, resources in Quick.compiled] == [None]


def test_a_disk_that_is_full_after_unpacking_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, plan_of(tmp_path, QUICK))
    _, folder = artifact.load_artifact(path)
    whole_write = store.write_model

    def write(model: ir.Model, target: Path) -> None:
        if target.parent == folder:
            raise NotWritable(path=target, reason="No space left on device")
        whole_write(model, target)

    monkeypatch.setattr(store, "write_model", write)
    np.testing.assert_allclose(load(path)(X), expected(X), rtol=1e-5)


RUN = """
import json, sys
import numpy as np
import bricolage
fast = bricolage.load(sys.argv[1])
found = [fast(np.ones((n, 4), np.float32)).tolist() for n in (2, 3)]
print(json.dumps([found, sorted(name for name in sys.modules if name.startswith("bricolage."))]))
"""
DECIDING = ("driver", "rewrite", "measure", "tune")


@pytest.mark.parametrize("backend", ["onnxruntime", "native"])
def test_loading_and_running_import_nothing_that_decides(tmp_path: Path, backend: str) -> None:
    if not isinstance(registry.get(backend).status(), Available):
        pytest.skip(f"{backend} is not installed")
    graph, one = graph_of_size(2), Implementation(backend)
    bucket = made_bucket(tmp_path / "run", graph, whole(graph, one), {"n": 2}, (baseline(one, 1.0),))
    path = saved(tmp_path, made_plan(tmp_path / "run", bucket))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    found, modules = json.loads(done.stdout.splitlines()[-1])
    for values in found:
        x = np.ones((len(values), 4), np.float32)
        np.testing.assert_allclose(values, expected(x), rtol=1e-5)
    assert f"bricolage.backends.{backend}" in modules or f"bricolage.backends.{backend}.engine" in modules
    deciding = [name for name in modules if name.split(".")[1] in DECIDING]
    assert not deciding, "an artifact brings its decision with it"


def test_an_operating_point_for_more_cores_is_foreign_and_left_out_elsewhere(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, QUICK)
    path = saved(tmp_path, replace(plan, operating_point=OperatingPoint(streams=available_cores() + 1)))
    with pytest.raises(ForeignArtifact, match=f"operating point is for {available_cores() + 1} cores"):
        load(path)
    assert load(path, any_machine=True).plan.operating_point is None
