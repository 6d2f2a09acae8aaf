"""Subnormals, infinities, NaN and large ranges, as docs/design/native-engine.md states ("Numbers"), on every set here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.device.host import host
from bricolage.native.cpu.isa import Isa, available_isas
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

BF16 = KernelConfig("bf16")
LARGEST = np.finfo(np.float32).max
SPECIAL = np.float32(
    [np.nan, np.inf, -np.inf, 0, -0.0, 1e-40, -1e-40, 1.4e-45, 1.2e-38, LARGEST, -LARGEST, 1, -1, 95, -95, 88.9, 1e20, -1e20]
)  # fmt: skip
pytestmark = [
    pytest.mark.usefixtures("product_level"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of the reference, which numpy computes
    pytest.mark.thinned("isa"),
]
needs_bfloat16 = pytest.mark.skipif(
    not available_isas()[0].multiplies_bfloat16(host()), reason="this processor has no such products"
)


def run(model: RegionModel, *given: np.ndarray, config: KernelConfig = regions.F32) -> list[np.ndarray]:
    return regions.answer(Native(), model, *given, config=config, resources=Resources(threads=2))


def differs(found: np.ndarray, expected: np.ndarray, relative: float = 1e-5, absolute: float = 0.0) -> np.ndarray:
    """Where they do; NaN equals NaN, and infinities must be equal."""
    near = np.abs(found.astype(np.float64) - expected) <= relative * np.abs(expected.astype(np.float64)) + absolute
    return ~(near | (found == expected) | (np.isnan(found) & np.isnan(expected)))


def agree(
    model: RegionModel,
    *given: np.ndarray,
    config: KernelConfig = regions.F32,
    relative: float = 1e-5,
    absolute: float = 0.0,
) -> None:
    """With the ONNX reference implementation, in all outputs."""
    found = run(model, *given, config=config)
    for info, value, expected in zip(model.outputs, found, regions.reference(model, *given), strict=True):
        wrong = differs(value, expected, relative, absolute)
        assert not wrong.any(), f"{info}: {value[wrong][:5]} instead of {expected[wrong][:5]}"


# --- element by element


def test_functions_of_one(isa: Isa, tmp_path: Path) -> None:
    calls = [
        *(f"{name} (x)" for name in ("Relu", "Neg", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Tanh", "Softplus")),
        *(f"{name} (x)" for name in ("Floor", "Ceil", "Round", "Abs", "HardSwish", "HardSigmoid", "LeakyRelu", "Gelu")),
        'Gelu <approximate = "tanh"> (x)',
        "Clip (x, low, high)",
        *(f"Pow (x, {name})" for name in ("low", "two", "three")),
    ]
    body = "\n".join(f"y{i} = {call}" for i, call in enumerate(calls))
    x = np.tile(SPECIAL, 3)
    model = regions.region(
        tmp_path,
        body,
        f"float[{x.size}] x",
        ", ".join(f"float[{x.size}] y{i}" for i in range(len(calls))),
        opset=20,
        low=np.float32(-1),
        high=np.float32(3),
        two=np.float32(2),
        three=np.float32(3),
    )
    agree(model, x, relative=3e-6)


def test_where_they_leave_the_formula(isa: Isa, tmp_path: Path) -> None:
    """What would be subnormal is zero behind Sigmoid, Elu takes one from something near one, and the slope of PRelu is
    multiplied with negative values only."""
    model = regions.region(
        tmp_path,
        "s = Sigmoid (x) \n e = Elu (x) \n p = PRelu (x, slope) \n r = Pow (x, half)",
        f"float[{SPECIAL.size}] x",
        ", ".join(f"float[{SPECIAL.size}] {name}" for name in "sepr"),
        slope=np.full(SPECIAL.size, np.inf, np.float32),
        half=np.float32(0.5),
    )
    sigmoid, elu, prelu, root = run(model, SPECIAL)
    expected = regions.reference(model, SPECIAL)
    assert not differs(sigmoid, np.where(SPECIAL < -88.8, np.float32(0), expected[0]), absolute=1e-38).any()
    assert not differs(elu, expected[1], absolute=1.2e-7).any()
    assert not differs(prelu, np.where(SPECIAL < 0, -np.inf, SPECIAL)).any()
    assert not differs(root, np.sqrt(SPECIAL)).any()


def test_functions_of_two(isa: Isa, tmp_path: Path) -> None:
    numbers, comparisons = ("Add", "Sub", "Mul", "Div", "Max", "Min"), ("Equal", "Less", "GreaterOrEqual")
    left, right = (side.ravel() for side in np.meshgrid(SPECIAL, SPECIAL))
    names = (*numbers, *comparisons)
    model = regions.region(
        tmp_path,
        "\n".join([*(f"y{i} = {name} (a, b)" for i, name in enumerate(names)), "z = Where (y7, a, b)"]),
        f"float[{left.size}] a, float[{left.size}] b",
        ", ".join(f"{'float' if name in numbers else 'bool'}[{left.size}] y{i}" for i, name in enumerate(names))
        + f", float[{left.size}] z",
        opset=20,
    )
    found, expected = run(model, left, right), regions.reference(model, left, right)
    for name, value, correct in zip((*names, "Where"), found, expected, strict=True):
        wrong = value != correct if value.dtype == bool else differs(value, correct, 1e-6)
        assert not wrong.any(), (name, left[wrong][:5], right[wrong][:5])


# --- rows


def rows() -> np.ndarray:
    found = regions.noise(9, 37)
    found[0, 5] = np.nan
    found[1, 7] = np.inf
    found[2, 7] = -np.inf
    found[3] = -np.inf
    found[4, [3, 9]] = np.inf, -np.inf
    found[5] = 1e-40
    found[6] = LARGEST
    found[7] = 0.1
    found[8] *= 1e30
    return found


def test_reductions(isa: Isa, tmp_path: Path) -> None:
    names = ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceSumSquare")
    model = regions.region(
        tmp_path,
        "\n".join(
            f"{prefix}{i} = {name} <keepdims = 0> ({source}, {axis})"
            for i, name in enumerate(names)
            for prefix, source, axis in (("y", "x", "one"), ("z", "t", "zero"))
        ),
        "float[9, 37] x, float[37, 9] t",
        ", ".join(f"float[9] y{i}, float[9] z{i}" for i in range(len(names))),
        one=np.int64([1]),
        zero=np.int64([0]),
    )
    agree(model, rows(), np.ascontiguousarray(rows().T), relative=1e-4)


def test_softmax_and_normalisation(isa: Isa, tmp_path: Path) -> None:
    """A row of -inf alone, or with NaN or +inf in it, becomes NaN, and no other row does; constant rows become zero but for
    the rounding of their mean, rows whose squares overflow become zero, as in the formula."""
    model = regions.region(
        tmp_path,
        "y = Softmax (x) \n m = Add (x, mask) \n z = Softmax (m) \n n = LayerNormalization (x, gain)",
        "float[9, 37] x, float[9, 37] mask",
        "float[9, 37] y, float[9, 37] z, float[9, 37] n",
        gain=np.ones(37, np.float32),
    )
    x = rows()
    mask = np.where(regions.noise(9, 37, seed=1) > 0, -np.inf, 0).astype(np.float32)
    mask[7:] = -LARGEST
    agree(model, x, mask, relative=1e-4, absolute=2e-5)
    softmax, masked, normal = run(model, x, mask)
    assert np.isnan(softmax).any(axis=1).tolist() == [True, True, False, True, True, False, False, False, False]
    assert (masked[2][mask[2] == -np.inf] == 0).all()
    assert np.abs(normal[7]).max() < 1e-4 and (normal[8] == 0).all()


def test_logarithms_of_softmax_and_of_sums(isa: Isa, tmp_path: Path) -> None:
    """An infinity makes NaN of its row of a LogSoftmax, as of a Softmax's; sums of exponentials keep it."""
    model = regions.region(
        tmp_path,
        "y = LogSoftmax <axis = 1> (x) \n z = ReduceLogSumExp <keepdims = 0> (x, one)",
        "float[9, 37] x",
        "float[9, 37] y, float[9] z",
        one=np.int64([1]),
    )
    x = rows()
    found, sums = run(model, x)
    assert not differs(found, regions.reference(model, x)[0], relative=1e-5, absolute=1e-5).any()
    kept = np.array([np.nan, np.inf, sums[2], -np.inf, np.inf, np.log(37), LARGEST, 0.1 + np.log(37), x[8].max()])
    assert np.isfinite(sums[2]) and not differs(sums, kept.astype(np.float32)).any()


