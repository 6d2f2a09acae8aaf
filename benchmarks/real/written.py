"""What an artifact answers that is loaded from its file in a process of its own, and what is right."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from benchmarks.real.packages import Arrays
from bricolage.api.array_files import load_arrays
from bricolage.base.options import Options
from bricolage.cli.output import write_arrays
from bricolage.driver.sources import GivenModel, open_source
from bricolage.errors import BricolageError
from bricolage.verify.compare import Deviation, deviation
from bricolage.verify.named_arrays import load_limits, load_values
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import Evaluator, Values

_RUN_S = 300.0


@dataclass(frozen=True)
class Answer:
    """An answer from the file, on one set of inputs."""

    sizes: str
    """Of the inputs."""
    error: float = 0.0
    """The largest error of an output, against float64."""
    right: bool = False
    failed: str = ""
    """Why there was no answer; empty where there was one."""


@dataclass(frozen=True)
class Truth:
    """Float64 outputs by name, and for each the error that is still float32's own; `rounding`: the largest that rounding in
    float32 makes in the draws; `bound`: what is accepted whatever rounding does."""

    outputs: Mapping[str, object]
    limits: tuple[float, ...]
    rounding: float
    bound: float

    def judge(self, answer: Mapping[str, object]) -> tuple[float, bool]:
        """The largest error of an output, and whether the answer is right."""
        if set(answer) != set(self.outputs):
            return float("inf"), False
        found: Deviation = deviation(
            [answer[name] for name in self.outputs], list(self.outputs.values()), list(self.limits)
        )
        return found.error, found.excess <= self.bound


def _evaluate(
    model: ir.Model,
    inputs: Mapping[str, Any],
    *,
    dtype: type[np.floating[Any]] = np.float64,
    keep: Collection[str] = (),
) -> Values:
    """As the workers of `optimize` do: what has no float64 semantics is asked of ONNX Runtime without its optimisations."""
    return Evaluator(model, dtype=dtype, keep=keep, borrowing=True)(inputs)


def truth(model: Path, inputs: Arrays, options: Options) -> Truth:
    """What is right, by the product's own oracle.

    Raises:
        BricolageError: the model has no reference at these inputs.
    """
    with tempfile.TemporaryDirectory() as directory:
        opened = open_source(GivenModel(model, inputs=inputs), options, Path(directory))
        graph = opened.buckets[0].graph
        oracle = Oracle(graph, inputs, opened.store, options.bound, model.stem, evaluate=_evaluate)
        _, expected, bound = oracle.files(graph.everything)
        names = [info.name for info in graph.outputs]
        return Truth(load_values(expected, names), tuple(load_limits(expected, names)), oracle.original_error, bound)


def from_file(artifact: Path, inputs: Arrays) -> Arrays:
    """The answer of `bricolage run`.

    Raises:
        RuntimeError: it gave none, with its last words.
    """
    with tempfile.TemporaryDirectory() as directory:
        given, found = Path(directory) / "inputs.npz", Path(directory) / "outputs.npz"
        write_arrays(given, inputs)
        command = [sys.executable, "-m", "bricolage", "run", str(artifact), "--input", str(given), "-o", str(found)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S, check=False, encoding="utf-8")
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no end in {_RUN_S:.0f} s") from error
        if ran.returncode:
            words = (ran.stderr.strip() or "no output").splitlines()
            raise RuntimeError(f"exit code {ran.returncode}: {words[-1]}")
        return dict(load_arrays(found))


def check(model: Path, artifact: Path, inputs: Arrays, options: Options, known: Truth | None = None) -> Answer:
    """Runs the artifact from its file on these inputs, and judges the answer; by what is `known` to be right on them."""
    sizes = " ".join("×".join(map(str, array.shape)) or "scalar" for array in inputs.values())
    try:
        error, right = (known or truth(model, inputs, options)).judge(from_file(artifact, inputs))
    except (BricolageError, RuntimeError) as failure:
        return Answer(sizes, failed=str(failure).splitlines()[0])
    return Answer(sizes, error, right)
