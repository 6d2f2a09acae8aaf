"""The native engine as a backend: instruction sets, compilers, caches, forks."""

from __future__ import annotations

import gc
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tools.load import busy
from bricolage.backends.interface import Missing, RegionModel, Resources
from bricolage.backends.native import loaded_library
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native, instruction_set
from bricolage.base.options import available_cores
from bricolage.device.caches import Cache, Caches
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.native import module
from bricolage.native.cpu import isa as isas
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.isa import ISAS, available_isas
from bricolage.work.implementation import KernelConfig, named
from tests.backends import regions
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("product_level")


def allowed_processors() -> set[int]:
    return os.sched_getaffinity(0) if sys.platform.startswith("linux") else set()


@pytest.fixture(scope="module")
def new_process() -> Iterator[ProcessPoolExecutor]:
    """It has no helpers yet. In the process of the tests, models that others keep may have some."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> object:
    """Forgets which compiler was found, before and after."""
    toolchain.compiler.cache_clear()
    toolchain.compiler_version.cache_clear()
    yield
    monkeypatch.undo()
    toolchain.compiler.cache_clear()
    toolchain.compiler_version.cache_clear()


def test_libraries_with_the_same_constants_share_them(tmp_path: Path) -> None:
    """Programs of several sizes of a batch, while one of them is loaded; others do not."""
    weights, kernels = regions.noise(90, 40), []
    for number, (rows, factor) in enumerate(((3, 1), (40, 1), (3, 2))):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = regions.region(
            folder, "y = MatMul (x, w)", f"float[{rows}, 90] x", f"float[{rows}, 40] y", w=weights * factor
        )
        kernels.append(Native().compile(model, KernelConfig("f32"), Resources(threads=1)))
    first, second, other = (kernel._weights for kernel in kernels)
    assert first is second
    assert other is not first


def test_the_best_instruction_set_is_taken_unless_another_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert instruction_set(host()) == available_isas()[0]
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "generic")
    assert instruction_set(host()).name == "generic"
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "sparc")
    with pytest.raises(Refused, match="sparc does not run here"):
        instruction_set(host())


@pytest.fixture
def described() -> Device:
    """A processor with every instruction that there is a set for."""
    return replace(host(), instructions=host().instructions.union(*(isa.needs for isa in ISAS)), isa="")


def test_a_device_kept_to_an_instruction_set_needs_no_variable(
    described: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FORCED_ISA_VARIABLE, raising=False)
    monkeypatch.setattr(isas, "tiles_permitted", lambda: True)
    assert instruction_set(described).name == "amx"
    assert instruction_set(described.kept_to("avx512")).name == "avx512"
    assert instruction_set(described.kept_to("avx2")).name == "avx2"
    assert instruction_set(replace(described, instructions=frozenset())).name == "generic"


def test_an_instruction_set_beyond_the_device_s_cannot_be_forced(
    described: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "avx512")
    assert instruction_set(described).name == "avx512"
    with pytest.raises(Refused, match="avx512 does not run here"):
        instruction_set(described.kept_to("avx2"))


def test_configurations_are_those_of_the_device(described: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isas, "tiles_permitted", lambda: True)
    plain = named("f32", "f32-winograd2", "f32-winograd4")
    assert KernelConfig("bf16x6") in Native().configs("highest", described)
    assert KernelConfig("bf16") in Native().configs("medium", described.kept_to("avx512"))
    for precision in ("highest", "high", "medium"):
        assert Native().configs(precision, described.kept_to("avx2")) == plain


@pytest.mark.skipif(isas.find_isa("avx2") is None, reason="it does not run here")
def test_code_is_that_of_the_device(described: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any environment variable, and each in a library of its own."""
    monkeypatch.delenv(FORCED_ISA_VARIABLE, raising=False)
    model, x, cache = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32), tmp_path / "cache"
    for device, lanes in ((described.kept_to("avx2"), 8), (replace(described, instructions=frozenset()), 4)):
        before = set(cache.glob("native-*"))
        resources = Resources(device=device, cache=cache)
        found = regions.answer(Native(), model, x, resources=resources)
        assert regions.error(found, regions.reference(model, x)) < 2e-6
        (made,) = set(cache.glob("native-*")) - before
        assert f"#define LANES {lanes}\n" in (made / "region.c").read_text(encoding="utf-8")
        with pytest.raises(Refused, match="no products of bfloat16"):
            Native().compile(model, KernelConfig("bf16"), resources)


@pytest.mark.parametrize("name", ["f16", "f32-tuned"])
def test_unknown_configurations_are_refused(name: str, tmp_path: Path) -> None:
    model = regions.conv_net(tmp_path)
    for attempt in (Native().compile, Native().kernel_report, Native().space, Native().structures, Native().trials):
        with pytest.raises(Refused, match=f"no configuration '{name}'"):
            attempt(model, KernelConfig(name), regions.ONE_THREAD)


