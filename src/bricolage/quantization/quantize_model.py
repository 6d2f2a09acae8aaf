"""A float model in, a model in QDQ form out, with what that costs in accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from bricolage.base.quantization_options import QuantizationOptions
from bricolage.errors import NothingToQuantise
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import Graph
from bricolage.graph.work import flops
from bricolage.quantization.activation_statistics import ActivationStatistics, collect_statistics
from bricolage.quantization.bias import biases_in_order, corrected_biases
from bricolage.quantization.byte_weights import QuantisedWeights, quantised_weights
from bricolage.quantization.calibration_samples import doubts, hold_back, inputs_of
from bricolage.quantization.insertion import Scales, quantised_values, with_pairs
from bricolage.quantization.judge import Judge, Judgement, SwitchedModel
from bricolage.quantization.observers import AffineScale, Function, observe_scale, pass_through
from bricolage.quantization.outcome import QuantizationReport, QuantizedModel, constant_bytes
from bricolage.quantization.outlier_migration import migrate_outliers
from bricolage.quantization.outliers import apart, outlier_channels
from bricolage.quantization.products import WeightedProduct, known_names, products, quantised_products, require_float
from bricolage.quantization.sensitivity import KeptFloat, Sensitivity, nothing_left
from bricolage.quantization.value_functions import functions_behind
from bricolage.verify.held_back import Sample

_USELESS = 0.25
"""Relative error of the middle 99.9 % of an activation from which on bytes are no use for it."""
_GONE = 0.9
"""Share of an activation's numbers, other than zero, that bytes may make zero."""
_COMPARED = 4
"""Samples on which it is seen whether moving outliers, or biases in order, help. Their mean error decides: one answer that tips
over says little."""
_WORTH = 0.9
"""What of the error is left at most where some channels are multiplied apart, or biases fitted to samples in order."""
_DEFAULT = QuantizationOptions()


def quantize_graph(
    graph: Graph,
    samples: Sequence[Sample],
    options: QuantizationOptions = _DEFAULT,
    held_back: Sequence[Sample] | None = None,
) -> QuantizedModel:
    """Quantises what multiplies with constant weights: u8 activations with one scale each, s8 weights with one for each channel.

    Args:
        graph: simplified (see `bricolage.graph.prepare`), in opset 13 at least; its dimensions may be open. It is not changed.
        samples: inputs by name, as the model will see them, and what else a measure of the user's reads.
        held_back: samples to measure errors on; a share of `samples` where there are none.

    Raises:
        UnusableCalibration: samples are too few, constant or not finite.
        AlreadyQuantised: the model holds quantised operators.
        NothingToQuantise: it has no product with constant weights, or none within the error that is allowed.
        UnknownOperatorName: there is no operator of a name that is to stay float.
        NoReference: the model cannot be evaluated.
        MissingFile, MetricFails, UnusableSamples: the measure that is asked for cannot be taken.
    """
    require_float(graph.model)
    seen, held = hold_back(graph.model, samples, held_back, options.held_back)
    able, refused = products(graph)
    options = replace(options, keep_float=known_names(options.keep_float, able, refused))
    if not list(quantised_products(able, options.keep_float)):
        raise NothingToQuantise(
            reason="it has no Conv, MatMul or Gemm with constant float32 weights that may take part",
            advice="Keep fewer operators float, or leave the model as it is",
        )
    judge = Judge(graph.model, held, options)
    best = _most_in_integers([_Form(graph, seen, judge, form) for form in _forms(graph, able, options)], judge)
    concerns = doubts(seen, [inputs_of(graph.model, sample) for sample in held])
    if best.options.float_results and options.float_results is None:
        concerns.append(
            "results in front of functions such as HardSwish stay float, which leaves more in integers: OpenVINO and bricolage "
            "multiply bytes there, ONNX Runtime computes these convolutions in float32 (--no-float-results)"
        )
    weight_errors = {name: weight.error for name, weight in best.found.scales.weights.items()}
    able, refused = products(best.graph)
    report = QuantizationReport(
        best.kept.outcomes(best.graph, able, refused, weight_errors, options.keep_float),
        best.judged.largest,
        typical_error=best.judged.typical,
        agreement=best.judged.agreement,
        calibrated_on=len(seen),
        held_back=len(held),
        bytes=(constant_bytes(graph.model), constant_bytes(best.model)),
        warnings=tuple(concerns),
        reached=best.judged.reached,
    )
    return QuantizedModel(best.model, report)


@dataclass(frozen=True)
class _Made:
    """A model in QDQ form that is accurate enough."""

    graph: Graph
    found: _Scaled
    kept: KeptFloat
    judged: Judgement
    model: ir.Model
    work: float
    """Of the products in integers, in operations."""
    options: QuantizationOptions


