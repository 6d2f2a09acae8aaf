"""Products in bfloat16: exact where the numbers allow it, rounded to the nearest where not."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.graph.inference import infer
from bricolage.native.cpu.isa import EMULATED_AMX, available_isas, find_isa
from bricolage.native.fuse.fusion import plan
from bricolage.native.fuse.kernel_plan import StorageDtypePolicy
from bricolage.native.ir.from_onnx import lower_region
from bricolage.work.implementation import KernelConfig, named
from tests.backends import regions
from tests.native.targets import FUSION

pytestmark = pytest.mark.skipif(
    not available_isas()[0].multiplies_bfloat16(host()), reason="this processor has no such products"
)

needs_unit = pytest.mark.skipif(
    find_isa(EMULATED_AMX.name) is None, reason="no matrix unit is emulated on this processor"
)
BF16 = KernelConfig("bf16")


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """So small that bfloat16 holds them, and float32 their sums."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def check(model: RegionModel, *given: np.ndarray, threads: int = 2) -> None:
    found = regions.answer(Native(), model, *given, config=BF16, resources=Resources(threads=threads))
    for value, expected in zip(found, regions.reference(model, *given), strict=True):
        assert np.array_equal(value, expected)


def test_products_with_weights_are_exact_on_small_integers(tmp_path: Path) -> None:
    shapes = [(1, 1, 1), (3, 7, 5), (29, 64, 33), (5, 129, 96), (1, 300, 200), (64, 2, 16)]
    model = regions.region(
        tmp_path,
        "\n".join(f"y{i} = MatMul (x{i}, w{i})" for i in range(len(shapes))),
        ", ".join(f"float[{m}, {k}] x{i}" for i, (m, k, _) in enumerate(shapes)),
        ", ".join(f"float[{m}, {n}] y{i}" for i, (m, _, n) in enumerate(shapes)),
        **{f"w{i}": integers(k, n, seed=1) for i, (_, k, n) in enumerate(shapes)},
    )
    check(model, *(integers(m, k) for m, k, _ in shapes))


@pytest.mark.parametrize("threads", [1, 3])
def test_products_of_two_inputs_are_exact_on_small_integers(threads: int, tmp_path: Path) -> None:
    shapes = [(1, 1, 1), (3, 7, 5), (29, 64, 33), (5, 129, 96)]
    model = regions.region(
        tmp_path,
        "\n".join(
            f"t{i} = Transpose <perm = [0, 2, 1]> (b{i}) \n y{i} = MatMul (a{i}, t{i})" for i in range(len(shapes))
        ),
        ", ".join(f"float[3, {m}, {k}] a{i}, float[3, {n}, {k}] b{i}" for i, (m, k, n) in enumerate(shapes)),
        ", ".join(f"float[3, {m}, {n}] y{i}" for i, (m, _, n) in enumerate(shapes)),
    )
    given = [x for m, k, n in shapes for x in (integers(3, m, k), integers(3, n, k, seed=1))]
    check(model, *given, threads=threads)


CONVOLUTIONS = [
    ("", (40, 3, 1, 1), (12, 13)),
    ("pads = [1, 2, 0, 1]", (40, 3, 3, 3), (11, 14)),
    ("strides = [2, 3], dilations = [2, 1]", (33, 3, 3, 2), (4, 4)),
    ("group = 3, pads = [1, 1, 1, 1]", (48, 1, 3, 3), (12, 13)),
]
"""Pointwise, padded, strided, and in groups: attributes, shapes of weights, sizes of what they make."""


def test_convolutions_are_exact_on_small_integers(tmp_path: Path) -> None:
    calls = [f"Conv <{attributes}>" if attributes else "Conv" for attributes, _, _ in CONVOLUTIONS]
    model = regions.region(
        tmp_path,
        "\n".join(f"y{i} = {call} (x, w{i})" for i, call in enumerate(calls)),
        "float[2, 3, 12, 13] x",
        ", ".join(f"float[2, {w[0]}, {out[0]}, {out[1]}] y{i}" for i, (_, w, out) in enumerate(CONVOLUTIONS)),
        **{f"w{i}": integers(*weight, seed=1) for i, (_, weight, _) in enumerate(CONVOLUTIONS)},
    )
    check(model, integers(2, 3, 12, 13))


def test_operands_are_rounded_to_the_nearest(tmp_path: Path) -> None:
    """On the way into a product, and on the way into memory between two."""
    values = regions.noise(5000, 1)
    values[:4, 0] = [np.nan, np.inf, -np.inf, 3.3e38]
    ties = (np.arange(100, dtype=np.uint32) << 16 | np.uint32(0x3F808000)).view(np.float32)
    values[10:110, 0] = ties
    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    one = np.ones((1, 1), np.float32)
    once = regions.region(tmp_path, "y = MatMul (x, w)", "float[5000, 1] x", "float[5000, 1] y", w=one)
    twice = regions.region(
        tmp_path, "h = MatMul (x, w) \n y = MatMul (h, v)", "float[5000, 1] x", "float[5000, 1] y", w=one, v=one.copy()
    )
    for model in (once, twice):
        (found,) = regions.answer(Native(), model, values, config=BF16, resources=Resources(threads=1))
        assert np.array_equal(found, expected, equal_nan=True)


