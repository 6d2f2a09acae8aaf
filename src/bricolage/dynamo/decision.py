"""Two ways to decide a graph: by measuring, as any model is decided, or by learnt costs alone, where measuring takes too long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bricolage.api.optimize import optimize
from bricolage.base.budget import DecisionBudget
from bricolage.base.options import Options
from bricolage.driver.unmeasured import UnmeasuredPlans
from bricolage.dynamo.answers import Form, Outputs, RealEnds, answer_difference, check_in_float64, real
from bricolage.errors import BackendFailed, BricolageError, LeftToPyTorch, Refused
from bricolage.plan.plan import Bucket
from bricolage.runtime.executable import Executable
from bricolage.runtime.signature import describe_inputs

_FARTHER = 4.0
"""Eager may be this many times as far from ours as the farthest accepted answer is from float64."""
_TRIES = 3
"""Plans that are compiled and raced with eager where learnt costs decide."""
_LONGEST = 300
"""Of a reason, characters."""
_EXPORTER_S, _OPERATOR_S = 2.0, 0.01
"""What loading PyTorch's exporter takes, once in a process; and exporting an operator."""


@dataclass(frozen=True)
class GraphCall:
    """A graph with its weights, at one call."""

    module: torch.nn.Module
    """From `inputs` to `expected`."""
    inputs: Sequence[torch.Tensor]
    expected: Outputs
    dynamic: tuple[dict[int, object], ...] | None
    operators: int
    options: Options
    note: Callable[..., None]
    """Is told fields of the graph's report."""
    win: Callable[[Callable[[], object]], None]
    """Races a call with eager; raises `LeftToPyTorch` where eager is faster."""

    @property
    def traced(self) -> torch.nn.Module:
        """The module as ONNX can hold it."""
        ends = [source.dtype for source in self.inputs]
        whole = any(entry.is_complex for entry in (*ends, *(entry.dtype for entry in self.expected)))
        return RealEnds(self.module, ends) if whole else self.module

    @property
    def examples(self) -> tuple[torch.Tensor, ...]:
        """What it is traced with."""
        return tuple(real(source.detach()) for source in self.inputs)


@dataclass(frozen=True)
class Kept:
    """What was decided on."""

    executable: Executable
    form: Form
    plans: object = None
    """Has to stay as long as the executable."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        """Results as eager would return them."""
        return self.form(self.executable(*map(real, inputs)))

    def of(self, *inputs: torch.Tensor) -> Outputs:
        """The same."""
        return self(inputs)


def by_measuring(case: GraphCall, replan: bool, provisional: bool) -> Kept:
    """What `optimize` decides on, where it is right and faster than eager.

    Raises:
        LeftToPyTorch: it is not.
        and as `optimize`.
    """
    executable = optimize(
        case.traced,
        case.options,
        example_inputs=case.examples,
        dynamic=case.dynamic,
        replan=replan,
        provisional=provisional,
    )
    kept = _wrap_executable(case, executable)
    bucket = executable.plan.buckets[0]
    error = answer_difference(kept(case.inputs), case.expected)
    case.note(error=error)
    bound = _FARTHER * max([case.options.bound, *_errors(bucket)])
    if not error <= bound:
        raise LeftToPyTorch(reason=f"the answer is {error:.1e} from eager's, which is more than {bound:.1e}")
    case.win(partial(kept, case.inputs))
    return kept


def by_learnt_costs(case: GraphCall, eager_ms: float, end: float) -> Kept:
    """What learnt costs expect to be fastest, where it is right and faster than eager; else the next, up to three.

    Args:
        case: the graph.
        eager_ms: what eager takes.
        end: of the time for it, by the monotonic clock.

    Raises:
        LeftToPyTorch: none is, or the time is over.
        and as `optimize`.
    """
    takes = _export_seconds(case.operators)
    if time.monotonic() + takes > end:
        given = f"{DecisionBudget.of(case.options, case.operators).whole_s:g} s"
        raise LeftToPyTorch(reason=f"its budget is {given}, and exporting it takes some {takes:.0f} s")
    plans = UnmeasuredPlans(case.traced, case.options, example_inputs=case.examples, dynamic=case.dynamic)
    case.note(least_ms=min((ms for ms in plans.least_ms if ms is not None), default=None))
    if unlikely := _unlikely(plans, eager_ms):
        raise LeftToPyTorch(reason=unlikely)
    lost = failed = refused = ""
    tried = 0
    for number in range(len(plans.least_ms)):
        if tried == _TRIES or time.monotonic() > end:
            break
        try:
            kept = _wrap_executable(case, plans.executable(number), plans)
            case.note(error=answer_difference(_first(kept, case.inputs), case.expected))
            check_in_float64(case.module, case.inputs, case.module, kept.of, case.options)
            case.win(partial(kept, case.inputs))
        except LeftToPyTorch as error:
            tried += 1
            lost = lost or str(error.facts["reason"])
        except Refused as error:  # costs no time, so that it is no try
            refused = refused or error.sentence
        except BricolageError as error:
            tried += 1
            failed = failed or error.sentence
        else:
            return kept
    raise LeftToPyTorch(reason=lost or failed or refused or "its budget was over when it was exported")


def _unlikely(plans: UnmeasuredPlans, eager_ms: float) -> str:
    """Why no plan is worth compiling; empty if one may be."""
    estimates = [ms for ms in plans.least_ms if ms is not None]
    if len(estimates) < len(plans.least_ms) or min(estimates) < eager_ms:
        return ""
    return f"learnt costs expect {min(estimates):.2g} ms of bricolage at least"


def _first(kept: Kept, inputs: Sequence[torch.Tensor]) -> Outputs:
    """The first answer of what no worker has tried.

    Raises:
        BackendFailed: it does not compile or run.
    """
    try:
        return kept(inputs)
    except BricolageError:
        raise
    except Exception as error:  # whatever a framework raises
        name = kept.executable.plan.buckets[0].race.chosen
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise BackendFailed(backend=name, stage="to run", reason=words[:_LONGEST]) from error


def _wrap_executable(case: GraphCall, executable: Executable, plans: object = None) -> Kept:
    if len(executable.inputs) != len(case.inputs) or len(executable.outputs) != len(case.expected):
        raise LeftToPyTorch(reason=f"its export takes {describe_inputs(executable.inputs)}, which is not what it takes")
    case.note(shipped=executable.plan.buckets[0].race.chosen)
    return Kept(executable, Form(case.expected), plans)


def _errors(bucket: Bucket) -> list[float]:
    """How far answers that were accepted are from float64."""
    return [
        contestant.error
        for contestant in bucket.race.contestants
        if contestant.accepted and contestant.error is not None
    ]


def _export_seconds(operators: int) -> float:
    return operators * _OPERATOR_S + (0.0 if "onnxscript" in sys.modules else _EXPORTER_S)
