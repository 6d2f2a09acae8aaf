"""The ONNX backend suite through bricolage's ONNX backend: a fixed tenth, and what is said of results."""

from __future__ import annotations

import os
import signal

import pytest

from benchmarks.conformance import expected, processes
from benchmarks.conformance.contestants import BRICOLAGE, names
from benchmarks.conformance.expected import Entry
from bricolage.conformance.attempt import Result
from bricolage.conformance.suite import Case, suite_cases, tenth

PASSED = Result("passes")


@pytest.mark.parametrize(
    "part", [pytest.param(slice(0, None, 8), id="some"), pytest.param(slice(None), id="all", marks=pytest.mark.slow)]
)
def test_a_tenth_of_the_suite(part: slice) -> None:
    """Nothing is wrong; what is refused is listed, and what is listed is refused still."""
    pytest.importorskip("onnxruntime")
    results: dict[str, Result] = {}
    processes.run(BRICOLAGE, tenth(suite_cases())[part], lambda case, result: results.update({case.name: result}))
    assert expected.complaints(results, expected.entries()) == []
    assert {result.outcome for result in results.values()} == {"passes", "refuses"}


def test_the_list_holds_no_wrong_answer() -> None:
    assert {entry.outcome for entry in expected.entries()} == {"refuses"}
    assert all(entry.reason and entry.versions and entry.cases for entry in expected.entries())


def test_complaints() -> None:
    listed = [
        Entry("refuses", "no such operator", "onnx 1", ("test_a_*",)),
        Entry("wrong", "rounding", "onnx 1", ("test_b",)),
    ]
    refused, wrong = Result("refuses", "why"), Result("wrong", "1 of 2")
    assert (
        expected.complaints({"test_a_1": refused, "test_a_2": refused, "test_b": wrong, "test_c": PASSED}, listed) == []
    )
    (unneeded,) = expected.complaints({"test_a_1": PASSED, "test_a_2": refused, "test_b": wrong}, listed)
    assert "test_a_1" in unneeded and "no longer needed" in unneeded
    (other,) = expected.complaints({"test_a_1": wrong}, listed)
    assert other == "test_a_1 wrong: 1 of 2"
    (new,) = expected.complaints({"test_d": refused}, listed)
    assert new == "test_d refuses: why"


def test_a_list_from_results_asks_for_nothing_more_and_nothing_less() -> None:
    refused = Result("refuses", "no backend claims operator 'n' (If)")
    results = {
        **{f"test_if_{i}": refused for i in range(3)},
        "test_if": PASSED,
        "test_relu_1": PASSED,
        "test_relu_2": Result("refuses", "other"),
        "test_loop": refused,
    }
    made = expected.compiled(results)
    assert expected.complaints(results, made) == []
    assert {entry.cases for entry in made} == {("test_if_*", "test_loop"), ("test_relu_2",)}
    for name in results:
        turned = {**results, name: PASSED if results[name].outcome != "passes" else refused}
        assert len(expected.complaints(turned, made)) == 1, name


def test_contestants_are_the_product_its_rival_and_every_backend_alone() -> None:
    assert names()[:2] == (BRICOLAGE, "onnxruntime's backend")
    assert "native" in names()


def test_a_case_that_brings_its_process_down_costs_itself_alone() -> None:
    small = suite_cases({"Relu"}, kinds=("node",))
    good = next(case for case in small if case.name == "test_relu")
    results: list[tuple[str, Result]] = []
    deadly = Case("deadly", _Deadly(), good.inputs, good.outputs, good.rtol, good.atol)  # type: ignore[arg-type]
    processes.run(BRICOLAGE, [good, deadly, good], lambda case, result: results.append((case.name, result)))
    assert [(name, result.outcome) for name, result in results] == [
        ("test_relu", "passes"),
        ("deadly", "crashes"),
        ("test_relu", "passes"),
    ]
    assert str(-signal.SIGKILL) in results[1][1].reason


class _Deadly:
    """Kills the process that reads it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _die, ()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
