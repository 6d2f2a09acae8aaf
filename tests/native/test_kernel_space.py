"""What may be chosen of the native engine's kernels: each choice is right, and data; trials time them and find those that are
not."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel_trials import KernelTiming
from bricolage.backends.native import kernel_space
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.backends.native.kernel_space import space
from bricolage.base.codec import decode, encode
from bricolage.device.caches import Cache, Caches
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu import isa as isas
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import find_isa
from bricolage.native.cpu.kernel_choice import choice_of
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.fusion_target import Target
from bricolage.native.module import kernel_texts
from bricolage.native.select.algorithm import KernelRequest
from bricolage.work.config_space import REGION, Choice, ConfigSpace, TuningTask
from bricolage.work.implementation import KernelConfig, Scalar
from bricolage.work.implementation import named as configs
from tests.backends import regions

TWO_THREADS = Resources(threads=2)


def offered(arithmetic: Arithmetic, isa: isas.Isa, l2_bytes: int = 1 << 20) -> list[tuple[TuningTask, Choice]]:
    """Each value of each parameter of a small network of convolutions, by itself."""
    target = CpuTarget(isa, 2, Caches((Cache(2, l2_bytes),)))
    with tempfile.TemporaryDirectory() as folder:
        kernels = plan_fused_kernels(regions.conv_net(Path(folder)), target, arithmetic, {})
    found = space(KernelConfig(), kernels, target, arithmetic).tasks
    return [(task, ((name, value),)) for task in found for name, own in task.parameters.items() for value in own]


def values(offers: Sequence[tuple[TuningTask, Choice]], name: str) -> set[Scalar]:
    return {value for _, choice in offers for own, value in choice if own == name}


def test_what_is_offered_fits_the_arithmetic() -> None:
    plain = offered(Arithmetic(), isas.ISAS[-1])
    assert len(set(map(repr, plain))) == len(plain)
    assert not values(plain, "tile") and not values(plain, "kc_bytes") and values(plain, "unroll") == {2, 4}
    assert values(offered(Arithmetic(tile=4), isas.ISAS[-1]), "tile") == {0, 2}, "besides what is usual here, 4"
    unit = offered(Arithmetic(parts=3), isas.EMULATED_AMX)
    assert not values(unit, "rows") and not values(unit, "unroll")


def test_blocks_are_parts_of_the_second_level_cache(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path, "y = MatMul (x, w)", "float[4096, 512] x", "float[4096, 64] y", w=regions.noise(512, 64)
    )
    sizes = []
    for l2_bytes in (1 << 19, 1 << 20):
        target = CpuTarget(isas.ISAS[-1], 2, Caches((Cache(2, l2_bytes),)))
        found = space(KernelConfig(), plan_fused_kernels(model, target, Arithmetic(), {}), target, Arithmetic())
        (task,) = found.tasks
        assert "mc_bytes" not in task.parameters, "rows are read where they lie"
        plan = plan_fused_kernels(model, target, Arithmetic(), {})
        choice = choice_of((("pack", True),))
        packed = kernel_texts(KernelRequest(plan.kernels[0], plan, target, Arithmetic(), choice))
        sizes.append(packed)
    assert sizes[0] != sizes[1]


def test_only_what_changes_the_code_is_offered(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "a = Exp (x) \n y = MatMul (a, w) \n z = ReduceMax <keepdims = 1> (a)",
        "float[64, 64] x", "float[64, 32] y, float[1, 1] z", w=regions.noise(64, 32))  # fmt: skip
    found = Native().space(model, regions.F32, TWO_THREADS)
    tasks = {task.kind: task for task in found.tasks if task.name != REGION}
    kernels = Native().kernel_report(model, regions.F32, TWO_THREADS).kernels
    product = tasks["matmul"]
    assert dict(product.sizes) == {"batch": 1, "m": 64, "n": 32, "k": 64, "taps": 1}
    assert product.flops >= 2 * 64 * 32 * 64, "with what is fused into it"
    assert all(kernels[int(prefix.removesuffix("."))].kind == "matmul" for prefix in product.kernels)
    assert {"parallel", "prefetch", "unroll"} <= set(product.parameters)
    assert "pack" not in product.parameters, "rows are packed in any case: they are computed here"
    (prefix,) = product.kernels
    assert regions.F32 in found and regions.F32.tuned({f"{prefix}parallel": "n"}) in found
    assert regions.F32.tuned({f"{prefix}parallel": "k"}) not in found and KernelConfig("f32-winograd4") not in found


def twins(folder: Path) -> RegionModel:
    """Two products that do the same work with other weights, and a third that does not."""
    return regions.region(
        folder,
        "a = MatMul (x, u) \n b = Relu (a) \n c = MatMul (b, v) \n d = Relu (c) \n y = MatMul (d, w)",
        "float[64, 96] x",
        "float[64, 32] y",
        u=regions.noise(96, 96),
        v=regions.noise(96, 96, seed=1),
        w=regions.noise(96, 32, seed=2),
    )


def test_kernels_that_do_the_same_work_are_one_task_anywhere(tmp_path: Path) -> None:
    found = Native().space(twins(tmp_path), regions.F32, TWO_THREADS).tasks
    assert sorted(len(task.kernels) for task in found) == [1, 2]
    same = next(task for task in found if len(task.kernels) == 2)
    (tmp_path / "alone").mkdir()
    alone = regions.region(tmp_path / "alone", "a = MatMul (x, u) \n y = Relu (a)", "float[64, 96] x", "float[64, 96] y",
        u=regions.noise(96, 96, seed=5))  # fmt: skip
    (other,) = Native().space(alone, regions.F32, TWO_THREADS).tasks
    assert other.workload == same.workload and other.parameters == same.parameters
    fewer = Native().space(alone, regions.F32, Resources(threads=1)).tasks
    assert all(task.workload != same.workload for task in fewer), "one thread is other work"


def choices_of(found: ConfigSpace, rank: int) -> dict[str, Choice]:
    """A value of another parameter for each task."""
    build = {}
    for task in found.tasks:
        name = sorted(task.parameters)[rank % len(task.parameters)]
        build[task.name] = ((name, task.parameters[name][rank % len(task.parameters[name])]),)
    return build


@pytest.mark.parametrize(
    "config", [pytest.param(KernelConfig("f32"), marks=pytest.mark.slow), KernelConfig("f32-winograd4")], ids=str
)
def test_trials_time_every_task_of_every_build(config: KernelConfig, tmp_path: Path) -> None:
    model = regions.conv_net(tmp_path)
    found, trials = Native().space(model, config, TWO_THREADS), Native().trials(model, config, TWO_THREADS)
    usual = trials.usual(3)
    assert {task.name for task in found.tasks} <= set(usual) and all(ms >= 0 for ms in usual.values())
    builds = [choices_of(found, rank) for rank in range(2)]
    for build, told in zip(builds, trials.run(builds, 2), strict=True):
        assert set(told) == set(build)
        for trial in told.values():
            assert isinstance(trial, KernelTiming) and len(trial.ms) == len(trial.usual_ms) == 2


def test_a_choice_with_a_wrong_answer_is_found_among_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator with a fault in one choice: the others of its build are timed all the same."""
    model = twins(tmp_path)
    found = Native().space(model, regions.F32, TWO_THREADS)
    trials = Native().trials(model, regions.F32, TWO_THREADS)
    sound, wrong = sorted(found.tasks, key=lambda task: len(task.kernels))
    real = kernel_space.generate

    def faulty(*given: Any, **more: Any) -> CSource:
        made = real(*given, **more)
        if not any(choice.gemm.unroll == 4 for choice in given[3].values()):
            return made
        functions = {name: text.replace("tile[r", "0.5f * tile[r") for name, text in made.functions.items()}
        return replace(made, functions=functions)

    monkeypatch.setattr(kernel_space, "generate", faulty)
    (told,) = trials.run([{sound.name: (("unroll", 2),), wrong.name: (("unroll", 4),)}], 2)
    assert isinstance(told[sound.name], KernelTiming) and told[wrong.name] == "its answer is another"


