"""The measured search for how products are cut up: what it concludes from times, and that its parameters are data which
compile to right libraries."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native import tuning
from bricolage.backends.native.cpu import isa as isas
from bricolage.backends.native.cpu.arithmetic import Arithmetic
from bricolage.backends.native.cpu.build import planned
from bricolage.backends.native.cpu.isa import named
from bricolage.backends.native.cpu.kernel_choice import GemmConfig, KernelChoice
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, WAVES, Native
from bricolage.backends.native.fuse.plan import FusionPlan
from bricolage.codec import decode, encode
from bricolage.device.caches import Cache, Caches
from bricolage.errors import Refused
from bricolage.work.implementation import KernelConfig, Scalar
from bricolage.work.implementation import named as configs
from tests.backends import regions

SMALL, LARGE = KernelChoice(gemm=GemmConfig(1 << 10)), KernelChoice(gemm=GemmConfig(1 << 20))
TWO_THREADS = Resources(threads=2)


def turns(usual: list[float], other: list[float], noise: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return tuple(np.array(ms) * (1 + noise * draw.standard_normal((15, len(ms)))) for ms in (usual, other))  # type: ignore[return-value]


def test_each_kernel_keeps_its_fastest_alternative() -> None:
    times = [turns([1.0, 1.0, 1.0], [0.9, 1.2, 0.8]), turns([1.0, 1.0, 1.0], [0.7, 1.1, 0.9])]
    assert tuning.choose([SMALL, LARGE], times) == {0: LARGE, 2: SMALL}


def test_what_is_not_clearly_faster_is_not_chosen() -> None:
    assert tuning.choose([SMALL], [turns([1.0, 1.0], [0.99, 1.0])]) == {}
    usual, other = turns([1.0], [0.9], noise=0.0)
    other[::2] = 1.1  # faster in the middle, but not in most rounds
    assert tuning.choose([SMALL], [(usual, other)]) == {}


def offered(arithmetic: Arithmetic, isa: isas.Isa, l2_bytes: int = 1 << 20) -> list[KernelChoice]:
    """What is tried of a single convolution."""
    target = CpuTarget(isa, 2, Caches((Cache(2, l2_bytes),)))
    with tempfile.TemporaryDirectory() as folder:
        kernels = planned(regions.conv_net(Path(folder)), target, arithmetic, None)
    return list(tuning.alternatives(tuning.parameters(kernels, target, arithmetic)))


def test_the_alternatives_fit_the_arithmetic() -> None:
    plain = offered(Arithmetic(), isas.ISAS[-1])
    assert len(set(plain)) == len(plain)
    assert all(choice.tile is None and choice.gemm.kc_bytes is None for choice in plain)
    assert {choice.tile for choice in offered(Arithmetic(tile=4), isas.ISAS[-1])} == {None, 0, 2}
    assert any(choice.gemm.kc_bytes for choice in offered(Arithmetic(parts=3), isas.EMULATED_AMX))


def test_blocks_are_parts_of_the_second_level_cache() -> None:
    sizes = {
        l2: {c.gemm.mc_bytes for c in offered(Arithmetic(), isas.ISAS[-1], l2)} - {None} for l2 in (1 << 19, 1 << 20)
    }
    assert sizes[1 << 20] == {2 * size for size in sizes[1 << 19] if size is not None}


def test_only_products_have_parameters(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "a = Exp (x) \n y = MatMul (a, w) \n z = ReduceMax <keepdims = 1> (a)",
        "float[64, 64] x", "float[64, 32] y, float[1, 1] z", w=regions.noise(64, 32))  # fmt: skip
    space = Native().space(model, regions.F32, TWO_THREADS)
    kernels = Native().anatomy(model, regions.F32, TWO_THREADS).kernels
    (product,) = {key.partition(".")[0] for key in space.parameters if key != WAVES}
    assert len(kernels) > 1 and kernels[int(product)].kind == "matmul"
    assert regions.F32 in space and space.size == 3 * 3 * 4 * 2, "the last: in waves, or not"
    assert regions.F32.tuned({f"{product}.parallel": "n"}) in space
    assert regions.F32.tuned({f"{product}.parallel": "k"}) not in space
    assert KernelConfig("f32-winograd4") not in space


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
    return (made / "region.c").read_text(), (made / "weights.bin").read_bytes()


def choose_everywhere(choice: KernelChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds this best for every kernel, and measures nothing."""

    def search(_region: RegionModel, planned: FusionPlan, *_: object) -> Mapping[int, KernelChoice]:
        return dict.fromkeys(range(len(planned.kernels)), choice)

    monkeypatch.setattr(tuning, "search", search)