def test_the_first_and_the_largest(isa: Isa, tmp_path: Path) -> None:
    """A NaN counts as larger than anything, and stands behind what is smaller where the smallest come first."""
    model = regions.region(
        tmp_path,
        "a, i = TopK <axis = 1> (x, k) \n b, j = TopK <axis = 1, largest = 0> (x, k) \n m = ArgMax <axis = 1> (x)",
        "float[5, 4] x",
        "float[5, 4] a, int64[5, 4] i, float[5, 4] b, int64[5, 4] j, int64[5, 1] m",
        k=np.int64([4]),
    )
    nan, inf = np.nan, np.inf
    x = np.float32(
        [[1, nan, inf, -inf], [nan, 2, nan, 3], [nan, nan, nan, nan], [2, 2, 0.0, -0.0], [-inf, inf, -inf, 1]]
    )
    ordered = np.argsort(x, axis=1, kind="stable")  # NaN last
    backwards = np.array([[1, 2, 0, 3], [0, 2, 3, 1], [0, 1, 2, 3], [0, 1, 2, 3], [1, 3, 0, 2]])
    largest, i, smallest, j, first = run(model, x)
    assert np.array_equal(i, backwards) and np.array_equal(j, ordered)
    for found, places in ((largest, backwards), (smallest, ordered)):
        assert np.array_equal(found, np.take_along_axis(x, places, 1), equal_nan=True)
    assert first[:, 0].tolist() == backwards[:, 0].tolist()