def test_without_a_compiler_it_is_missing_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, compiler: object
) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda _name: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _name: None)
    status = Native().status()
    assert isinstance(status, Missing)
    assert re.fullmatch(r"pip install 'ziglang>=[\d.]+'", status.cure)


def test_a_broken_compiler_is_missing_too(monkeypatch: pytest.MonkeyPatch, compiler: object, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    status = Native().status()
    assert isinstance(status, Missing)
    assert "does not run" in status.reason


def test_c_that_does_not_compile_is_kept_where_the_reason_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "HEAD", module.HEAD + "#error nothing\n")
    with pytest.raises(Refused, match=r"does not compile the generated C \(kept in .*\)") as caught:
        Native().compile(regions.conv_net(tmp_path), regions.F32, regions.ONE_THREAD)
    (kept,) = (tmp_path / "cache" / "failed").glob("*.c")
    assert str(kept) in str(caught.value)
    assert "#error nothing" in kept.read_text(encoding="utf-8")


def test_names_never_reach_the_code(tmp_path: Path) -> None:
    """Tensor names are the model's; the C holds numbers and fixed words."""
    evil = 'x"); gotcha("'
    model = regions.region(
        tmp_path, "a = Relu (x) \n y = MatMul (a, w)", "float[2, 4] x", "float[2, 4] y", w=np.eye(4, dtype=np.float32)
    )
    for value in model.model.graph.inputs:
        value.name = evil
    cache = tmp_path / "cache"
    Native().compile(model, regions.F32, Resources(threads=1, cache=cache))
    (source,) = cache.glob("native-*/region.c")
    assert "gotcha" not in source.read_text(encoding="utf-8")


def test_libraries_are_named_by_the_caches_that_they_are_made_for(tmp_path: Path) -> None:
    model = regions.conv_net(tmp_path)
    for l2_bytes in (512 << 10, 1 << 20, 512 << 10):
        caches = Caches((Cache(2, l2_bytes),))
        resources = Resources(device=replace(host(), caches=caches), cache=tmp_path / "cache")
        Native().compile(model, regions.F32, resources)
    assert len(list((tmp_path / "cache").glob("native-*"))) == 2


@pytest.mark.skipif(len(allowed_processors()) < 2, reason="needs two processors on Linux")
def test_helpers_stay_off_the_processor_of_the_caller(new_process: ProcessPoolExecutor, tmp_path: Path) -> None:
    """Left to itself Linux wakes them right behind the thread that waits for them, four times as slow after a pause."""
    new_process.submit(_check_where_helpers_may_run, tmp_path).result()


