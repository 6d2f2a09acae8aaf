"""What each operator in integers costs in accuracy, and which stay float for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from bricolage.errors import NothingToQuantise
from bricolage.graph.graph import Graph
from bricolage.quantization.judge import Judge, Judgement, SwitchedModel
from bricolage.quantization.outcome import OperatorOutcome
from bricolage.quantization.products import Unquantised, WeightedProduct, quantised_products

_SAMPLES = 4
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
        taking_part = {product.output for product in quantised_products(able, asked_float)}
        outcomes = [OperatorOutcome(refusal.name, refusal.op_type, False, refusal.reason) for refusal in refused]
        for product in able:
            reason = self.reasons.get(product.output, "") if product.output in taking_part else "asked for"
            error, weight_error = self.errors.get(product.output), weight_errors.get(product.output)
            outcomes.append(
                OperatorOutcome(product.name, product.op_type, not reason, reason, error, weight_error, bits)
            )
        order = {operator.name: operator.number for operator in graph.operators}
        return tuple(sorted(outcomes, key=lambda outcome: order[outcome.name]))


@dataclass(frozen=True)
class FloatChoice:
    """Which products stay float."""

    kept: KeptFloat
    taking: list[WeightedProduct]
    """The others."""
    judged: Judgement
    """Of the model with these in integers."""


class Sensitivity:
    """What products in integers cost, and which of them stay float for it."""

    def __init__(
        self,
        switched: SwitchedModel,
        taking_part: Sequence[WeightedProduct],
        judge: Judge,
        work: Mapping[str, float],
        make: Callable[[Sequence[WeightedProduct]], ir.Model],
    ) -> None:
        """
        Args:
            work: what each product does, by what it computes: operations, or bytes of weights where these bound it.
            make: gives the model with some products in integers.
        """
        self._switched, self._products, self._judge = switched, taking_part, judge
        self._work, self._make = work, make
        self._outputs = [product.output for product in taking_part]
        self._whole: Judgement | None = None
        self.trials: dict[frozenset[str], float] = {}
        """Of all choices that were tried, by what the products in integers compute: the error of the model. Of one by itself that
        misses on some of the samples already, the error on these."""

    def work_of(self, taking: Sequence[WeightedProduct]) -> float:
        """Of these products together."""
        return sum(self._work[product.output] for product in taking)

    def kept_float(self, most: int | None = None, least: float = 0.0, *, each: bool = True) -> FloatChoice | None:
        """As many products stay float as bring the whole to the accuracy asked for; None where these are more than `most`, or leave
        no more than `least` work in integers.

        Those come first that cost most for the time that they save. Errors of products that have nothing to do with each other
        add up in squares, and what integers save of a product's time is a share of its work: so they are ordered by error² / work.
        Numbers of them are tried from below, half as many more each time, and a third fewer in integers where few of them are:
        shares of answers that are the same do not always grow with that number, so that bisection would miss small ones. At last
        each is tried by itself. The search is in float32; what it finds is confirmed in float64, where rounding falls otherwise.

        Args:
            each: whether the error of each is to be known also where the whole is accurate enough.
        """
        count, total = 0, len(self._outputs)
        while count < total and (most is None or count <= most):
            floats = self._costly[:count] if count else []
            choice = self._choice(floats, least, each=each)
            if choice is not None:
                return choice
            count += max(1, min(count // 2, (total - count) // 3))
        if most is not None and most < total - 1:
            return None
        singles = reversed(self._costly) if total > 1 else iter(())
        choices = (self._choice([output for output in self._costly if output != single], least) for single in singles)
        return next((choice for choice in choices if choice is not None), None)

    def _choice(self, floats: Sequence[str], least: float, *, each: bool = True) -> FloatChoice | None:
        """With these in float, where that is accurate enough and leaves more than `least` work in integers."""
        taking = [product for product in self._products if product.output not in floats]
        names = frozenset(product.output for product in taking)
        if names in self.trials and floats:
            return None
        if floats and least and self.work_of(taking) <= least:
            return None
        if len(names) == 1 and floats and not self._judge.allows(self._alone[taking[0].output]):
            self.trials[names] = self._alone[taking[0].output]
            return None
        judged = self._judged(taking)
        self.trials[names] = judged.largest
        if not judged.met:
            return None
        alone = self._alone if floats else self._measure_singles(1) if each else {}
        return FloatChoice(KeptFloat({output: self._reason(output) for output in floats}, alone), taking, judged)

    def least_single(self) -> tuple[str, float] | None:
        """The product that has the least error by itself of those that were tried, by its name in the model, with this error."""
        names = {product.output: product.name for product in self._products}
        errors = {output: error for (output, *more), error in self.trials.items() if not more}
        best = min(errors, key=errors.__getitem__, default=None)
        return None if best is None else (names[best], errors[best])

    @property
    def whole_error(self) -> float | None:
        """With all in integers; None where that was not tried."""
        return self.trials.get(frozenset(self._outputs))

    def __len__(self) -> int:
        return len(self._outputs)

    def _judged(self, taking: Sequence[WeightedProduct]) -> Judgement:
        is_whole = len(taking) == len(self._products)
        if is_whole and self._whole is not None:
            return self._whole
        outputs = [product.output for product in taking]
        judgement = self._judge.of_switched(self._switched, outputs) if self._judge.asks else None
        if judgement is None or judgement.met:
            judgement = self._judge.of(self._make(taking))
        if is_whole:
            self._whole = judgement
        return judgement

    @cached_property
    def _alone(self) -> dict[str, float]:
        return self._measure_singles(_SAMPLES)

    def _measure_singles(self, samples: int) -> dict[str, float]:
        """The error with each product alone in integers."""
        return {output: self._judge.error(self._switched, {output}, samples) for output in self._outputs}

    @cached_property
    def _costly(self) -> list[str]:
        """Those first that cost most for what integers save of them."""
        return sorted(self._outputs, key=lambda output: -(self._alone[output] ** 2) / max(self._work[output], 1.0))

    def _reason(self, output: str) -> str:
        return f"it costs {self._alone[output]:.1e} by itself, and the whole would miss {self._judge.asked}"


def nothing_left(judge: Judge, searches: Sequence[Sensitivity]) -> NothingToQuantise:
    """That the accuracy asked for leaves no product in integers, and what was tried."""
    singles = [single for search in searches if (single := search.least_single()) is not None]
    wholes = [whole for search in searches if (whole := search.whole_error) is not None]
    findings = []
    if wholes:
        findings.append(f"the error is {min(wholes):.2g} with all {max(map(len, searches))} in integers")
    if singles:
        name, error = min(singles, key=lambda single: single[1])
        findings.append(f"{error:.2g} with the best one alone, '{name}'")
    tried = sum(len(search.trials) for search in searches)
    return NothingToQuantise(
        reason=f"with any operator in integers the model misses {judge.asked}: {' and '.join(findings)} ({tried} choices "
        "were tried, each operator by itself among them)",
        advice="Ask for less accuracy, give more and better calibration data, or for weights smaller blocks",
    )