def choose_in_turn(tried: Sequence[KernelChoice], times: Sequence[tuple[np.ndarray, np.ndarray]]) -> object:
    """Another alternative for each kernel, whatever was measured."""
    return {number: tried[number % len(tried)] for number in range(times[0][0].shape[1])}


@pytest.mark.parametrize("config", configs("f32", "f32-winograd4"), ids=str)
def test_what_a_search_finds_is_right(config: KernelConfig, tmp_path: Path) -> None:
    model, x = convolutions(tmp_path), regions.noise(1, 32, 28, 28)
    tuned = Native().tune(model, config, TWO_THREADS, 60.0)
    assert tuned.base == config and tuned in Native().space(model, config, TWO_THREADS)
    found = regions.answer(Native(), model, x, config=tuned, resources=TWO_THREADS)
    assert regions.error(found, regions.reference(model, x)) < 2e-6


@pytest.mark.parametrize("config", configs("f32", "f32-winograd4"), ids=str)
def test_what_it_finds_is_data_that_compiles_to_the_same_code(
    config: KernelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_ROUNDS", 2)
    monkeypatch.setattr(tuning, "choose", choose_in_turn)
    model, x = convolutions(tmp_path), regions.noise(1, 32, 28, 28)
    tuned = Native().tune(model, config, TWO_THREADS, 60.0)
    assert tuned.base == config and tuned.parameters
    read = decode(KernelConfig, json.loads(json.dumps(encode(tuned))))
    assert read == tuned and hash(read) == hash(tuned)
    assert [type(value) for _, value in read.parameters] == [type(value) for _, value in tuned.parameters]
    first = code(model, tuned, tmp_path / "first")
    assert first == code(model, tuned, tmp_path / "second") == code(model, read, tmp_path / "third")
    assert first != code(model, config, tmp_path / "base")
    found = regions.answer(Native(), model, x, config=read, resources=TWO_THREADS)
    assert regions.error(found, regions.reference(model, x)) < 2e-6


def test_the_search_starts_from_rules_of_thumb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that a configuration has already do not bias it, and none are left where the rules are best."""
    before = regions.F32.tuned({"0.mc_bytes": 1 << 16})
    model = regions.conv_net(tmp_path)
    monkeypatch.setattr(tuning, "search", lambda *_: {})
    assert Native().tune(model, before, TWO_THREADS, 60.0) == regions.F32
    monkeypatch.setattr(tuning, "search", lambda *_: {1: SMALL})
    assert Native().tune(model, before, TWO_THREADS, 60.0) == regions.F32.tuned({"1.mc_bytes": 1 << 10})


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
        Native().anatomy(model, config, Resources())


def test_the_first_kernel_that_is_not_there_is_refused(tmp_path: Path) -> None:
    model = regions.conv_net(tmp_path)
    count = len(Native().anatomy(model, regions.F32, Resources()).kernels)
    Native().compile(model, regions.F32.tuned({f"{count - 1}.prefetch": False}), Resources())
    with pytest.raises(Refused, match=f"more than {count} kernels"):
        Native().compile(model, regions.F32.tuned({f"{count}.prefetch": False}), Resources())


@pytest.mark.parametrize("choice", offered(Arithmetic(tile=4), isas.ISAS[-1]), ids=str)
def test_every_alternative_is_right(choice: KernelChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_everywhere(choice, monkeypatch)
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    tuned = Native().tune(model, KernelConfig("f32-winograd4"), TWO_THREADS, 60.0)
    found = regions.answer(Native(), model, x, config=tuned, resources=TWO_THREADS)
    assert regions.error(found, regions.reference(model, x)) < 1e-5


@pytest.mark.skipif(named("emulated-amx") is None, reason="it does not run here")
@pytest.mark.parametrize("choice", offered(Arithmetic(parts=2), isas.EMULATED_AMX), ids=str)
def test_every_alternative_for_a_matrix_unit_is_right(
    choice: KernelChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "emulated-amx")
    choose_everywhere(choice, monkeypatch)
    w = regions.noise(900, 70)
    model = regions.region(tmp_path, "y = MatMul (x, w)", "float[90, 900] x", "float[90, 70] y", w=w)
    x = regions.noise(90, 900, seed=1)
    tuned = Native().tune(model, KernelConfig("bf16x3"), TWO_THREADS, 60.0)
    found = regions.answer(Native(), model, x, config=tuned, resources=TWO_THREADS)
    assert regions.error(found, regions.reference(model, x)) < 2e-5