def _residual_products(folder: Path) -> RegionModel:
    """Three products, of which one and the sum behind another are read by no product alone."""
    return regions.region(
        folder,
        """
        a = MatMul (x, u)
        b = Relu (a)
        c = MatMul (b, v)
        d = Add (c, x)
        e = MatMul (d, w)
        y = Add (e, d)
        """,
        "float[8, 16] x",
        "float[8, 16] y",
        u=regions.noise(16, 16),
        v=regions.noise(16, 16, seed=1),
        w=regions.noise(16, 16, seed=2),
    )


def test_only_what_products_alone_read_is_stored_in_bfloat16(tmp_path: Path) -> None:
    model = _residual_products(tmp_path)
    infer(model.model)
    inputs, outputs = lower_region(model.model)

    def stored(narrow: StorageDtypePolicy) -> list[str]:
        return [kernel.target.dtype for kernel in plan(inputs, outputs, FUSION, narrow).kernels]

    assert stored("operands") == ["bfloat16", "float32", "float32"]
    assert stored("everything") == ["bfloat16", "bfloat16", "float32"]
    assert stored("nothing") == ["float32"] * 3


@needs_unit
@pytest.mark.parametrize("config", named("bf16", "bf16-stored"), ids=str)
def test_what_is_stored_in_bfloat16_stays_close(
    config: KernelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, EMULATED_AMX.name)
    model = _residual_products(tmp_path)
    x = regions.noise(8, 16, seed=3)
    found = regions.answer(Native(), model, x, config=config, resources=Resources(threads=2))
    assert 1e-5 < regions.error(found, regions.reference(model, x)) < 1e-2


@needs_unit
@pytest.mark.parametrize(
    ("groups", "channels"), [(64, 64), (16, 64), (2, 64), (4, 72)], ids=["depthwise", "small", "large", "odd"]
)
def test_grouped_convolutions_read_what_is_stored_in_bfloat16(
    groups: int, channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, EMULATED_AMX.name)
    model = regions.region(
        tmp_path,
        f"""
        a = Conv (x, u)
        b = Conv <group = {groups}, pads = [1, 1, 1, 1]> (a, v)
        y = Conv (b, w)
        """,
        "float[1, 16, 13, 11] x",
        "float[1, 16, 13, 11] y",
        u=regions.noise(channels, 16, 1, 1),
        v=regions.noise(channels, channels // groups, 3, 3, seed=1),
        w=regions.noise(16, channels, 1, 1, seed=2),
    )
    x = regions.noise(1, 16, 13, 11, seed=3)
    found = regions.answer(Native(), model, x, config=KernelConfig("bf16-stored"), resources=Resources(threads=2))
    assert 1e-5 < regions.error(found, regions.reference(model, x)) < 2e-2


def test_attention_and_concatenations_stay_close(tmp_path: Path) -> None:
    attention, x = regions.attention_block(tmp_path), regions.noise(1, 16, 32)
    found = regions.answer(Native(), attention, x, config=BF16, resources=Resources(threads=2))
    assert 1e-6 < regions.error(found, regions.reference(attention, x)) < 2e-2
    joined = regions.region(
        tmp_path,
        """
        a = Conv (x, u)
        b = Relu (a)
        c = Conv (x, v)
        d = Concat <axis = 1> (b, c)
        y = Conv (d, w)
        """,
        "float[1, 8, 9, 9] x",
        "float[1, 24, 9, 9] y",
        u=regions.noise(24, 8, 1, 1),
        v=regions.noise(9, 8, 1, 1, seed=1),
        w=regions.noise(24, 33, 1, 1, seed=2),
    )
    image = regions.noise(1, 8, 9, 9, seed=3)
    found = regions.answer(Native(), joined, image, config=BF16, resources=Resources(threads=2))
    assert 1e-5 < regions.error(found, regions.reference(joined, image)) < 1e-2


def test_it_is_refused_where_it_gains_nothing_or_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = regions.region(tmp_path, "y = Relu (x)", "float[4] x", "float[4] y")
    with pytest.raises(Refused, match="no products"):
        Native().compile(model, BF16, Resources(threads=1))
    lacking = next(isa for isa in available_isas() if not isa.multiplies_bfloat16(host()))
    monkeypatch.setenv(FORCED_ISA_VARIABLE, lacking.name)
    with pytest.raises(Refused, match="no products of bfloat16"):
        Native().compile(regions.conv_net(tmp_path), BF16, Resources(threads=1))


def test_a_tensor_concatenated_with_a_view_of_itself(tmp_path: Path) -> None:
    """The view leads back to the concatenation, when it is asked what reads it."""
    model = regions.region(
        tmp_path,
        "s = Slice (x, start, stop, axis) \n c = Concat <axis = 1> (x, s) \n y = MatMul (c, w)",
        "float[8, 6] x",
        "float[8, 5] y",
        start=np.int64([2]),
        stop=np.int64([5]),
        axis=np.int64([1]),
        w=integers(9, 5, seed=1),
    )
    check(model, integers(8, 6))
