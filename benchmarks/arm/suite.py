"""The ONNX backend suite through the native engine alone, here and on an emulated Arm processor."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from benchmarks.arm.emulation import Processor, emulate
from benchmarks.conformance.contestants import attempt
from bricolage.conformance.attempt import Result
from bricolage.conformance.suite import Case

_BACKEND = "native"
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class SuiteComparison:
    """The suite on a processor beside the same here."""

    processor: Processor
    here: dict[str, int]
    """Cases by outcome."""
    there: dict[str, int]
    differences: tuple[str, ...]
    """Cases with another outcome, and why."""
    illegal: int


def _start(processor: Processor | None) -> None:
    """What a process does first."""
    if processor is not None:
        emulate(processor)


def run_suite(cases: Sequence[Case], workers: int, processor: Processor | None = None) -> dict[str, Result]:
    """Results by name, on a processor or here."""
    with ProcessPoolExecutor(workers, mp_context=_SPAWN, initializer=_start, initargs=(processor,)) as pool:
        results = pool.map(partial(attempt, _BACKEND), cases, chunksize=4)
        return {case.name: result for case, result in zip(cases, results, strict=True)}


def compare_suite(cases: Sequence[Case], workers: int, processors: Sequence[Processor]) -> list[SuiteComparison]:
    """The suite on each processor beside the same here."""
    here = run_suite(cases, workers)
    comparisons = []
    for processor in processors:
        there = run_suite(cases, workers, processor)
        differences = tuple(
            f"{name}: {here[name].outcome} here, {result.outcome} there: {result.reason or here[name].reason}"
            for name, result in there.items()
            if result.outcome != here[name].outcome
        )
        illegal = sum("illegal instruction" in result.reason for result in there.values())
        comparisons.append(SuiteComparison(processor, _count(here), _count(there), differences, illegal))
    return comparisons


def _count(results: Mapping[str, Result]) -> dict[str, int]:
    """Cases by outcome."""
    return dict(Counter(str(result.outcome) for result in results.values()))
