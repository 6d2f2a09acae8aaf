"""Random regions and products of integers on the emulated processors, beside float64 and numpy's integers."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from benchmarks.arm.emulation import EmulatorEnded, Processor, emulate, optimise_less
from benchmarks.tools.output import ResultLines
from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.conformance.regions import answers
from bricolage.errors import BricolageError
from bricolage.graph.inference import infer
from bricolage.testing import SideBySide, Truth
from bricolage.testing.grow import side_by_side

_GROUP = 8
"""Regions of one library: most of the time that a small one takes to compile is spent once."""
_FIRST_SEED = 70_000
_DIMENSIONS = (1, 2, 3, 5, 8, 11, 16, 17, 31, 33, 64, 70)
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Counts:
    """What came of regions on a processor."""

    processor: Processor
    regions: int
    differences: tuple[str, ...]
    """A text for each wrong output."""
    illegal: int
    """Libraries that an illegal instruction ended."""
    refused: int = 0


def compare_random_regions(
    processors: Sequence[Processor], count: int, workers: int, kept: ResultLines
) -> list[Counts]:
    """`count` random regions on each processor, against float64."""
    return _gather(compare_regions, processors, range(_FIRST_SEED, _FIRST_SEED + count), workers, kept)


def compare_integer_products(
    processors: Sequence[Processor], count: int, workers: int, kept: ResultLines
) -> list[Counts]:
    """`count` products of bytes on each processor, bit for bit."""
    return _gather(compare_products, processors, range(_FIRST_SEED, _FIRST_SEED + count), workers, kept)


def _gather(
    compare: Callable[[Sequence[Processor], range], list[Counts]],
    processors: Sequence[Processor],
    seeds: range,
    workers: int,
    kept: ResultLines,
) -> list[Counts]:
    """Counts by processor of all seeds, whose groups several processes take. What is kept is not compared again."""
    groups = [seeds[start : start + _GROUP] for start in range(0, len(seeds), _GROUP)]

    def name(processor: Processor, group: range) -> str:
        return f"{compare.__name__} {processor.isa} {processor.model} {group.start}:{group.stop}"

    with ProcessPoolExecutor(workers, mp_context=_SPAWN) as pool:
        futures = {}
        for group in groups:
            missing = [processor for processor in processors if name(processor, group) not in kept.values]
            if missing:
                futures[pool.submit(compare_at_level, compare, missing, group)] = group
        for future in as_completed(futures):
            for each in future.result():
                kept.add(
                    name(each.processor, futures[future]), each.regions, each.differences, each.illegal, each.refused
                )
    return [
        _sum_counts(processor, [kept.values[name(processor, group)] for group in groups]) for processor in processors
    ]


def _sum_counts(processor: Processor, rows: Sequence[Sequence[Any]]) -> Counts:
    """Counts of a processor's groups together."""
    differences = tuple(text for _, texts, _, _ in rows for text in texts)
    return Counts(
        processor,
        sum(regions for regions, *_ in rows),
        differences,
        sum(illegal for _, _, illegal, _ in rows),
        sum(refused for *_, refused in rows),
    )


def compare_at_level(
    compare: Callable[[Sequence[Processor], range], list[Counts]], processors: Sequence[Processor], seeds: range
) -> list[Counts]:
    """What `compare` says of a group. A tenth of groups is compiled at the product's level, half of them for two threads."""
    whole = seeds.start // _GROUP % 20 in (0, 11)
    with nullcontext() if whole else optimise_less():
        return compare(processors, seeds)


def compare_regions(processors: Sequence[Processor], seeds: range) -> list[Counts]:
    """Regions of these seeds, as one library, on each processor. Two threads run every other library, one the others."""
    graph = SideBySide(seeds)
    model: ir.Model = ir.from_proto(graph.proto())
    infer(model)
    feeds = graph.feeds(0)
    truth = Truth(model, feeds)

    def differences(outputs: dict[str, np.ndarray]) -> Iterator[str]:
        yield from map(str, truth.wrong(outputs))

    return [_compare(processor, model, feeds, seeds, differences) for processor in processors]


def compare_products(processors: Sequence[Processor], seeds: range) -> list[Counts]:
    """A product of each seed, as one library, on each processor."""
    products = {f"p{seed}_": _integer_product(seed) for seed in seeds}
    model: ir.Model = ir.from_proto(side_by_side({prefix: each.model for prefix, each in products.items()}))
    infer(model)
    feeds = {prefix + "x": each.left for prefix, each in products.items()}

    def differences(outputs: dict[str, np.ndarray]) -> Iterator[str]:
        for prefix, each in products.items():
            if not np.array_equal(outputs[prefix + "y"], each.expected):
                yield f"{prefix}y: {each.left.shape} x {each.right_shape} of {each.left.dtype} differs"

    return [_compare(processor, model, feeds, seeds, differences) for processor in processors]


def _compare(
    processor: Processor,
    model: ir.Model,
    feeds: dict[str, np.ndarray],
    seeds: range,
    differences: Callable[[dict[str, np.ndarray]], Iterator[str]],
) -> Counts:
    """What comes of a library on a processor, in two runs of it."""
    emulate(processor)
    resources = Resources(threads=1 + seeds.start // _GROUP % 2)
    where = f"seeds {seeds.start} to {seeds.stop - 1}"
    try:
        runs = answers(Native(), model, feeds, resources=resources)
    except EmulatorEnded as error:
        illegal = int("illegal" in str(error))
        return Counts(processor, len(seeds), (f"{where}: {error}",), illegal)
    except BricolageError as error:
        return Counts(processor, len(seeds), (f"{where}: {error}",), 0, refused=len(seeds))
    texts = dict.fromkeys(text for outputs in runs for text in differences(outputs))
    return Counts(processor, len(seeds), tuple(texts), 0)


@dataclass(frozen=True)
class _IntegerProduct:
    """A model of one product, an input of it, and its result in int64."""

    model: onnx.ModelProto
    left: np.ndarray
    right_shape: tuple[int, ...]
    expected: np.ndarray


def _integer_product(seed: int) -> _IntegerProduct:
    """MatMulInteger of bytes with a sign or without, with a zero point or without; every third has the bytes for which a sum of two
    products leaves int16."""
    choose, numbers = random.Random(seed), np.random.default_rng(seed)
    batch, m, k, n = choose.choice([1, 1, 3]), *(choose.choice(_DIMENSIONS) for _ in range(3))
    kinds = choose.choice([np.uint8, np.int8]), np.int8
    extreme = seed % 3 == 0

    def draw(kind: type, *shape: int) -> np.ndarray:
        ends = np.iinfo(kind)
        values = numbers.integers(ends.min, ends.max + 1, shape)
        return (np.where(values % 2, ends.max, ends.min) if extreme else values).astype(kind)

    left, right = draw(kinds[0], batch, m, k), draw(kinds[1], k, n)
    zero = draw(kinds[0], 1)[0] if choose.random() < 0.5 else kinds[0](0)
    expected = (left.astype(np.int64) - int(zero)) @ right.astype(np.int64)
    constants = [numpy_helper.from_array(right, "w"), numpy_helper.from_array(np.asarray(zero), "zero")]
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in (kinds[0], np.int32)]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", types[0], left.shape)],
        [helper.make_tensor_value_info("y", types[1], expected.shape)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return _IntegerProduct(model, left, right.shape, expected.astype(np.int32))
