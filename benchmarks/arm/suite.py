"""The ONNX backend suite through the native engine alone, here and on an emulated Arm processor."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from benchmarks.arm.emulation import Processor, emulate, optimise_less
from benchmarks.conformance.contestants import attempt
from benchmarks.tools.output import ResultLines
from bricolage.conformance.attempt import Result
from bricolage.conformance.suite import Case, tenth

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


def attempt_here(case: Case) -> list[Result]:
    """What comes of a case on this machine's processor."""
    with _at_level(case):
        return [attempt(_BACKEND, case)]


def attempt_there(processors: Sequence[Processor], case: Case) -> list[Result]:
    """What comes of a case on each processor, in a process that is for emulated ones. One after another, they share a library where
    it is the same."""
    results = []
    for processor in processors:
        emulate(processor)
        with _at_level(case):
            results.append(attempt(_BACKEND, case))
    return results


def _at_level(case: Case) -> AbstractContextManager[None]:
    """A tenth of cases is compiled at the product's level."""
    return nullcontext() if tenth([case]) else optimise_less()


def run_suite(
    attempt_case: Callable[[Case], list[Result]],
    columns: Sequence[str],
    cases: Sequence[Case],
    workers: int,
    kept: ResultLines,
) -> list[dict[str, Result]]:
    """For each column, of which `attempt_case` has a result, results by case. Cases whose results are kept are not tried again."""
    with ProcessPoolExecutor(workers, mp_context=_SPAWN) as pool:
        missing = [case for case in cases if any(f"{column} {case.name}" not in kept.values for column in columns)]
        futures = {pool.submit(attempt_case, case): case for case in missing}
        for future in as_completed(futures):
            for column, result in zip(columns, future.result(), strict=True):
                kept.add(f"{column} {futures[future].name}", result.outcome, result.reason)
    return [{case.name: Result(*kept.values[f"{column} {case.name}"]) for case in cases} for column in columns]


def compare_suite(
    cases: Sequence[Case], workers: int, processors: Sequence[Processor], kept: ResultLines
) -> list[SuiteComparison]:
    """The suite on each processor beside the same here."""
    (here,) = run_suite(attempt_here, ["here"], cases, workers, kept)
    columns = [f"{processor.isa} {processor.model}" for processor in processors]
    comparisons = []
    for processor, there in zip(
        processors, run_suite(partial(attempt_there, processors), columns, cases, workers, kept), strict=True
    ):
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