def test_what_does_not_compile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    model = twins(tmp_path)
    trials = Native().trials(model, regions.F32, TWO_THREADS)
    task = Native().space(model, regions.F32, TWO_THREADS).tasks[0]
    real = kernel_space.generate
    monkeypatch.setattr(
        kernel_space,
        "generate",
        lambda *given, **more: replace(
            made := real(*given, **more), functions={n: t.replace("long", "lang") for n, t in made.functions.items()}
        ),
    )
    (told,) = trials.run([{task.name: (("unroll", 2),)}], 2)
    assert "does not compile" in str(told[task.name])


def convolutions(folder: Path) -> RegionModel:
    """1×32×28×28 → 1×64×28×28, large enough for Winograd's transformation."""
    return regions.region(
        folder,
        "a = Conv <pads = [1, 1, 1, 1]> (x, v) \n b = Relu (a) \n y = Conv <pads = [1, 1, 1, 1]> (b, w)",
        "float[1, 32, 28, 28] x",
        "float[1, 64, 28, 28] y",
        v=regions.noise(64, 32, 3, 3),
        w=regions.noise(64, 64, 3, 3, seed=1),
    )


def code(model: RegionModel, config: KernelConfig, folder: Path) -> tuple[str, bytes]:
    """The C that it is compiled to from nothing, and the constants beside it."""
    Native().compile(model, config, replace(TWO_THREADS, cache=folder))
    (made,) = folder.glob("native-*")
    return (made / "region.c").read_text(encoding="utf-8"), (made / "weights.bin").read_bytes()


