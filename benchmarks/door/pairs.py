"""Operators at the types of their inputs, at opset 21: what ONNX Runtime runs, and what of it bricolage serves."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.door.processes import tell
from bricolage.api.optimize import optimize
from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.operator_features import RUNTIME, version_class
from bricolage.base.options import Options
from bricolage.conformance.attempt import attempt_trial
from bricolage.conformance.bases import base_cases
from bricolage.conformance.expected_outputs import difference
from bricolage.conformance.generated_cases import types_of
from bricolage.conformance.suite import Case, suite_cases
from bricolage.conformance.trial_cases import OperatorTrial, trials
from bricolage.driver.context import open_pool
from bricolage.errors import BricolageError
from bricolage.verify.randomness import random_outputs

OPSET = 21
_OURS = Options(effort="instant")


@dataclass(frozen=True)
class Pair:
    """An operator with the types of what it reads, and a trial that has them."""

    name: str
    trial: OperatorTrial


def pairs(operators: Collection[str] | None = None) -> list[Pair]:
    """One of each, by name; of `operators` alone where these are given. Those with parameters as constants come before those with
    values of the run, since models mostly have such."""
    found: dict[str, OperatorTrial] = {}
    given = [*suite_cases(operators, kinds=("node",)), *base_cases(operators)]
    for trial in sorted(trials(given), key=lambda trial: trial.kind.endswith(RUNTIME)):
        if not trial.operator or random_outputs(ir.from_proto(trial.model)):
            continue
        node = trial.model.graph.node[0]
        if not node.domain and trial.version != str(version_class("", node.op_type, OPSET)):
            continue
        operator, read, _ = types_of(Case(trial.name, trial.model, trial.inputs, trial.outputs, trial.rtol, trial.atol))
        names = [onnx.TensorProto.DataType.Name(kind).lower() if kind else "-" for kind in read]
        found.setdefault(f"{operator.removeprefix('::')}({', '.join(names)})", trial)
    return [Pair(name, _at_opset(_defined(found[name]))) for name in sorted(found)]


def _defined(trial: OperatorTrial) -> OperatorTrial:
    """The trial with numbers in the place of NaN and infinities that it casts to integers: what comes of them is left open."""
    if trial.model.graph.node[0].op_type not in ("Cast", "CastLike"):
        return trial
    given, made = np.asarray(trial.inputs[0]), np.asarray(trial.outputs[0])
    if made.dtype.kind not in "iu" or given.dtype.kind not in "fV":
        return trial
    numbers = given.astype(np.float64)
    if np.isfinite(numbers).all():
        return trial
    finite = np.where(np.isfinite(numbers), numbers, 1.0)
    return replace(trial, inputs=(finite.astype(given.dtype), *trial.inputs[1:]), outputs=(finite.astype(made.dtype),))


def _at_opset(trial: OperatorTrial) -> OperatorTrial:
    for entry in trial.model.opset_import:
        if not entry.domain:
            entry.version = OPSET
    return trial


def sample(names: Sequence[str], count: int | None, seed: int = 0) -> list[str]:
    """So many of the names, always the same; all without a count."""
    if count is None or count >= len(names):
        return list(names)
    return sorted(random.Random(seed).sample(list(names), count))


def run_by_onnxruntime(chosen: Sequence[Pair]) -> None:
    """Tells of each pair whether ONNX Runtime runs it: "runs" or "refuses"."""
    backend = registry.get("onnxruntime")
    for pair in chosen:
        result = attempt_trial(backend, pair.trial, Resources(threads=1))
        tell(pair.name, "refuses" if result.outcome == "refuses" else "runs", result.reason)


def served(chosen: Sequence[Pair]) -> None:
    """Tells of each pair what bricolage makes of it: "right", "refused", "wrong" or "broken"."""
    with open_pool(_OURS) as pool:
        for pair in chosen:
            names = [info.name for info in pair.trial.model.graph.input]
            given = dict(zip(names, pair.trial.inputs, strict=True))
            try:
                fast = optimize(pair.trial.model, _OURS, inputs=given, pool=pool)
                answers = fast.run(given)
                found = [answers[info.name] for info in pair.trial.model.graph.output]
                wrong = difference(pair.trial.outputs, found, pair.trial.rtol, pair.trial.atol)
                tell(pair.name, "wrong" if wrong else "right", wrong or "")
            except BricolageError as error:
                tell(pair.name, "refused", str(error))
            except Exception as error:  # whatever else is raised is a row here
                tell(pair.name, "broken", f"{type(error).__name__}: {error}")
