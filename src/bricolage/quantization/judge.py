"""How far a quantised model is from the float model in float64, operator by operator and as a whole, on samples held back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import onnx_ir as ir

from bricolage.base.quantization_options import QuantizationOptions
from bricolage.quantization.calibration_samples import inputs_of
from bricolage.quantization.products import WeightedProduct
from bricolage.verify.accuracy_measures import AccuracyDemand, Reached, agreement
from bricolage.verify.compare import relative_error
from bricolage.verify.held_back import Sample
from bricolage.verify.reference import Evaluator
from bricolage.work.values import ModelValue


@dataclass(frozen=True)
class Judgement:
    """Of a model on held-back samples."""

    largest: float
    typical: float
    mean: float
    agreement: float | None
    met: bool
    """Whether it is as accurate as asked for."""
    reached: Reached | None
    """By the measure that was asked for; None where none was."""


class Judge:
    """Holds the float64 answers to some samples, and what accuracy is asked for on them.

    Raises:
        NoReference: the model cannot be evaluated.
        MissingFile, MetricFails, UnusableSamples: the measure that is asked for cannot be taken.
    """

    def __init__(self, model: ir.Model, samples: Sequence[Sample], options: QuantizationOptions) -> None:
        """`samples`: inputs by name, and what else a measure of the user's reads."""
        self._samples = samples
        self._given = [inputs_of(model, sample) for sample in samples]
        self._limit = options.max_error
        self._demand = AccuracyDemand(options.accuracy, 1.0) if options.accuracy is not None else None
        evaluate = Evaluator(model)
        self._right = [evaluate(sample) for sample in self._given]
        if self._demand is not None:
            self._demand.judged(self._right, self._right, samples)

    @property
    def asks(self) -> bool:
        """Whether anything is asked for that an answer could miss."""
        return self._limit is not None or self._demand is not None

    def allows(self, error: float) -> bool:
        """Whether an error on some of the samples leaves it open that all of them are as accurate as asked for."""
        return self._limit is None or error <= self._limit

    @property
    def asked(self) -> str:
        """In words: "an error of at most 0.1 and top-1 agreement of at least 0.99"."""
        error = f"an error of at most {self._limit:g}" if self._limit is not None else ""
        measure = self._demand.asked if self._demand is not None else ""
        return " and ".join(filter(None, (error, measure)))

    def of(self, model: ir.Model) -> Judgement:
        """How far a model's answers are off, its integers being exact."""
        evaluate = Evaluator(model)
        return self._judged(lambda sample: list(evaluate(sample).values()))

    def of_switched(self, model: SwitchedModel, on: Collection[str]) -> Judgement:
        """The same with some products in integers, in float32."""
        return self._judged(lambda sample: model(sample, on))

    def error(self, model: SwitchedModel, on: Collection[str], most: int | None = None) -> float:
        """The median error with some products in integers, on at most `most` samples: that one answer tips over says little."""
        pairs = list(zip(self._given, self._right, strict=True))[:most]
        return median(relative_error(model(sample, on), list(right.values())) for sample, right in pairs)

    def _judged(self, answer: Callable[[Sample], Sequence[ModelValue]]) -> Judgement:
        answers = [answer(sample) for sample in self._given]
        pairs = [(answer, list(right.values())) for answer, right in zip(answers, self._right, strict=True)]
        errors = [relative_error(answer, right) for answer, right in pairs]
        same = [_agreement(answer[0], right[0]) for answer, right in pairs]
        agreements = [agreement for agreement in same if agreement is not None]
        reached: Reached | None = None
        if self._demand is not None:
            named = [dict(zip(right, answer, strict=True)) for answer, right in zip(answers, self._right, strict=True)]
            reached = self._demand.judged(named, self._right, self._samples)
        return Judgement(
            max(errors),
            median(errors),
            fmean(errors),
            float(np.mean(agreements)) if agreements else None,
            (self._limit is None or max(errors) <= self._limit) and (reached is None or reached.met),
            reached,
        )


class SwitchedModel:
    """A model whose products are each switched to integers at run time: prepared once for all subsets."""

    def __init__(self, model: ir.Model, products: Sequence[WeightedProduct]) -> None:
        """`model` has an input for each product, see `switches`."""
        self._switches = {product.output: switch(product) for product in products}
        self._evaluate = Evaluator(model, dtype=np.float32)

    def __call__(self, sample: Sample, on: Collection[str]) -> list[ModelValue]:
        """Outputs with the products that compute the values `on` in integers."""
        switches = {name: np.asarray(output in on) for output, name in self._switches.items()}
        return list(self._evaluate({**sample, **switches}).values())


def _agreement(answer: ModelValue, right: ModelValue) -> float | None:
    """Share of rows whose largest element is at the same place."""
    y, r = np.asarray(answer), np.asarray(right)
    if y.shape != r.shape or y.dtype.kind != "f" or r.ndim == 0 or r.shape[-1] < 2:
        return None
    return agreement([y], [r])


def switch(product: WeightedProduct) -> str:
    """Name of the input that switches a product to bytes."""
    return f"{product.output}.quantised"


def switches(model: ir.Model, products: Sequence[WeightedProduct]) -> dict[str, ir.Value]:
    """Adds an input for each product, in place, by what the product computes: a truth, whether it computes in integers."""
    switch_inputs: dict[str, ir.Value] = {}
    for product in products:
        value = ir.Value(name=switch(product), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
        model.graph.inputs.append(value)
        switch_inputs[product.output] = value
    return switch_inputs