# --- products


def test_a_bias_of_no_weight_is_not_read(isa: Isa, tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "y = Gemm <beta = 0.0> (x, w, c) \n z = Gemm <beta = 0.5> (x, w, c)",
        "float[5, 7] x",
        "float[5, 3] y, float[5, 3] z",
        w=regions.noise(7, 3),
        c=np.float32([np.nan, np.inf, 1]),
    )
    agree(model, regions.noise(5, 7, seed=1), absolute=1e-5)


def test_attention(isa: Isa, tmp_path: Path) -> None:
    """As the product, the softmax and the product would, one by one: rows that are masked as a whole, and rows with NaN or +inf
    in them become NaN, and what is not finite in the values reaches every row that does not give it a share of NaN."""
    model = regions.region(
        tmp_path,
        """
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul (q, t)
        m = Add (s, mask)
        p = Softmax <axis = -1> (m)
        y = MatMul (p, v)
        """,
        "float[1, 2, 19, 8] q, float[1, 2, 21, 8] k, float[1, 2, 21, 8] v, float[19, 21] mask",
        "float[1, 2, 19, 8] y",
    )
    kernel = Native().compile(model, regions.F32, Resources(threads=2))
    for where in ("mask", "queries", "values"):
        q, k, v = (regions.noise(1, 2, length, 8, seed=seed) for seed, length in enumerate((19, 21, 21)))
        mask = np.zeros((19, 21), np.float32)
        mask[3, 4:], mask[7, 7] = -np.inf, -np.inf
        if where == "mask":
            mask[2], mask[4, 5], mask[5, 3], mask[6] = -np.inf, np.inf, np.nan, -LARGEST
        elif where == "queries":
            q[0, 0, 9, 2], q[0, 1, 18] = np.inf, np.nan
        else:
            v[0, 0, 7], v[0, 1, 20, 3] = np.inf, np.nan
        _, (found,), call = regions.bound(kernel, model, q, k, v, mask)
        call()
        assert not differs(found, regions.reference(model, q, k, v, mask)[0], 1e-4, 1e-5).any(), where


@pytest.mark.parametrize("config", [regions.F32, pytest.param(BF16, marks=needs_bfloat16)], ids=str)
def test_matrix_products(config: KernelConfig, isa: Isa, tmp_path: Path) -> None:
    """NaN and infinities reach what they are multiplied with, and nothing beside it, also where panels are padded."""
    if config == BF16 and not isa.multiplies_bfloat16(host()):
        pytest.skip("this instruction set has no such products")
    x, b, w = regions.noise(29, 65), regions.noise(65, 33, seed=1), regions.noise(65, 70, seed=2)
    x[0, 64], x[1, 0], x[14, 32] = np.inf, -np.inf, np.nan
    x[2], x[3] = np.inf, 3e38
    b[64, 32], b[0, 0], b[31, 7], w[64, 69], w[1, 0] = np.inf, -np.inf, np.nan, np.inf, np.nan
    model = regions.region(
        tmp_path,
        "y = MatMul (x, w) \n z = MatMul (x, b)",
        "float[29, 65] x, float[65, 33] b",
        "float[29, 70] y, float[29, 33] z",
        w=w,
    )
    found, expected = run(model, x, b, config=config), regions.reference(model, x, b)
    for value, correct in zip(found, expected, strict=True):
        ordinary = np.delete(np.arange(29), 3)  # the row of 3e38 overflows, or not, depending on the order of the sum
        assert not differs(value[ordinary], correct[ordinary], 3e-2, 3e-1 if config == BF16 else 1e-4).any()
        assert not np.isfinite(value[3]).all()


