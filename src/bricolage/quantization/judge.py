"""How far a quantised model is from the float model in float64, operator by operator and as a whole, on samples held back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import onnx_ir as ir

from bricolage.quantization.products import WeightedProduct
from bricolage.verify.accuracy import agreement
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


class Judge:
    """Holds the float64 answers to some samples.

    Raises:
        NoReference: the model cannot be evaluated.
    """

    def __init__(self, model: ir.Model, samples: Sequence[Sample]) -> None:
        self._samples = samples
        evaluate = Evaluator(model)
        self._right = [list(evaluate(sample).values()) for sample in samples]

    def of(self, model: ir.Model) -> Judgement:
        """How far a model's answers are off, its integers being exact."""
        evaluate = Evaluator(model)
        return self._judged([list(evaluate(sample).values()) for sample in self._samples])

    def error(self, switched: SwitchedModel, on: Collection[str], most: int | None = None) -> float:
        """The largest error with some products in integers, on at most `most` samples."""
        pairs = list(zip(self._samples, self._right, strict=True))[:most]
        return max(relative_error(switched(sample, on), right) for sample, right in pairs)

    def _judged(self, answers: Sequence[Sequence[ModelValue]]) -> Judgement:
        errors = [relative_error(answer, right) for answer, right in zip(answers, self._right, strict=True)]
        same = [_agreement(answer[0], right[0]) for answer, right in zip(answers, self._right, strict=True)]
        known = [one for one in same if one is not None]
        return Judgement(max(errors), median(errors), fmean(errors), float(np.mean(known)) if known else None)


class SwitchedModel:
    """A model whose products are each switched to integers at run time: prepared once for all subsets."""

    def __init__(self, model: ir.Model, products: Sequence[WeightedProduct]) -> None:
        """`model` has an input for each product, see `switches`."""
        self._switches = {one.output: switch(one) for one in products}
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
    found: dict[str, ir.Value] = {}
    for product in products:
        value = ir.Value(name=switch(product), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
        model.graph.inputs.append(value)
        found[product.output] = value
    return found