class _Form:
    """One way to place pairs. Its scales are found when it has its first turn."""

    def __init__(self, graph: Graph, seen: Sequence[Sample], judge: Judge, options: QuantizationOptions) -> None:
        self._seen, self._judge, self._options = seen, judge, options
        self._given = graph

    @cached_property
    def _scales(self) -> tuple[Graph, _Scaled]:
        return _better(self._given, self._seen, self._options)

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """The search for what stays float."""
        (graph, scaled), form = self._scales, bool(self._options.float_results)
        paired = with_pairs(graph.model, scaled.products, scaled.scales, float_results=form, switched=True)
        work = _work(graph, scaled.products, self._options)
        return Sensitivity(SwitchedModel(paired, scaled.products), scaled.products, self._judge, work, self._make_model)

    def _make_model(self, taking: Sequence[WeightedProduct]) -> ir.Model:
        graph, scaled = self._scales
        scales = scaled.scales
        if scaled.in_order and len(taking) < len(scaled.products):
            scales = _in_order(graph, self._seen, replace(scaled, products=list(taking)), self._options)
        return _with_pairs(graph, taking, scales, self._options)

    def made(self, most_float: int | None, least: float) -> _Made | None:
        """The model with as few products in float as the accuracy asked for needs; None where it needs more than `most_float`, or
        leaves no more than `least` operations in integers.

        Raises:
            NothingToQuantise: no activation is of any use in bytes.
        """
        graph, scaled = self._scales
        if not scaled.products:
            raise NothingToQuantise(
                reason=next(iter(scaled.useless.values())),
                advice="Look at what computes it, or try --observer percentile",
            )
        sensitivity = self.sensitivity
        result = sensitivity.kept_float(most_float, least, each=self._options.errors_by_operator)
        if result is None:
            return None
        kept = KeptFloat({**scaled.useless, **result.kept.reasons}, result.kept.errors)
        model = self._make_model(result.taking)
        return _Made(graph, scaled, kept, result.judged, model, sensitivity.work_of(result.taking), self._options)


def _most_in_integers(forms: Sequence[_Form], judge: Judge) -> _Made:
    """With everything in integers in the first of the forms that bears it, unless a form before it leaves more work in integers
    with some products in float.

    Raises:
        NothingToQuantise: no form bears any.
    """
    best: _Made | None = None
    tried: list[_Form] = []
    for form in forms:
        tried.append(form)
        if (best := form.made(0, 0.0)) is not None:
            tried.pop()
            break
    for form in tried:
        best = form.made(None, best.work if best is not None else 0.0) or best
    if best is None:
        raise nothing_left(judge, [form.sensitivity for form in tried])
    return best


def _forms(
    graph: Graph, able: Sequence[WeightedProduct], options: QuantizationOptions
) -> tuple[QuantizationOptions, ...]:
    """With results of convolutions in bytes, and in float, in the order in which that is tried."""
    taking = list(quantised_products(able, options.keep_float))
    both = {form: quantised_values(graph.model, taking, options.sums, form) for form in (False, True)}
    given = options.float_results
    forms = ((False, True) if both[False] != both[True] else (False,)) if given is None else (given,)
    return tuple(replace(options, float_results=form) for form in forms)


def _work(graph: Graph, taking_part: Sequence[WeightedProduct], options: QuantizationOptions) -> dict[str, float]:
    """Operations that integers speed up of each product, by what it computes; of open sizes as if they were one. Half of a
    convolution's, where its result stays float: not every runtime then multiplies bytes."""
    paired = quantised_values(graph.model, taking_part, options.sums, bool(options.float_results))
    part = {
        product.output: 1.0 if product.op_type != "Conv" or product.end in paired else 0.5 for product in taking_part
    }
    return {
        name: part[name] * flops(operator)
        for operator in graph.operators
        if (name := operator.outputs[0].name or "") in part
    }


@dataclass(frozen=True)
class _Scaled:
    """Products with their scales."""

    products: list[WeightedProduct]
    scales: Scales
    useless: dict[str, str]
    """Why products whose activation is of no use in bytes stay float, by what they compute."""
    outliers: dict[str, np.ndarray]
    """Channels that would gain from a product of their own, by name of the activation."""
    in_order: bool = False
    """Whether biases were measured behind the integers in front of them."""


def _with_pairs(
    graph: Graph, taking: Sequence[WeightedProduct], scales: Scales, options: QuantizationOptions
) -> ir.Model:
    return with_pairs(graph.model, taking, scales, sums=options.sums, float_results=bool(options.float_results))


def _in_order(graph: Graph, seen: Sequence[Sample], found: _Scaled, options: QuantizationOptions) -> Scales:
    """The scales with biases that were measured behind the integers in front of them."""

    def make(scales: Scales) -> ir.Model:
        return _with_pairs(graph, found.products, scales, options)

    biases = biases_in_order(graph, seen, found.products, found.scales, make)
    return replace(found.scales, biases={**found.scales.biases, **biases})