def test_subnormal_operands_and_products_of_float32(isa: Isa, tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "y = MatMul (x, w) \n z = Conv (i, v)",
        "float[3, 7] x, float[1, 20, 4, 5] i",
        "float[3, 16] y, float[1, 24, 4, 5] z",
        w=np.ones((7, 16), np.float32),
        v=np.full((24, 20, 1, 1), 1e-10, np.float32),
    )
    agree(model, np.full((3, 7), 1e-41, np.float32), np.full((1, 20, 4, 5), 1e-30, np.float32), relative=1e-4)


@needs_bfloat16
def test_bfloat16_overflows_to_infinity_and_flushes_subnormals_where_it_multiplies(isa: Isa, tmp_path: Path) -> None:
    if not isa.multiplies_bfloat16(host()):
        pytest.skip("this instruction set has no such products")
    model = regions.region(
        tmp_path,
        "y = MatMul (x, w) \n z = Mul (x, two)",
        "float[5, 1] x",
        "float[5, 1] y, float[5, 1] z",
        w=np.full((1, 1), 1e-10, np.float32),
        two=np.float32(2),
    )
    x = np.float32([[LARGEST], [-LARGEST], [1e-30], [1e-40], [1]])
    product, doubled = run(model, x, config=BF16)
    assert product[:4, 0].tolist() == [np.inf, -np.inf, 0, 0]
    assert product[4, 0] == pytest.approx(1e-10, rel=1e-2)
    assert not differs(doubled, 2 * x).any()


# --- images


