"""What each operator in integers costs in accuracy, and which stay float for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.errors import NothingToQuantise
from bricolage.graph.graph import Graph
from bricolage.quantization.judge import Judge, Judgement, SwitchedModel
from bricolage.quantization.outcome import OperatorOutcome
from bricolage.quantization.products import Unquantised, WeightedProduct, chosen

_SAMPLES = 2
"""On which each operator alone is measured where some must stay float, else one; all that are held back judge the whole."""


@dataclass(frozen=True)
class KeptFloat:
    """What stays float for its error."""

    reasons: Mapping[str, str]
    """By what a product computes."""
    errors: Mapping[str, float]
    """With this product alone in integers."""

    def outcomes(
        self,
        graph: Graph,
        able: Sequence[WeightedProduct],
        refused: Sequence[Unquantised],
        weight_errors: Mapping[str, float],
        asked_float: Collection[str],
        bits: int = 8,
    ) -> tuple[OperatorOutcome, ...]:
        """Of all operators that were looked at, in the graph's order."""
        taking_part = {one.output for one in chosen(able, asked_float)}
        made = [OperatorOutcome(one.name, one.op_type, False, one.reason) for one in refused]
        for one in able:
            reason = self.reasons.get(one.output, "") if one.output in taking_part else "asked for"
            error, weight_error = self.errors.get(one.output), weight_errors.get(one.output)
            made.append(OperatorOutcome(one.name, one.op_type, not reason, reason, error, weight_error, bits))
        order = {operator.name: operator.number for operator in graph.operators}
        return tuple(sorted(made, key=lambda outcome: order[outcome.name]))


def kept_float(
    switched: SwitchedModel,
    taking_part: Sequence[WeightedProduct],
    judge: Judge,
    limit: float | None,
    *,
    each: bool = True,
) -> KeptFloat:
    """Measures each product alone; those that cost most stay float, as many as bring the whole below the limit, by bisection.
    Unless `each` is to be known, none is measured where the whole is below the limit."""
    outputs = [one.output for one in taking_part]
    fits = limit is None or not outputs or judge.error(switched, outputs) <= limit
    if fits and not each:
        return KeptFloat({}, {})
    alone = {one: judge.error(switched, {one}, 1 if fits else _SAMPLES) for one in outputs}
    if fits:
        return KeptFloat({}, alone)
    assert limit is not None
    costly = sorted(outputs, key=lambda one: -alone[one])
    low, high = 0, len(costly)  # this many float are too few, and this many enough
    while high - low > 1:
        middle = (low + high) // 2
        if judge.error(switched, costly[middle:]) <= limit:
            high = middle
        else:
            low = middle
    reasons = {one: _reason(alone[one], limit) for one in costly[:high]}
    return KeptFloat(reasons, alone)


def confirmed(
    kept: KeptFloat,
    taking_part: Sequence[WeightedProduct],
    judge: Judge,
    limit: float | None,
    make: Callable[[Sequence[WeightedProduct]], ir.Model],
) -> tuple[KeptFloat, list[WeightedProduct], Judgement]:
    """What stays float, what does not, and how good that is in float64: the search is in float32, where rounding falls otherwise,
    so that an eighth more stays float as often as the limit is missed.

    Args:
        make: gives the model with some products in integers.

    Raises:
        NothingToQuantise: no product is left.
    """
    while True:
        taking = [one for one in taking_part if one.output not in kept.reasons]
        if not taking:
            raise NothingToQuantise(
                reason=f"with any operator in integers the error is above {limit}",
                advice="Ask for a larger --max-error, give more and better calibration data, or for weights smaller blocks",
            )
        judged = judge.of(make(taking))
        if limit is None or judged.largest <= limit:
            return kept, taking, judged
        costly = sorted(taking, key=lambda one: -kept.errors.get(one.output, 0.0))[: max(1, len(taking) // 8)]
        more = {one.output: _reason(kept.errors.get(one.output), limit) for one in costly}
        kept = KeptFloat({**kept.reasons, **more}, kept.errors)


def _reason(error: float | None, limit: float) -> str:
    alone = "" if error is None else f"it costs {error:.1e} by itself, and "
    return f"{alone}the whole would miss {limit:g}"
