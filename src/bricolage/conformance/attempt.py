"""One trial on one backend, the way regions run: a file and its weights, compiled, bound to buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import onnx
import onnx.compose
import onnx_ir as ir

from bricolage.backends.interface import Backend, Resources
from bricolage.base import scratch
from bricolage.conformance.expected_outputs import difference
from bricolage.conformance.regions import run_bound, write_region
from bricolage.conformance.trial_cases import OperatorTrial
from bricolage.errors import BricolageError, Refused, UnsupportedOperator
from bricolage.graph.graph import Graph

Outcome = Literal["passes", "refuses", "wrong", "crashes", "times-out", "void"]
"""`void`: the expected outputs do not hold for the version tried, so the trial says nothing."""
_REASON_LENGTH = 160


@dataclass(frozen=True)
class Result:
    """What came of a trial, with the reason where it did not pass."""

    outcome: Outcome
    reason: str = ""


def attempt_trial(backend: Backend, trial: OperatorTrial, resources: Resources) -> Result:
    """Compiles and runs one trial in this process and compares the outputs with the expected ones. Static models run
    through `Kernel.bind` and must give the same answer in two calls; all others through `Kernel.run`."""
    with scratch.using(scratch.temporary()) as folder:
        region = write_region(ir.from_proto(trial.model), folder)
        try:
            kernel = backend.compile(region, backend.configs("highest", resources.device)[0], resources)
            static = all(info.static for info in (*region.inputs, *region.outputs))
            runs = run_bound(kernel, region, trial.inputs) if static else [kernel.run(list(trial.inputs))]
        except (Refused, UnsupportedOperator) as error:
            return Result("refuses", _short(error.facts.get("reason", error)))
        except BricolageError as error:
            return Result("refuses", _short(error.sentence))
        except Exception as error:  # whatever a framework raises is an outcome here
            return Result("refuses", _short(f"{type(error).__name__}: {error}"))
        for run in runs:
            wrong = difference(trial.outputs, run, trial.rtol, trial.atol)
            if wrong is not None:
                return Result("void") if trial.doubtful() else Result("wrong", _short(wrong))
    return Result("passes")


def attempt_together(backend: Backend, trials: Sequence[OperatorTrial], resources: Resources) -> list[Result]:
    """As `attempt_trial` for each trial, with static trials of one opset compiled as one model, for backends that take seconds to
    compile anything. A batch that fails in any way is halved, down to trials that then fail by themselves."""
    results: dict[str, Result] = {}
    by_opset: dict[tuple[tuple[str, int], ...], list[OperatorTrial]] = {}
    for trial in trials:
        if trial.operator and _static(trial):
            imports = tuple(sorted((o.domain, o.version) for o in trial.model.opset_import))
            by_opset.setdefault(imports, []).append(trial)
        else:
            results[trial.name] = attempt_trial(backend, trial, resources)
    for group in by_opset.values():
        results.update(_halving(backend, group, resources))
    return [results[trial.name] for trial in trials]


def _halving(backend: Backend, trials: Sequence[OperatorTrial], resources: Resources) -> dict[str, Result]:
    if len(trials) > 1 and attempt_trial(backend, _merge_trials(trials), resources).outcome == "passes":
        return {trial.name: Result("passes") for trial in trials}
    if len(trials) == 1:
        return {trials[0].name: attempt_trial(backend, trials[0], resources)}
    half = len(trials) // 2
    return {**_halving(backend, trials[:half], resources), **_halving(backend, trials[half:], resources)}


def _static(trial: OperatorTrial) -> bool:
    graph = Graph(ir.from_proto(trial.model))
    return graph.static and bool(trial.outputs)


def _merge_trials(trials: Sequence[OperatorTrial]) -> OperatorTrial:
    """One trial of all: their graphs side by side. Its tolerances are the strictest, so what passes would pass alone."""
    merged = onnx.ModelProto()
    merged.CopyFrom(trials[0].model)
    merged.ir_version = max(trial.model.ir_version for trial in trials)
    for name in ("node", "input", "output", "initializer", "value_info", "sparse_initializer"):
        merged.graph.ClearField(name)
    for number, trial in enumerate(trials):
        graph = onnx.compose.add_prefix(trial.model, f"t{number}_").graph
        for name in ("node", "input", "output", "initializer", "value_info", "sparse_initializer"):
            getattr(merged.graph, name).extend(getattr(graph, name))
    return replace(
        trials[0],
        name="batch",
        model=merged,
        inputs=tuple(value for trial in trials for value in trial.inputs),
        outputs=tuple(value for trial in trials for value in trial.outputs),
        rtol=min(trial.rtol for trial in trials),
        atol=min(trial.atol for trial in trials),
    )


def _short(reason: object) -> str:
    return " ".join(str(reason).split())[:_REASON_LENGTH]