def spread(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where what should be finite is not; everything else must be right."""
    assert (np.isfinite(expected) | ~np.isfinite(found)).all()
    finite = np.isfinite(found)
    assert not differs(found[finite], expected[finite], 1e-4, 1e-4).any()
    more: np.ndarray = np.isfinite(expected) & ~finite
    return more


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_convolutions(value: float, isa: Isa, tmp_path: Path) -> None:
    """Of images that lie as ONNX gives them, and of those that lie channels last. Only where groups are joined by zeros does
    anything reach the outputs of another group, and then at the same places."""
    shapes = {"full": (33, 64, 3, 3), "point": (33, 64, 1, 1), "depth": (64, 1, 3, 3), "four": (64, 4, 3, 3)}
    lines, outputs = (
        ["h = Neg (x)", "s = Conv <pads = [3, 3, 3, 3], strides = [2, 2]> (c, wstem)"],
        ["float[1, 16, 5, 5] s"],
    )
    for source in "xh":
        for name, (out, inputs, size, _) in shapes.items():
            attributes = f"pads = {[size // 2] * 4}, group = {64 // inputs}"
            lines.append(f"{source}{name} = Conv <{attributes}> ({source}, w{name})")
            outputs.append(f"float[1, {out}, 9, 10] {source}{name}")
    weights = {f"w{name}": regions.noise(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    model = regions.region(
        tmp_path,
        "\n".join(lines),
        "float[1, 64, 9, 10] x, float[1, 3, 9, 10] c",
        ", ".join(outputs),
        wstem=regions.noise(16, 3, 7, 7, seed=9),
        **weights,
    )
    x, colours = regions.noise(1, 64, 9, 10), regions.noise(1, 3, 9, 10)
    x[0, 38, 4, 5] = colours[0, 1, 4, 0] = value
    found, expected = run(model, x, colours), regions.reference(model, x, colours)
    near = np.zeros((9, 10), bool)
    near[3:6, 4:7] = True
    for info, y, correct in zip(model.outputs, found, expected, strict=True):
        more = spread(y, correct)
        if info.name != "xfour":
            assert not more.any(), info
        assert not more.any(axis=(0, 1))[~near].any() if more.shape[2:] == near.shape else True


@pytest.mark.parametrize("tile", [2, 4])
def test_winograd_makes_nan_of_infinities_and_large_tiles_spread_them(tile: int, isa: Isa, tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "h = Neg (x) \n y = Conv <pads = [1, 1, 1, 1]> (h, w)",
        "float[1, 64, 28, 30] x",
        "float[1, 48, 28, 30] y",
        w=regions.noise(48, 64, 3, 3, seed=1) / 24,
    )
    x = regions.noise(1, 64, 28, 30)
    x[0, 5, 13, 17] = np.inf
    (found,) = run(model, x, config=KernelConfig(f"f32-winograd{tile}"))
    more = spread(found, regions.reference(model, x)[0])
    rows_hit, columns_hit = np.nonzero(more.any(axis=(0, 1)))
    assert np.isnan(found).any()
    assert more.any() == (tile == 4)
    assert all(abs(hit - 13) <= tile for hit in rows_hit) and all(abs(hit - 17) <= tile for hit in columns_hit)


def test_transposed_convolutions_to_few_channels_spread_it_over_all_phases(isa: Isa, tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, v)\n"
        "z = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)",
        "float[1, 16, 6, 7] x",
        "float[1, 3, 12, 14] y, float[1, 24, 12, 14] z",
        v=regions.noise(16, 3, 4, 4),
        w=regions.noise(16, 24, 4, 4, seed=1),
    )
    x = regions.noise(1, 16, 6, 7)
    x[0, 3, 2, 3] = np.inf
    found, expected = run(model, x), regions.reference(model, x)
    narrow, wide = (spread(y, correct).any(axis=(0, 1)) for y, correct in zip(found, expected, strict=True))
    assert not wide.any()
    assert narrow[2:8, 4:10].any() and narrow.sum() == narrow[2:8, 4:10].sum()


def test_pooling(isa: Isa, tmp_path: Path) -> None:
    """NaN goes through all of it; -inf is a value like any other."""
    attributes = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
    model = regions.region(
        tmp_path,
        f"""
        h = Neg (x)
        a = MaxPool <{attributes}> (x)
        b = AveragePool <{attributes}> (x)
        c = Conv <group = 20> (h, one)
        d = MaxPool <{attributes}> (c)
        e = AveragePool <{attributes}> (c)
        f = GlobalMaxPool (x)
        g = GlobalAveragePool (x)
        """,
        "float[1, 20, 9, 11] x",
        ", ".join([*(f"float[1, 20, 9, 11] {name}" for name in "abde"), "float[1, 20, 1, 1] f, float[1, 20, 1, 1] g"]),
        one=np.full((20, 1, 1, 1), 1, np.float32),
    )
    x = regions.noise(1, 20, 9, 11)
    x[0, 2, 4, 4], x[0, 3, 0, 0], x[0, 4], x[0, 5] = np.nan, np.inf, -np.inf, -LARGEST
    x[0, 6, 3, 3:5] = np.inf, -np.inf
    x[0, 7] = 1e-40

    def windows(image: np.ndarray, outside: float) -> np.ndarray:
        padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=outside)
        found: np.ndarray = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        return found

    ones = windows(np.ones((1, 1, 9, 11)), 0).sum(axis=(4, 5))
    expected = [
        each
        for image in (x, -x)
        for each in (
            windows(image, -np.inf).max(axis=(4, 5)),
            windows(image.astype(np.float64), 0).sum(axis=(4, 5)) / ones,
        )
    ]
    expected += [x.max(axis=(2, 3), keepdims=True), x.astype(np.float64).mean(axis=(2, 3), keepdims=True)]
    overflows = np.arange(20) == 5
    for info, value, correct in zip(model.outputs, run(model, x), expected, strict=True):
        mean = info.name in "beg"
        kept = ~(overflows & mean)
        assert not differs(value[:, kept], correct[:, kept], 1e-5, 1e-6).any(), info
        assert not mean or np.isinf(value[:, overflows]).all()


def test_all_threads_flush_subnormals_where_the_caller_does(isa: Isa, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = regions.region(
        tmp_path, "y = Mul (x, c)", "float[4000] x", "float[4000] y", c=np.array(2.0**-100, np.float32)
    )
    x = np.full(4000, 2.0**-40, np.float32)
    _, (y,), call = regions.bound(Native().compile(model, regions.F32, Resources(threads=2)), model, x)
    try:
        for flush in (False, True, False):
            if not torch.set_flush_denormal(flush):
                pytest.skip("this processor has no such mode")
            call()
            bits = set(y.view(np.uint32).tolist())  # comparisons of floats would flush them, too
            assert bits == ({0} if flush else {1 << 9})
    finally:
        torch.set_flush_denormal(False)