def _better(graph: Graph, seen: Sequence[Sample], options: QuantizationOptions) -> tuple[Graph, _Scaled]:
    """The graph as it is, or with outliers moved into weights, or with some channels multiplied apart, and with biases measured
    product by product or in order, whichever is nearest to float on samples that calibration sees. Products of their own must make
    up for the time that they take."""
    judge = Judge(graph.model, seen[:_COMPARED], replace(options, max_error=None, accuracy=None))

    def able(of: Graph) -> list[WeightedProduct]:
        return list(quantised_products(products(of)[0], options.keep_float))

    def error(of: Graph, found: _Scaled) -> float:
        return judge.of(_with_pairs(of, found.products, found.scales, options)).mean

    best, scaled = graph, _choose_scales(graph, able(graph), seen, options)
    lowest: float | None = None
    other = migrate_outliers(graph, able(graph), seen, options) if options.smooth > 0 or options.equalise else graph
    if other is not graph:
        moved = _choose_scales(other, able(other), seen, options)
        lowest, with_moves = error(graph, scaled), error(other, moved)
        if len(moved.products) >= len(scaled.products) and with_moves < lowest:
            best, scaled, lowest = other, moved, with_moves
    if scaled.outliers and options.outliers:
        other = apart(best, able(best), scaled.outliers)
        split_up = _choose_scales(other, able(other), seen, options, scaled.outliers)
        lowest = error(best, scaled) if lowest is None else lowest
        if len(split_up.useless) <= len(scaled.useless) and (apart_error := error(other, split_up)) < _WORTH * lowest:
            best, scaled, lowest = other, split_up, apart_error
    if options.correct_bias and len(scaled.products) > 1:
        lowest = error(best, scaled) if lowest is None else lowest
        settled = replace(scaled, scales=_in_order(best, seen, scaled, options), in_order=True)
        if error(best, settled) < _WORTH * lowest:
            scaled = settled
    return best, scaled


def _choose_scales(
    graph: Graph,
    taking_part: Sequence[WeightedProduct],
    seen: Sequence[Sample],
    options: QuantizationOptions,
    alone: Mapping[str, np.ndarray] | None = None,
) -> _Scaled:
    """`alone`: channels, by activation, that have products of their own."""
    ranges = quantised_values(graph.model, taking_part, options.sums, bool(options.float_results))
    channels = {product.activation: product.activation_axis for product in taking_part}
    wanted = {**dict.fromkeys(ranges, 1), **channels}
    statistics = collect_statistics(graph.model, seen, wanted, options.seed, alone)
    functions = functions_behind(graph)
    activations: dict[str, AffineScale] = {}
    bad: dict[str, str] = {}
    for name, source in ranges.items():
        value_statistics = statistics[source]
        reason = _unfit(value_statistics)
        if not reason:
            activations[name] = observe_scale(value_statistics.values, options, functions.get(name))
            reason = _useless(value_statistics, activations[name], functions.get(name, pass_through))
        if reason:
            bad[name] = reason
    useless: dict[str, str] = {}
    for product in taking_part:
        for name in (product.activation, product.end if product.op_type == "Conv" else product.activation):
            if name in bad:
                useless[product.output] = f"'{name}' {bad[name]}"
    fit = [product for product in taking_part if product.output not in useless]
    weights: dict[str, QuantisedWeights] = {}
    for product in fit:
        array = constant_elements(graph.constants[product.weight])
        bias = constant_elements(graph.constants[product.bias]) if product.bias is not None else None
        assert array is not None
        step = float(activations[product.activation].scale)
        weights[product.output] = quantised_weights(product, array, bias, step, pair_safe=options.pair_safe)
    scales = Scales(activations, weights)
    if options.correct_bias:
        scales = Scales(activations, weights, corrected_biases(graph, seen, fit, scales))
    unshared = [product for product in taking_part if list(ranges.values()).count(product.activation) == 1]
    outliers = {} if alone else outlier_channels(unshared, statistics)
    return _Scaled(fit, scales, useless, outliers)


def _unfit(found: ActivationStatistics) -> str:
    if not found.finite:
        return "holds NaN or infinite numbers"
    return "" if found.parts else "holds no numbers"


def _useless(found: ActivationStatistics, scale: AffineScale, function: Function) -> str:
    """Why an activation is of no use in bytes, its outliers taking all steps; empty where it is. `function`: what reads it."""
    numbers = found.values.astype(np.float64)
    values, left = function(numbers), function(scale.rounded(numbers))
    gone = float((left[values != 0] == 0).mean()) if values.any() else 0.0
    middle = np.abs(values) <= np.quantile(np.abs(values), 0.999)
    norm = float(np.linalg.norm(values[middle]))
    error = float(np.linalg.norm((left - values)[middle])) / norm if norm else 0.0
    if error <= _USELESS and gone <= _GONE:
        return ""
    damage = f"makes {gone:.0%} of the rest zero" if gone > _GONE else f"leaves an error of {error:.0%} to the rest"
    return f"has outliers up to {max(abs(found.low), abs(found.high)):.3g}: a scale of 8 bits {damage}"
