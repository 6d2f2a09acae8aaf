"""A cache that lies in memory between runs: rows are written where they belong, and attention ends where a sequence does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.device.buffers import allocate_aligned
from bricolage.graph.inference import infer
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.select.replaced_rows import SHARED_FROM
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.targets import FUSION
from tests.native.ways import ISAS

POOL, LONGEST = 400, 200
STARTS, LENGTHS = np.array([10, 10, 220, 0]), np.array([130, 131, 64, 0])
"""Two rows of one sequence, one of another whose last chunk is whole, and one that is not used."""
PLACES = np.array([139, 140, 283, 0])


def cache(folder: Path, kind: str, key_heads: int, group: int, size: int) -> RegionModel:
    """Four rows: written into a pool of keys, and attended to it and to a pool of values."""
    width, heads = key_heads * size, key_heads * group
    half = kind == "float16"
    body = f"""
        U = Mul (u, two)
        {"H = Cast <to = 10> (U)" if half else ""}
        K = ScatterND (k, places, {"H" if half else "U"})
        rows = Add (starts, behind)
        G = Gather <axis = 0> (K, rows)
        D = Gather <axis = 0> (v, rows)
        {"W = Cast <to = 1> (G) X = Cast <to = 1> (D)" if half else ""}
        Y = Attention <q_num_heads = {heads}, kv_num_heads = {key_heads}>
            (q, {"W, X" if half else "G, D"}, , , , lengths)
        y = Mul (Y, two)
    """
    inputs = (
        f"float[4, 1, {heads * size}] q, float[4, {width}] u, int64[4, 1] places, int64[4, 1] starts, int64[4] lengths,"
        f" {kind}[{POOL}, {width}] k, {kind}[{POOL}, {width}] v"
    )
    outputs = f"float[4, 1, {heads * size}] y, {kind}[{POOL}, {width}] K"
    constants = {"two": np.array(2, np.float32), "behind": np.arange(LONGEST, dtype=np.int64)}
    return regions.region(folder, body, inputs, outputs, opset=24, **constants)


def values_of(model: RegionModel) -> dict[str, np.ndarray]:
    values = {info.name: regions.noise(*info.sizes, seed=i).astype(info.numpy) for i, info in enumerate(model.inputs)}
    for name, numbers in (("places", PLACES), ("starts", STARTS), ("lengths", LENGTHS)):
        values[name] = numbers.reshape(values[name].shape)
    return values


def expected(values: dict[str, np.ndarray], key_heads: int, group: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """By loops, in float64."""
    keys = values["k"].copy()
    keys[PLACES] = (values["u"] * 2).astype(keys.dtype)
    results = np.zeros((4, key_heads * group, size))
    for row in range(4):
        seen = slice(STARTS[row], STARTS[row] + LENGTHS[row])
        for head in range(key_heads * group if LENGTHS[row] else 0):
            part = slice(head // group * size, (head // group + 1) * size)
            query = values["q"][row, 0, head * size : (head + 1) * size].astype(np.float64)
            scores = keys[seen, part].astype(np.float64) @ query / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            results[row, head] = weights @ values["v"][seen, part].astype(np.float64) / weights.sum()
    return 2 * results.reshape(4, 1, -1), keys


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name, indirect=True)
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("kind", "key_heads", "group", "size"), [("float16", 3, 3, 64), ("float", 2, 1, 20)])
def test_rows_are_written_and_read(tmp_path: Path, kind: str, key_heads: int, group: int, size: int) -> None:
    model = cache(tmp_path, kind, key_heads, group, size)
    infer(model.model)
    kinds = [kernel.kind for kernel in plan(*lower_region(model.model), FUSION).kernels]
    assert kinds == ["replacedrows", "cachedattention"]
    values = values_of(model)
    right, keys = expected(values, key_heads, group, size)
    answers = []
    for threads in (1, 2):
        kernel = Native().compile(model, KernelConfig("f32"), Resources(threads=threads))
        given, made = (
            [allocate_aligned(info.sizes, info.numpy) for info in ends] for ends in (model.inputs, model.outputs)
        )
        for array, info in zip(given, model.inputs, strict=True):
            array[...] = values[info.name]
        kernel.bind(given, made)()
        assert np.array_equal(made[1], keys), "what is not replaced is copied"
        answers.append(made[0].copy())
        pool = given[5]
        kernel.bind(given, [made[0], pool])()
        assert np.array_equal(pool, keys)
        answers.append(made[0])
    assert np.abs(answers[0] - right).max() < 1e-5 * np.abs(right).max()
    assert not answers[0][3].any(), "a row without a sequence is zeros"
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


def attention(folder: Path, kind: str, rows: int, key_heads: int, group: int, size: int) -> RegionModel:
    """Rows of queries that are attended to a pool of keys and one of values."""
    width, heads = key_heads * size, key_heads * group
    casts = "W = Cast <to = 1> (G) X = Cast <to = 1> (D)" if kind == "float16" else "W = Identity (G) X = Identity (D)"
    body = f"""
        at = Add (starts, behind)
        G = Gather <axis = 0> (k, at)
        D = Gather <axis = 0> (v, at)
        {casts}
        y = Attention <q_num_heads = {heads}, kv_num_heads = {key_heads}> (q, W, X, , , , lengths)
    """
    inputs = (
        f"float[{rows}, 1, {heads * size}] q, int64[{rows}, 1] starts, int64[{rows}] lengths,"
        f" {kind}[{POOL}, {width}] k, {kind}[{POOL}, {width}] v"
    )
    behind = np.arange(LONGEST, dtype=np.int64)
    return regions.region(folder, body, inputs, f"float[{rows}, 1, {heads * size}] y", opset=24, behind=behind)


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name, indirect=True)
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("kind", "key_heads", "group", "size"), [("float16", 2, 3, 64), ("float", 1, 5, 32)])
def test_rows_of_a_tile_have_the_bits_that_they_have_alone(
    tmp_path: Path, kind: str, key_heads: int, group: int, size: int
) -> None:
    """A prompt that ends a chunk within a tile, rows of a sliding window, rows of other sequences, and unused ones."""
    starts = np.array([10] * 40 + [*range(90, 122)] + [300, 20] + [0] * 6)
    lengths = np.array([*range(40, 80)] + [130] * 32 + [64, 7] + [0] * 6)
    count, few = len(starts), 4
    whole = attention(tmp_path, kind, count, key_heads, group, size)
    given = [regions.noise(*info.sizes, seed=i).astype(info.numpy) for i, info in enumerate(whole.inputs)]
    given[1:3] = starts[:, None], lengths
    # The last row of the prompt alone sees row 88: what is no number there comes into no other row's sums.
    given[3][[88, 89, 251]] = given[4][[88, 89, 251]] = np.nan
    (tmp_path / "few").mkdir()
    model = attention(tmp_path / "few", kind, few, key_heads, group, size)
    kernel = Native().compile(model, KernelConfig("f32"), Resources(threads=1))
    inputs, (result,), call = regions.bound(kernel, model, *(array[:few] for array in given[:3]), *given[3:])
    alone = []
    for first in range(0, count, few):
        for array, values in zip(inputs, given[:3], strict=False):
            array[...] = values[first : first + few]
        call()
        alone.append(result.copy())
    expected_bits = np.concatenate(alone)
    assert np.array_equal(np.isfinite(expected_bits).all(axis=(1, 2)), np.arange(count) != 39)
    for threads in (1, 2):
        (found,) = regions.answer(Native(), whole, *given, resources=Resources(threads=threads))
        assert np.array_equal(found, expected_bits, equal_nan=True)


def test_of_rows_for_one_place_the_last_counts(tmp_path: Path) -> None:
    count = 2 * SHARED_FROM
    body = "K = ScatterND (k, places, u)"
    inputs = f"float[{count}, 5] u, int64[{count}, 1] places, float[9, 5] k"
    model = regions.region(tmp_path, body, inputs, "float[9, 5] K", opset=24)
    places = np.random.default_rng(0).integers(-9, 9, (count, 1))
    updates, before = regions.noise(count, 5, seed=1), regions.noise(9, 5, seed=2)
    right = before.copy()
    for place, update in zip(places[:, 0], updates, strict=True):
        right[place] = update
    found = regions.answer(Native(), model, updates, places, before, resources=Resources(threads=2))
    assert np.array_equal(found[0], right)


def test_what_follows_replaced_rows_is_done_to_all_rows(tmp_path: Path) -> None:
    body = "K = ScatterND (k, places, u) y = Relu (K) t = Transpose (K) z = Neg (t)"
    inputs = "float[2, 5] u, int64[2, 1] places, float[9, 5] k"
    model = regions.region(tmp_path, body, inputs, "float[9, 5] y, float[5, 9] z", opset=24)
    given = regions.noise(2, 5, seed=1), np.array([[3], [-1]]), regions.noise(9, 5, seed=2)
    assert regions.error(regions.answer(Native(), model, *given), regions.reference(model, *given)) == 0


def test_other_attention_is_what_it_was(tmp_path: Path) -> None:
    """Queries of several positions: the products that the operator is defined by, with the same answer as float64's."""
    body = "y = Attention <q_num_heads = 2, kv_num_heads = 1, is_causal = 1> (q, k, v, , , , lengths)"
    inputs = "float[2, 3, 16] q, float[2, 7, 8] k, float[2, 7, 8] v, int64[2] lengths"
    model = regions.region(tmp_path, body, inputs, "float[2, 3, 16] y", opset=24)
    given = [regions.noise(*info.sizes, seed=i) for i, info in enumerate(model.inputs[:3])] + [np.array([5, 7])]
    assert regions.error(regions.answer(Native(), model, *given), regions.reference(model, *given)) < 1e-6
