"""From a step to a kernel: where compiled code is kept, and what its errors say."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, RegionModel, Resources
from bricolage.backends.kernel import Kernel
from bricolage.base.cache import compiled_directory
from bricolage.base.options import Options
from bricolage.costs.database import Database
from bricolage.device.device import Device
from bricolage.device.host import host, select_device
from bricolage.errors import BackendFailed, MissingBackend, Refused
from bricolage.graph.store import Store
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.specs import CandidateSpec, RegionTask, TimingPolicy
from bricolage.plan.program_step import Step
from bricolage.runtime.compile import compile_program, compile_step
from bricolage.runtime.executable import Executable
from bricolage.verify.named_arrays import save_tensors
from bricolage.work.implementation import Implementation, KernelConfig
from tests.needed import needs_avx2
from tests.runtime import made_plans
from tests.runtime.made_plans import Quick, Slow, compilations, expected, graph_of_size, made_bucket, made_plan, whole

pytestmark = pytest.mark.usefixtures("backends")

SLOW, QUICK = Implementation("slow-compiler"), Implementation("quick")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def step_of(folder: Path, implementation: Implementation) -> Step:
    graph = graph_of_size(2)
    return Step(implementation, Store(folder).region(graph.everything, "a" * 16))


def folders() -> list[Path | None]:
    """Where this process's compilations could keep their code."""
    return [resources.cache for *_, resources in Quick.compiled]


def measured(folder: Path, step: Step, device: Device) -> None:
    """Measures a step in a worker of its own."""
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    save_tensors(folder / "in.npz", {"x": x})
    save_tensors(folder / "out.npz", {"y": expected(x.astype(np.float64))})
    spec = CandidateSpec("made", (step,), ("y",), 1, alone=True, device=device)
    with Database() as database, Pool(memory_limit=1 << 30) as pool:
        measurer = Measurer(database, pool, folder, policy=TimingPolicy(rounds=2, most_rounds=2), cores=1)
        (cost,) = measurer.measure([RegionTask(folder / "in.npz", folder / "out.npz", 1e-5, (spec,), "these")]).values()
    assert cost.outcome == "ok", cost.reason


@pytest.mark.parametrize(
    "options",
    [
        Options(threads=1, isa=""),
        pytest.param(Options(threads=1, isa="avx2", cores=(host().cores[-1],)), marks=needs_avx2),
        pytest.param(Options(threads=1, isa="avx2"), marks=(needs_avx2, pytest.mark.slow)),
        pytest.param(Options(threads=1, isa="", cores=(host().cores[-1],)), marks=pytest.mark.slow),
    ],
    ids=["everything", "an instruction set on a group of cores", "an instruction set", "a group of cores"],
)
def test_code_compiled_while_measuring_is_found_when_running(
    folder: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = select_device(options.isa, options.cores)
    measured(folder, step_of(folder, SLOW), device)
    place = compiled_directory(device.fingerprint(), "slow-compiler", "1.0")
    assert compilations() == [str(place / "f32.code")]
    # Somebody installs another backend meanwhile, and another one goes.
    registry._sources().pop("nimble")
    registry.register("somebody-elses", f"{made_plans.__name__}:Nimble")
    registry.get.cache_clear()
    graph = graph_of_size(2)
    plan = made_plan(folder, made_bucket(folder, graph, whole(graph, SLOW), {"n": 2}), options=options)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(Executable(plan, folder)(x), expected(x), rtol=1e-6)
    assert folders() == [place] and len(compilations()) == 1


def test_an_ephemeral_region_is_kept_only_where_compiling_it_takes_long(folder: Path) -> None:
    resources = Resources()
    for implementation in (QUICK, SLOW):
        step = step_of(folder, implementation)
        for ephemeral in (False, True):
            compile_step(step, resources, ephemeral=ephemeral)
            compile_step(step, resources, ephemeral=ephemeral, caching=False)
    quick, slow = (compiled_directory(host().fingerprint(), name, "1.0") for name in ("quick", "slow-compiler"))
    assert folders() == [quick, None, None, None, slow, None, slow, None]
    assert slow.is_dir() and compilations() == [str(slow / "f32.code"), "None", "None"]


def test_what_a_worker_measures_of_quick_compilers_is_not_kept(folder: Path) -> None:
    measured(folder, step_of(folder, QUICK), host())
    assert not list((folder.parent / "cache").glob("compiled/**/*"))


def test_the_folder_depends_on_backend_version_and_device_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(folder, SLOW)
    compile_step(step, Resources(threads=1, device=host()))
    compile_step(step, Resources(threads=2, device=host(), alone=True))
    compile_step(replace(step, implementation=Implementation("slow-compiler", KernelConfig("bf16"))), Resources())
    same = set(folders())
    assert len(same) == 1
    other = replace(host(), model="another processor")
    compile_step(step, Resources(device=other))
    monkeypatch.setattr(Slow, "status", lambda _: Available("2.0"))
    compile_step(step, Resources())
    assert len({*folders()}) == 3 and folders()[-2:] == [
        compiled_directory(other.fingerprint(), "slow-compiler", "1.0"),
        compiled_directory(host().fingerprint(), "slow-compiler", "2.0"),
    ]


def test_failures_say_which_backend_failed_and_refusals_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> None:
        def compile(self: Quick, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
            raise error

        monkeypatch.setattr(Quick, "compile", compile)

    step = step_of(folder, QUICK)
    fails(RuntimeError("the first line\nand a long story"))
    with pytest.raises(BackendFailed, match="RuntimeError: the first line") as found:
        compile_step(step, Resources())
    assert "story" not in str(found.value) and found.value.facts["backend"] == "quick"
    fails(ValueError(""))
    with pytest.raises(BackendFailed, match="ValueError"):
        compile_step(step, Resources())
    fails(Refused(backend="Quick", reason="not on Sundays"))
    with pytest.raises(Refused):
        compile_step(step, Resources())
    with pytest.raises(MissingBackend):
        compile_step(replace(step, implementation=Implementation("absent")), Resources())


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_where_the_cache_cannot_be_written_code_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    compile = Quick.compile

    def keeps(self: Quick, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        if resources.cache is not None:
            raise OSError(number, os.strerror(number))
        return compile(self, region, config, resources)

    monkeypatch.setattr(Quick, "compile", keeps)
    compile_step(step_of(folder, QUICK), Resources())
    assert folders() == [None] and os.strerror(number) in caplog.text and "BRICOLAGE_CACHE or --cache" in caplog.text


def test_a_program_reads_only_what_its_steps_need(folder: Path) -> None:
    program = compile_program([step_of(folder, QUICK)], ["unused", "x"], ["y"], Resources())
    assert program.static and set(program.bind().inputs) == {"x"}
