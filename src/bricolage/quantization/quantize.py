"""A float model in, a model in QDQ form out, with what that costs in accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.errors import NothingToQuantise
from bricolage.graph.folding import known
from bricolage.graph.graph import Graph
from bricolage.quantization.bias import corrected_biases
from bricolage.quantization.functions import functions_behind
from bricolage.quantization.insertion import Scales, quantised_values, with_pairs
from bricolage.quantization.judge import Judge, SwitchedModel
from bricolage.quantization.migration import migrated
from bricolage.quantization.observers import AffineScale, Function, observed, unchanged
from bricolage.quantization.options import QuantizationOptions
from bricolage.quantization.outcome import QuantizationReport, QuantizedModel, weight_bytes
from bricolage.quantization.outliers import apart, outlier_channels
from bricolage.quantization.products import WeightedProduct, chosen, products, require_float, require_names
from bricolage.quantization.samples import doubts, require_telling, split
from bricolage.quantization.sensitivity import KeptFloat, confirmed, kept_float
from bricolage.quantization.statistics import ActivationStatistics, collected
from bricolage.quantization.weights import QuantisedWeights, quantised_weights
from bricolage.verify.held_back import Sample

_USELESS = 0.25
"""Relative error of the middle 99.9 % of an activation from which on bytes are no use for it."""
_GONE = 0.9
"""Share of an activation's numbers, other than zero, that bytes may make zero."""
_COMPARED = 4
"""Samples on which it is seen whether moving outliers helps. Their mean error decides: one answer that tips over says little."""
_WORTH = 0.9
"""What of the error is left at most where some channels are multiplied apart."""
_DEFAULT = QuantizationOptions()


def quantized(graph: Graph, samples: Sequence[Sample], options: QuantizationOptions = _DEFAULT) -> QuantizedModel:
    """Quantises what multiplies with constant weights: u8 activations with one scale each, s8 weights with one for each channel.

    Args:
        graph: simplified (see `bricolage.graph.prepare`), in opset 13 at least; its dimensions may be open. It is not changed.
        samples: inputs by name, as the model will see them. A share of them is held back, to measure errors on.

    Raises:
        UnusableCalibration: samples are too few, constant or not finite.
        AlreadyQuantised: the model holds quantised operators.
        NothingToQuantise: it has no product with constant weights, or none within the error that is allowed.
        UnknownOperatorName: there is no operator of a name that is to stay float.
        NoReference: the model cannot be evaluated.
    """
    require_float(graph.model)
    require_telling(samples)
    seen, held = split(samples, options.held_back)
    able, refused = products(graph)
    require_names(options.keep_float, able, refused)
    if not list(chosen(able, options.keep_float)):
        raise NothingToQuantise(
            reason="it has no Conv, MatMul or Gemm with constant float32 weights that may take part",
            advice="Keep fewer operators float, or leave the model as it is",
        )
    judge = Judge(graph.model, held)
    graph, found = _better(graph, seen, options)
    able, refused = products(graph)
    float_results = options.float_results
    paired = with_pairs(graph.model, found.products, found.scales, float_results=float_results, switched=True)
    switched = SwitchedModel(paired, found.products)
    kept = kept_float(switched, found.products, judge, options.max_error, each=options.errors_by_operator)
    kept = KeptFloat({**found.useless, **kept.reasons}, kept.errors)
    if not found.products:
        raise NothingToQuantise(
            reason=next(iter(found.useless.values())), advice="Look at what computes it, or try --observer percentile"
        )

    def make(taking: Sequence[WeightedProduct]) -> ir.Model:
        return with_pairs(graph.model, taking, found.scales, sums=options.sums, float_results=float_results)

    kept, taking, judged = confirmed(kept, found.products, judge, options.max_error, make)
    model = make(taking)
    weight_errors = {name: one.error for name, one in found.scales.weights.items()}
    outcomes = kept.outcomes(graph, able, refused, weight_errors, options.keep_float)
    report = QuantizationReport(
        outcomes,
        judged.largest,
        judged.typical,
        judged.agreement,
        len(seen),
        len(held),
        (weight_bytes(graph.model), weight_bytes(model)),
        tuple(doubts(seen, held)),
    )
    return QuantizedModel(model, report)


