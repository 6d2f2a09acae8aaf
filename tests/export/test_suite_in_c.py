"""Cases of the ONNX suite as C libraries, many in one program: every bit that Python gives, on one thread and two; on other kinds
of processors what the suite accepts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from bricolage.conformance.expected_outputs import difference
from bricolage.conformance.suite import KINDS, Case, suite_cases, tenth
from bricolage.native.cpu import toolchain
from tests.export.batches import (
    LEVEL,
    Model,
    PreparedCase,
    build_program,
    differing,
    export_batch,
    in_batches,
    outputs_of,
    prepare_case,
)
from tests.export.exported import need, zig
from tests.export.test_targets import ARM, run_wasi

OPERATORS = ("Conv", "Gather", "Gemm", "LayerNormalization", "MaxPool", "QLinearMatMul", "ReduceSum", "Softmax", "TopK")
BATCH, LINKED = 25, 8
"""Cases in a model, and models in a program."""


@pytest.fixture(scope="module", autouse=True)
def quick_optimisation() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(toolchain.LEVEL_VARIABLE, LEVEL)
        yield


def taken(cases: Sequence[Case]) -> list[PreparedCase]:
    """Those of which our engine has C."""
    return [each for each in map(prepare_case, cases) if not isinstance(each, str)]


@pytest.fixture(scope="module")
def few() -> list[PreparedCase]:
    """Of one opset, so that they fit into two models."""
    groups = in_batches(taken(suite_cases(OPERATORS)[::4]), 1000)
    return max(groups, key=len)[:16]


@pytest.fixture(scope="module")
def suite() -> list[Case]:
    """But for the networks."""
    return suite_cases(kinds=[kind for kind in KINDS if kind != "real"])


def export_all(
    cases: Sequence[PreparedCase], folder: Path, threads: int, size: int = BATCH, target: str = ""
) -> Iterator[list[Model]]:
    """Models that fit into one program."""
    batches = in_batches(cases, size)
    for start in range(0, len(batches), LINKED):
        numbered = enumerate(batches[start : start + LINKED], start)
        yield [export_batch(batch, f"m{n}", folder / f"m{n}", threads, target) for n, batch in numbered]


@pytest.mark.parametrize("threads", [1, 2])
def test_models_in_one_program_give_every_bit(threads: int, few: list[PreparedCase], tmp_path: Path) -> None:
    (models,) = export_all(few, tmp_path, threads, size=8)
    assert len(models) == 2 and len(few) == 16
    subprocess.run([str(build_program(models, tmp_path)), str(tmp_path)], check=True, timeout=60)
    assert not [name for model in models for name in differing(model)]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_every_case_gives_every_bit(threads: int, suite: list[Case], tmp_path: Path) -> None:
    cases, count, wrong = taken(suite), 0, list[str]()
    for models in export_all(cases, tmp_path, threads):
        subprocess.run([str(build_program(models, tmp_path)), str(tmp_path)], check=True, timeout=120)
        wrong += [name for model in models for name in differing(model)]
        count += sum(len(model.cases) for model in models)
    assert not wrong
    assert count == len(cases) > 1400


@pytest.mark.slow
@pytest.mark.parametrize("target", ["aarch64-linux", "wasm32-wasi"])
def test_other_targets_answer_what_the_suite_accepts(target: str, suite: list[Case], tmp_path: Path) -> None:
    if target == "aarch64-linux":
        need("aarch64-linux-gnu-gcc", "qemu-aarch64")
        compiler = ["aarch64-linux-gnu-gcc"]
    else:
        compiler = [zig(), "cc", "-target", target]
    cases, wrong = taken(tenth(suite)), dict[str, str]()
    for models in export_all(cases, tmp_path, 2, target=target):
        program = build_program(models, tmp_path, compiler)
        if target == "aarch64-linux":
            subprocess.run([*ARM, str(program), str(tmp_path)], check=True, timeout=120)
        else:
            assert run_wasi(program, tmp_path, tmp_path / "out", "/share", writes=True)[0] == 0
        for model in models:
            wrong |= _unlike_the_suite(model)
    assert not wrong and len(cases) > 100


def _unlike_the_suite(model: Model) -> dict[str, str]:
    """How cases differ from what the suite expects, by name."""
    outputs, wrong = iter(outputs_of(model)), {}
    for each in model.cases:
        answers = [next(outputs) for _ in each.model.graph.output]
        complaint = difference(
            [np.asarray(value) for value in each.case.outputs], answers, each.case.rtol, each.case.atol
        )
        if complaint is not None:
            wrong[each.case.name] = complaint
    return wrong