@pytest.mark.thinned("config")
@pytest.mark.parametrize("rank", [0, 1, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (2, 3))])
@pytest.mark.parametrize("config", configs("f32", "f32-winograd4"), ids=str)
def test_what_is_chosen_is_data_that_compiles_to_the_same_code(config: KernelConfig, rank: int, tmp_path: Path) -> None:
    model, x = convolutions(tmp_path), regions.noise(1, 32, 28, 28)
    found = Native().space(model, config, TWO_THREADS)
    tuned = found.config(choices_of(found, rank))
    assert tuned.base == config and tuned.parameters
    read = decode(KernelConfig, json.loads(json.dumps(encode(tuned))))
    assert read == tuned and hash(read) == hash(tuned)
    first = code(model, tuned, tmp_path / "first")
    assert first == code(model, read, tmp_path / "second")
    assert first != code(model, config, tmp_path / "base")
    answer = regions.answer(Native(), model, x, config=read, resources=TWO_THREADS)
    assert regions.error(answer, regions.reference(model, x)) < 1e-5


def test_a_library_is_named_by_its_parameters(tmp_path: Path) -> None:
    model, cache = regions.conv_net(tmp_path), tmp_path / "cache"
    for parameters in ({}, {"0.prefetch": True}, {"0.prefetch": False}, {"0.prefetch": True}):
        Native().compile(model, regions.F32.tuned(parameters), Resources(cache=cache))
    assert len(list(cache.glob("native-*"))) == 3


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"99.mc_bytes": 1 << 16}, "those of more than"),
        ({"0.nc_bytes": 1 << 16}, "unknown parameter"),
        ({"mc_bytes": 1 << 16}, "unknown parameter"),
        ({"-1.mc_bytes": 1 << 16}, "unknown parameter"),
        ({"0.mc_bytes": 0}, "cannot be 0"),
        ({"0.mc_bytes": "large"}, "cannot be 'large'"),
        ({"0.tile": 3}, "cannot be 3"),
        ({"0.prefetch": True, "0.parallel": "k"}, "cannot be 'k'"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(parameters: dict[str, Scalar], reason: str, tmp_path: Path) -> None:
    model, config = regions.conv_net(tmp_path), regions.F32.tuned(parameters)
    cache = tmp_path / "cache"
    with pytest.raises(Refused, match=reason):
        Native().compile(model, config, Resources(cache=cache))
    assert not list(cache.iterdir())
    with pytest.raises(Refused, match=reason):
        Native().kernel_report(model, config, Resources())


def test_the_first_kernel_that_is_not_there_is_refused(tmp_path: Path) -> None:
    model = regions.conv_net(tmp_path)
    count = len(Native().kernel_report(model, regions.F32, Resources()).kernels)
    Native().compile(model, regions.F32.tuned({f"{count - 1}.prefetch": False}), Resources())
    with pytest.raises(Refused, match=f"more than {count} kernels"):
        Native().compile(model, regions.F32.tuned({f"{count}.prefetch": False}), Resources())


def each_alone(found: ConfigSpace) -> list[KernelConfig]:
    """The values of all parameters one after another, of all tasks together."""
    most = max(len(values) for task in found.tasks for values in task.parameters.values())
    names = sorted({name for task in found.tasks for name in task.parameters})
    made = [
        found.config(
            {
                task.name: ((name, task.parameters[name][rank]),)
                for task in found.tasks
                if rank < len(task.parameters.get(name, ()))
            }
        )
        for name in names
        for rank in range(most)
    ]
    return [config for config in dict.fromkeys(made) if config.parameters]


@pytest.mark.thinned("config")
@pytest.mark.parametrize("config", configs("f32", "f32-winograd4"), ids=str)
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_every_choice_is_right(config: KernelConfig, part: int, tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    reference = regions.reference(model, x)
    for tuned in each_alone(Native().space(model, config, TWO_THREADS))[part::3]:
        found = regions.answer(Native(), model, x, config=tuned, resources=TWO_THREADS)
        assert regions.error(found, reference) < 1e-5, tuned.text


@pytest.mark.skipif(find_isa("emulated-amx") is None, reason="it does not run here")
def test_every_choice_for_a_matrix_unit_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "emulated-amx")
    w = regions.noise(900, 70)
    model = regions.region(tmp_path, "y = MatMul (x, w)", "float[90, 900] x", "float[90, 70] y", w=w)
    x = regions.noise(90, 900, seed=1)
    every = each_alone(Native().space(model, KernelConfig("bf16x3"), TWO_THREADS))
    assert len(every) >= 4
    for tuned in every:
        found = regions.answer(Native(), model, x, config=tuned, resources=TWO_THREADS)
        assert regions.error(found, regions.reference(model, x)) < 2e-5, tuned.text


def separable(folder: Path) -> RegionModel:
    """Two separable convolutions that do the same work."""
    return regions.region(
        folder,
        "s = Conv (x, o) \n a = Conv <pads = [1, 1, 1, 1], group = 32> (s, d) \n b = Conv (a, p) \n c = Relu (b)"
        " \n e = Conv <pads = [1, 1, 1, 1], group = 32> (c, f) \n y = Conv (e, q)",
        "float[1, 32, 14, 14] x",
        "float[1, 32, 14, 14] y",
        o=regions.noise(32, 32, 1, 1, seed=4),
        d=regions.noise(32, 1, 3, 3),
        p=regions.noise(32, 32, 1, 1, seed=1),
        f=regions.noise(32, 1, 3, 3, seed=2),
        q=regions.noise(32, 32, 1, 1, seed=3),
    )


def test_fusions_are_structures_that_are_carried_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "resident_bytes", 0)  # what is small is joined, too
    model, x = separable(tmp_path), regions.noise(1, 32, 14, 14)
    usual = Native().space(model, regions.F32, TWO_THREADS)
    assert "separable" in {task.kind for task in usual.tasks}
    others = [one for one in Native().structures(model, regions.F32, TWO_THREADS) if "fused" in dict(one.parameters)]
    assert others, "they may be computed apart"
    for structure in others:
        found = Native().space(model, structure, TWO_THREADS)
        assert structure in found and structure not in usual and "conv" in {task.kind for task in found.tasks}
        tuned = found.config(choices_of(found, 1))
        assert tuned in found and dict(structure.parameters).items() <= dict(tuned.parameters).items()
        trials = Native().trials(model, structure, TWO_THREADS)
        (told,) = trials.run([choices_of(found, 0)], 2)
        assert all(isinstance(trial, KernelTiming) for trial in told.values())
        answer = regions.answer(Native(), model, x, config=tuned, resources=TWO_THREADS)
        assert regions.error(answer, regions.reference(model, x)) < 1e-5


def test_peaks_are_those_of_instructions_that_run_here() -> None:
    """What is measured is above zero, and less than a hundred times what the clock and the width of a vector promise."""
    device = host()
    peaks = Native().measure_peaks(Resources(1, device))
    assert peaks is not None and 0.0 < peaks.gflops < 100.0 * device.peaks.gflops and peaks.gbytes > 0.0
    foreign = replace(device, instructions=device.instructions | {"unheard_of"})
    assert Native().measure_peaks(Resources(1, foreign)) is None