@dataclass(frozen=True)
class _Scaled:
    """Products with their scales."""

    products: list[WeightedProduct]
    scales: Scales
    useless: dict[str, str]
    """Why products whose activation is of no use in bytes stay float, by what they compute."""
    outliers: dict[str, np.ndarray]
    """Channels that would gain from a product of their own, by name of the activation."""


def _better(graph: Graph, seen: Sequence[Sample], options: QuantizationOptions) -> tuple[Graph, _Scaled]:
    """The graph as it is, or with outliers moved into weights, or with some channels multiplied apart, whichever is nearest to
    float on samples that calibration sees. Products of their own must make up for the time that they take."""
    judge = Judge(graph.model, seen[:_COMPARED])

    def able(of: Graph) -> list[WeightedProduct]:
        return list(chosen(products(of)[0], options.keep_float))

    def error(of: Graph, found: _Scaled) -> float:
        return judge.of(
            with_pairs(of.model, found.products, found.scales, sums=options.sums, float_results=options.float_results)
        ).mean

    best, found = graph, _scaled(graph, able(graph), seen, options)
    lowest: float | None = None
    other = migrated(graph, able(graph), seen, options) if options.smooth > 0 or options.equalise else graph
    if other is not graph:
        moved = _scaled(other, able(other), seen, options)
        lowest, with_moves = error(graph, found), error(other, moved)
        if len(moved.products) >= len(found.products) and with_moves < lowest:
            best, found, lowest = other, moved, with_moves
    if found.outliers and options.outliers:
        other = apart(best, able(best), found.outliers)
        split_up = _scaled(other, able(other), seen, options, found.outliers)
        lowest = error(best, found) if lowest is None else lowest
        if len(split_up.useless) <= len(found.useless) and error(other, split_up) < _WORTH * lowest:
            best, found = other, split_up
    return best, found


def _scaled(
    graph: Graph,
    taking_part: Sequence[WeightedProduct],
    seen: Sequence[Sample],
    options: QuantizationOptions,
    alone: Mapping[str, np.ndarray] | None = None,
) -> _Scaled:
    """`alone`: channels, by activation, that have products of their own."""
    ranges = quantised_values(graph.model, taking_part, options.sums, options.float_results)
    channels = {one.activation: one.activation_axis for one in taking_part}
    wanted = {**dict.fromkeys(ranges, 1), **channels}
    statistics = collected(graph.model, seen, wanted, options.seed, alone)
    functions = functions_behind(graph)
    activations: dict[str, AffineScale] = {}
    bad: dict[str, str] = {}
    for name, source in ranges.items():
        found = statistics[source]
        reason = _unfit(found)
        if not reason:
            activations[name] = observed(found.values, options, functions.get(name))
            reason = _useless(found, activations[name], functions.get(name, unchanged))
        if reason:
            bad[name] = reason
    useless: dict[str, str] = {}
    for one in taking_part:
        for name in (one.activation, one.end if one.op_type == "Conv" else one.activation):
            if name in bad:
                useless[one.output] = f"'{name}' {bad[name]}"
    fit = [one for one in taking_part if one.output not in useless]
    weights: dict[str, QuantisedWeights] = {}
    for one in fit:
        array = known(graph.constants[one.weight])
        bias = known(graph.constants[one.bias]) if one.bias is not None else None
        assert array is not None
        step = float(activations[one.activation].scale)
        weights[one.output] = quantised_weights(one, array, bias, step, pair_safe=options.pair_safe)
    scales = Scales(activations, weights)
    if options.correct_bias:
        scales = Scales(activations, weights, corrected_biases(graph, seen, fit, scales))
    own = [one for one in taking_part if list(ranges.values()).count(one.activation) == 1]
    outliers = {} if alone else outlier_channels(own, statistics)
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
    told = f"makes {gone:.0%} of the rest zero" if gone > _GONE else f"leaves an error of {error:.0%} to the rest"
    return f"has outliers up to {max(abs(found.low), abs(found.high)):.3g}: a scale of 8 bits {told}"
