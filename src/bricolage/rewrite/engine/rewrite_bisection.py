"""Which of the applications that made a rewritten model changed its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.rewrite.engine.apply import Application
from bricolage.rewrite.engine.retrace import Retrace
from bricolage.search.isolate import Finding, Subset, isolate
from bricolage.verify.compare import Deviation


@dataclass(frozen=True)
class WrongApplication:
    """The first application, in the order in which they were made, with which an answer is wrong and without which it is not."""

    number: int
    """From 1; 0 where the answer is wrong before any."""
    rule: str
    removed: tuple[str, ...]
    error: float
    """Of the answer with it."""


def first_wrong(
    retrace: Retrace, applications: Sequence[Application], judge: Callable[[ir.Model], Deviation], bound: float
) -> WrongApplication:
    """The application at fault. With all of them the model's answer is farther off than the `bound`, as `judge` sees it."""
    errors: dict[int, float] = {}

    def test(subset: Subset) -> Finding:
        count = len(subset)
        if subset != frozenset(range(count)):
            return "unresolved"  # the first ones decide
        deviation = judge(retrace.made(count).model)
        errors[count] = deviation.error
        return "right" if deviation.excess <= bound else "wrong"

    everything = frozenset(range(len(applications)))
    if test(frozenset()) == "wrong":
        return WrongApplication(0, "", (), errors[0])
    _, wrong = isolate(frozenset(), everything, test)
    if len(wrong) not in errors:
        test(wrong)
    at = applications[len(wrong) - 1]
    return WrongApplication(len(wrong), at.rule, at.removed, errors[len(wrong)])
