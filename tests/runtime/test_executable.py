"""Plans made by hand, run by backends that tell what they compiled: devices, shape buckets, and other shapes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.base.options import Options
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host, select_device
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant
from bricolage.runtime import programs
from bricolage.runtime.executable import Executable
from bricolage.runtime.programs import placement_of, ranked_baselines
from bricolage.work.implementation import Assignment, Implementation, KernelConfig, Placement
from tests.needed import needs_avx2
from tests.plan.bucket_facts import alter_bucket
from tests.runtime import made_plans
from tests.runtime.made_plans import Quick, baseline, expected, graph_of_size, made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")

QUICK, NIMBLE, SLOW = Implementation("quick"), Implementation("nimble"), Implementation("slow-compiler")
ALL = ("Relu", "Tanh", "Add", "Relu")
DIVIDED: Placement = (Assignment(0b0011, NIMBLE), Assignment(0b1100, SLOW))
RANKED = (baseline(SLOW, 1.0), baseline(NIMBLE, 2.0, accepted=False), baseline(QUICK, 3.0), baseline(NIMBLE, 4.0))


def bucket_of(
    folder: Path, placement: Placement, n: int = 2, contestants: tuple[Contestant, ...] = RANKED, **more: str
) -> Bucket:
    return made_bucket(folder, graph_of_size(n), placement, {"n": n}, contestants, **more)


def sample(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)


def check(fast: Executable, n: int) -> list[tuple[str, tuple[str, ...]]]:
    """Runs it twice and checks the answers; what was compiled for that, as (backend, operator types)."""
    Quick.compiled.clear()
    for _ in range(2):
        np.testing.assert_allclose(fast(sample(n)), expected(sample(n)), rtol=1e-5, atol=1e-6)
    return [(name, types) for name, types, _, _ in Quick.compiled]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or len(host().cores) < 2, reason="there is no choice of cores")
def test_a_plan_for_some_cores_runs_on_these_and_leaves_the_caller_where_it_was(tmp_path: Path) -> None:
    everywhere, one = made_plans.allowed(), host().cores[-1:]
    for cores, expected_cores in ((one, frozenset(one)), (None, everywhere)):
        options = Options(threads=1, cores=cores)
        fast = Executable(made_plan(tmp_path, bucket_of(tmp_path, DIVIDED), options=options), tmp_path)
        Quick.cores.clear()
        check(fast, 2)  # a bucket
        check(fast, 3)  # another shape
        fast.bind({"x": aligned_copy(sample(2))})()
        assert {what for what, _ in Quick.cores} == {"compiled", "called"}
        assert {cores for _, cores in Quick.cores} == {expected_cores}
        assert made_plans.allowed() == everywhere


def aligned_copy(array: np.ndarray) -> np.ndarray:
    copy = allocate_aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


# --- what a plan was made for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ["", pytest.param("avx2", marks=needs_avx2)])
@pytest.mark.parametrize("cores", [None, host().cores[:1]])
def test_a_plan_runs_on_the_device_that_its_options_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isa: str, cores: tuple[int, ...] | None
) -> None:
    options = Options(threads=1, isa=isa, cores=cores)
    fast = Executable(made_plan(tmp_path, bucket_of(tmp_path, DIVIDED), options=options), tmp_path)
    monkeypatch.setenv("BRICOLAGE_ISA", "avx512")
    check(fast, 2)
    check_device = {resources.device for *_, resources in Quick.compiled}
    check(fast, 3)
    check_device |= {resources.device for *_, resources in Quick.compiled}
    assert check_device == {select_device(isa, cores)}, "whatever the environment says, for all shapes"


def test_threads_are_the_plans_and_may_spin_where_one_backend_is_alone(tmp_path: Path) -> None:
    options = Options(threads=3)
    for placement, alone in ((DIVIDED, False), ((Assignment(3, QUICK), Assignment(12, QUICK)), True)):
        fast = Executable(made_plan(tmp_path, bucket_of(tmp_path, placement), options=options), tmp_path)
        check(fast, 2)
        assert [(r.threads, r.alone) for *_, r in Quick.compiled] == [(3, alone)] * 2


def test_regions_run_as_planned_with_their_configurations(tmp_path: Path) -> None:
    tuned = replace(SLOW, config=KernelConfig("f32", (("tile", 8),)))
    placement = (DIVIDED[0], replace(DIVIDED[1], implementation=tuned))
    bucket = bucket_of(tmp_path, placement)
    assert placement_of(bucket) == placement
    fast = Executable(made_plan(tmp_path, bucket), tmp_path)
    assert check(fast, 2) == [("nimble", ALL[:2]), ("slow-compiler", ALL[2:])]
    assert [config for _, _, config, _ in Quick.compiled] == [NIMBLE.config, tuned.config]


def test_each_bucket_is_compiled_once_and_when_it_is_needed(tmp_path: Path) -> None:
    buckets = bucket_of(tmp_path, whole(graph_of_size(2), QUICK)), bucket_of(tmp_path, DIVIDED, 8)
    fast = Executable(made_plan(tmp_path, *buckets), tmp_path)
    fast.prepare(1)
    assert [name for name, *_ in Quick.compiled] == ["nimble", "slow-compiler"]
    assert check(fast, 8) == [] and check(fast, 2) == [("quick", ALL)] and check(fast, 2) == []


# --- other shapes ---------------------------------------------------------------------------------------------------


def test_another_shape_runs_as_planned_but_for_slow_compilers(tmp_path: Path) -> None:
    fast = Executable(made_plan(tmp_path, bucket_of(tmp_path, DIVIDED)), tmp_path)
    assert check(fast, 5) == [("nimble", ALL[:2]), ("quick", ALL[2:])], "a caller waits"
    assert check(fast, 5) == [], "it is kept"


def test_another_shape_is_planned_as_the_nearest_bucket(tmp_path: Path) -> None:
    buckets = (
        bucket_of(tmp_path, whole(graph_of_size(2), QUICK)),
        bucket_of(tmp_path, whole(graph_of_size(2), NIMBLE), 32),
    )
    fast = Executable(made_plan(tmp_path, *buckets), tmp_path)
    assert {n: check(fast, n)[0][0] for n in (1, 7, 9, 100)} == {1: "quick", 7: "quick", 9: "nimble", 100: "nimble"}


def test_another_shape_of_a_rewritten_plan_runs_on_a_quick_baseline(tmp_path: Path) -> None:
    """The artifact holds the rewritten graph for the planned shapes only."""
    short = graph_of_size(2, "a=Relu(x) b=Tanh(a) c=Sum(b,x) d=Identity(c) e=Relu(d) y=Relu(e)")
    rewritten = made_bucket(tmp_path, short, whole(short, SLOW), {"n": 2}, RANKED, variant="rewritten")
    fast = Executable(made_plan(tmp_path, rewritten), tmp_path)
    assert {name for name, _ in check(fast, 2)} == {"slow-compiler"}
    assert check(fast, 5) == [("quick", ALL)], "the original, on the fastest that is accepted and compiles quickly"


def test_a_variant_of_as_many_operators_is_not_taken_for_the_original(tmp_path: Path) -> None:
    fast = Executable(made_plan(tmp_path, bucket_of(tmp_path, DIVIDED, variant="searched-1")), tmp_path)
    assert check(fast, 5) == [("quick", ALL)]


def test_a_shape_with_another_structure_runs_on_a_quick_baseline(tmp_path: Path) -> None:
    bucket = alter_bucket(bucket_of(tmp_path, DIVIDED), operators=5)
    assert check(Executable(made_plan(tmp_path, bucket), tmp_path), 5) == [("quick", ALL)]


def test_a_plan_that_does_not_fit_another_shape_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Executable(made_plan(tmp_path, bucket_of(tmp_path, DIVIDED)), tmp_path)

    def refuses(*_: object) -> None:
        raise RuntimeError("not this shape")

    monkeypatch.setattr(made_plans.Nimble, "compile", refuses)
    assert check(fast, 5)[-1] == ("quick", ALL)


def test_without_a_quick_baseline_any_quick_backend_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = bucket_of(tmp_path, whole(graph_of_size(2), SLOW), contestants=RANKED[:2])
    fast = Executable(made_plan(tmp_path, bucket), tmp_path)
    slow, quick = registry.get("slow-compiler"), registry.get("quick")
    monkeypatch.setattr(programs.registry, "available", lambda: (slow,))
    assert check(fast, 5) == [], "the float64 reference runs it"
    fast = Executable(made_plan(tmp_path, bucket), tmp_path)
    monkeypatch.setattr(programs.registry, "available", lambda: (slow, quick))
    assert check(fast, 5) == [("quick", ALL)]


def test_as_many_other_shapes_are_kept_as_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_OTHER_SHAPES", 2)
    fast = Executable(made_plan(tmp_path, bucket_of(tmp_path, whole(graph_of_size(2), QUICK))), tmp_path)
    assert all(check(fast, n) for n in (3, 4))
    assert not check(fast, 3) and check(fast, 5), "the one used longest ago makes room"
    assert not check(fast, 3) and check(fast, 4)


def test_ranked_baselines_are_accepted_and_timed(tmp_path: Path) -> None:
    plan = Contestant("a plan", "plan", 0.5, (0.5, 0.5), 0.0, accepted=True)
    bucket = bucket_of(tmp_path, DIVIDED, contestants=(*reversed(RANKED), plan, baseline(NIMBLE, None)))
    assert ranked_baselines(bucket.race.contestants) == [SLOW, QUICK, NIMBLE]


def test_a_temporary_folder_goes_with_its_executable(tmp_path: Path) -> None:
    kept, temporary = tmp_path / "kept", tmp_path / "temporary"
    for folder in (kept, temporary):
        folder.mkdir()
        plan = made_plan(folder, bucket_of(folder, DIVIDED))
        fast = Executable(plan, folder, temporary=folder is temporary)
        fast.save(folder.parent / f"{folder.name}.bricolage")
        del fast
    assert kept.is_dir() and not temporary.exists() and (tmp_path / "temporary.bricolage").is_file()