def _check_where_helpers_may_run(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    gc.collect()
    before = set(os.listdir("/proc/self/task"))
    kernel = Native().compile(model, regions.F32, Resources(threads=2))
    regions.bound(kernel, model, x)[2]()
    (helper,) = set(os.listdir("/proc/self/task")) - before
    theirs = os.sched_getaffinity(int(helper))
    assert theirs < allowed_processors() and theirs


@pytest.mark.skipif(len(allowed_processors()) < 2, reason="needs two processors on Linux")
def test_helpers_follow_the_affinity_mask_of_the_caller(new_process: ProcessPoolExecutor, tmp_path: Path) -> None:
    new_process.submit(_check_that_helpers_follow_the_mask, tmp_path).result()


def _check_that_helpers_follow_the_mask(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    gc.collect()
    before = set(os.listdir("/proc/self/task"))
    _, _, call = regions.bound(Native().compile(model, regions.F32, Resources(threads=2)), model, x)
    call()
    (helper,) = set(os.listdir("/proc/self/task")) - before
    allowed = allowed_processors()
    try:
        for processor in sorted(allowed):
            os.sched_setaffinity(0, {processor})
            call()
        assert os.sched_getaffinity(int(helper)) == {processor}
    finally:
        os.sched_setaffinity(0, allowed)
    call()
    call()
    assert os.sched_getaffinity(int(helper)) <= allowed


def test_a_fork_runs_on(tmp_path: Path) -> None:
    """A fork has none of the threads; the first run there starts them again."""
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    kernel = Native().compile(model, regions.F32, Resources(threads=2))
    _, outputs, call = regions.bound(kernel, model, x)
    call()
    expected = outputs[0].copy()
    child = os.fork()
    if child == 0:
        outputs[0].fill(0)
        call()
        os._exit(0 if np.array_equal(outputs[0], expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_several_kernels_live_side_by_side(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    kernels = [Native().compile(model, regions.F32, Resources(threads=threads)) for threads in (1, 2, 3, 5)]
    bound = [regions.bound(kernel, model, x) for kernel in kernels]
    for _ in range(20):
        for _, _, call in bound:
            call()
    for _, outputs, _ in bound:
        assert regions.error(outputs, regions.reference(model, x)) < 1e-6
    del kernels, bound


def test_kernels_share_their_helpers_however_many_threads_they_are_made_for(
    new_process: ProcessPoolExecutor, tmp_path: Path
) -> None:
    new_process.submit(_count_helpers_of_several_kernels, tmp_path).result()


def _count_helpers_of_several_kernels(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    gc.collect()
    before = len(os.listdir("/proc/self/task")) if sys.platform.startswith("linux") else 0
    made_for = [(4, True), (2, True), (3, False), (4, False), (1, True)]
    kernels = [
        Native().compile(model, regions.F32, Resources(threads=threads, alone=alone)) for threads, alone in made_for
    ]
    bound = [regions.bound(kernel, model, x) for kernel in kernels]
    for _, _, call in bound:
        call()
    if before:
        assert len(os.listdir("/proc/self/task")) == before + min(4, available_cores()) - 1
    del kernels, bound, call
    gc.collect()
    if before:
        assert len(os.listdir("/proc/self/task")) == before


def test_several_threads_take_turns(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    expected = regions.reference(model, x)
    bound = [regions.bound(Native().compile(model, regions.F32, Resources(threads=2)), model, x) for _ in range(3)]

    def run(number: int) -> float:
        _, outputs, call = bound[number]
        worst = 0.0
        for _ in range(200):
            outputs[0].fill(np.nan)
            call()
            worst = max(worst, regions.error(outputs, expected))
        return worst

    with ThreadPoolExecutor(3) as pool:
        assert max(pool.map(run, range(3))) < 1e-6


@pytest.mark.parametrize("make", [regions.conv_net, regions.attention_heads], ids=["convolutions", "attention"])
def test_bits_do_not_depend_on_who_takes_which_piece(
    make: Callable[[Path], RegionModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(tmp_path)
    values = [regions.noise(*info.sizes) for info in model.inputs]
    answers = set()

    def run(most: int, calls: int) -> None:
        gc.collect()  # whose team was that of another number of threads
        monkeypatch.setattr(loaded_library, "available_cores", lambda: most)
        kernel = Native().compile(model, regions.F32, Resources(threads=5, cache=tmp_path / "cache"))
        _, outputs, call = regions.bound(kernel, model, *values)
        for _ in range(calls):
            for output in outputs:
                output.fill(np.nan)
            call()
            answers.add(b"".join(output.tobytes() for output in outputs))

    run(1, 1)
    run(64, 50)
    with busy("2-nice0"):
        run(64, 100)
    assert len(answers) == 1 and not np.isnan(np.frombuffer(answers.pop(), np.float32)).any()


def test_infinities_and_nan_pass_through(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "a = Relu (x) \n b = Exp (x) \n y = Add (a, b) \n z = Softmax (x)",
        "float[4] x",
        "float[4] y, float[4] z",
    )
    x = np.float32([1.0, -np.inf, 0.0, -200.0])
    y, z = regions.answer(Native(), model, x)
    assert np.allclose(y, [1 + np.e, 0, 1, 0], rtol=1e-6)
    assert np.allclose(z, np.exp(x - 1) / np.exp(x - 1).sum(), rtol=1e-6)
    (y, _) = regions.answer(Native(), model, np.float32([np.nan, np.inf, 0.0, 1.0]))
    assert np.isnan(y[0]) and np.isinf(y[1])


@pytest.mark.parametrize(
    ("body", "weight", "tiled"),
    [
        ("y=Conv<pads=[1,1,1,1]>(x,w)", (16, 16, 3, 3), True),
        ("y=Conv<pads=[1,1,1,1], strides=[1,1]>(x,w)", (16, 16, 3, 3), True),
        ("y=Conv<pads=[1,1,1,1], strides=[2,2]>(x,w)", (16, 16, 3, 3), False),
        ("y=Conv<pads=[2,2,2,2], dilations=[2,2]>(x,w)", (16, 16, 3, 3), False),
        ("y=Conv<pads=[1,1,1,1], group=16>(x,w)", (16, 1, 3, 3), False),
        ("y=Conv(x,w)", (16, 16, 1, 1), False),
    ],
    ids=str,
)
def test_tiles_are_candidates_only_where_a_convolution_can_have_them(
    body: str, weight: tuple[int, ...], tiled: bool
) -> None:
    made = graph(body, "float[1,16,32,32] x", "float[n,m,h,k] y", w=np.ones(weight, np.float32))
    whole = made.everything
    assert Native().suits(KernelConfig("f32"), whole)
    assert {Native().suits(KernelConfig(name), whole) for name in ("f32-winograd2", "f32-winograd4")} == {tiled}
