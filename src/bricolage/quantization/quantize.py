"""A float model in, a model in QDQ form out, with what that costs in accuracy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.errors import NothingToQuantise, UnknownOperatorName, UnusableCalibration
from bricolage.graph.folding import known
from bricolage.graph.graph import Graph
from bricolage.quantization.insertion import Scales, quantised_values, with_pairs
from bricolage.quantization.judge import Judge, SwitchedModel
from bricolage.quantization.observers import AffineScale, observed
from bricolage.quantization.options import QuantizationOptions
from bricolage.quantization.outcome import OperatorOutcome, QuantizationReport, QuantizedModel
from bricolage.quantization.products import Product, Unquantised, chosen, products, require_float
from bricolage.quantization.statistics import ActivationStatistics, collected, require_telling
from bricolage.quantization.weights import QuantisedWeights, quantised_weights

_USELESS = 0.25
"""Relative error of the middle 99.9 % of an activation from which on bytes are no use for it."""
_FEW = 8
"""Samples below which scales may be of a few inputs' own."""
_SENSITIVITY_SAMPLES = 2
Sample = Mapping[str, np.ndarray]
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
    if len(samples) < 2:
        raise UnusableCalibration(reason="it holds 1 sample, and one more is needed to measure errors on")
    warnings = [f"{len(samples)} samples are few: give {_FEW} or more"] if len(samples) < _FEW else []
    seen, held = split(samples, options.held_back)
    able, refused = products(graph)
    _require_names(options.keep_float, able, refused)
    taking_part = list(chosen(able, options.keep_float))
    if not taking_part:
        raise NothingToQuantise(
            reason="it has no Conv, MatMul or Gemm with constant float32 weights that may take part",
            advice="Keep fewer operators float, or leave the model as it is",
        )
    found = _scaled(graph, taking_part, seen, options)
    judge = Judge(graph.model, held)
    kept = _kept(graph.model, found, judge, options)
    taking = [one for one in found.products if one.output not in kept.reasons]
    if not taking:
        raise NothingToQuantise(
            reason=f"with any operator in integers the error is above {options.max_error}",
            advice="Ask for a larger --max-error, or give more and better calibration data",
        )
    model = with_pairs(graph.model, taking, found.scales, sums=options.sums)
    judged = judge.of(model)
    outcomes = _outcomes(graph, [*able], refused, found, kept, options)
    report = QuantizationReport(
        outcomes,
        judged.largest,
        judged.typical,
        judged.agreement,
        len(seen),
        len(held),
        (weight_bytes(graph.model), weight_bytes(model)),
        tuple(warnings),
    )
    return QuantizedModel(model, report)


def split(samples: Sequence[Sample], held_back: float) -> tuple[list[Sample], list[Sample]]:
    """Those that calibration sees, and those that errors are measured on, evenly spread: one of each at least."""
    count = min(max(1, round(len(samples) * held_back)), len(samples) - 1)
    picked = (
        {int(at) for at in np.linspace(0, len(samples) - 1, count + 2)[1:-1].round()}
        if count > 1
        else {len(samples) // 2}
    )
    seen = [one for number, one in enumerate(samples) if number not in picked]
    return seen, [samples[number] for number in sorted(picked)]


def weight_bytes(model: ir.Model) -> int:
    """Of all constants, as a file holds them."""
    return sum(one.const_value.nbytes for one in model.graph.initializers.values() if one.const_value is not None)


@dataclass(frozen=True)
class _Scaled:
    """Products with their scales."""

    products: list[Product]
    scales: Scales
    useless: dict[str, str]
    """Why products whose activation is of no use in bytes stay float, by what they compute."""


@dataclass(frozen=True)
class _Kept:
    """What stays float for its error."""

    reasons: dict[str, str]
    """By what a product computes."""
    errors: dict[str, float]
    """With this product alone in integers."""


def _scaled(
    graph: Graph, taking_part: Sequence[Product], seen: Sequence[Sample], options: QuantizationOptions
) -> _Scaled:
    ranges = quantised_values(graph.model, taking_part, options.sums)
    channels = {one.activation: one.activation_axis for one in taking_part}
    statistics = collected(graph.model, seen, {**dict.fromkeys(ranges, 1), **channels}, options.seed)
    activations: dict[str, AffineScale] = {}
    bad: dict[str, str] = {}
    for name, source in ranges.items():
        found = statistics[source]
        reason = _unfit(found)
        if not reason:
            activations[name] = observed(found.values, options)
            reason = _useless(found, activations[name])
        if reason:
            bad[name] = reason
    useless: dict[str, str] = {}
    for one in taking_part:
        for name in (one.activation, one.end if one.op_type == "Conv" else one.activation):
            if name in bad:
                useless[one.output] = f"'{name}' {bad[name]}"
    fit = [one for one in taking_part if one.output not in useless]
    weights = {one.output: _weights(graph, one, activations[one.activation], options) for one in fit}
    return _Scaled(fit, Scales(activations, weights), useless)


def _unfit(found: ActivationStatistics) -> str:
    if not found.finite:
        return "holds NaN or infinite numbers"
    return "" if found.parts else "holds no numbers"


def _useless(found: ActivationStatistics, scale: AffineScale) -> str:
    """Why an activation is of no use in bytes: its outliers take all steps; empty where it is."""
    values = found.values.astype(np.float64)
    middle = values[np.abs(values) <= np.quantile(np.abs(values), 0.999)]
    norm = float(np.linalg.norm(middle))
    if not norm:
        return ""
    error = float(np.linalg.norm(middle - scale.rounded(middle))) / norm
    if error <= _USELESS:
        return ""
    return f"has outliers up to {max(abs(found.low), abs(found.high)):.3g}: 8 bits leave an error of {error:.0%} to the rest"


def _weights(graph: Graph, product: Product, activation: AffineScale, options: QuantizationOptions) -> QuantisedWeights:
    array = known(graph.constants[product.weight])
    bias = known(graph.constants[product.bias]) if product.bias is not None else None
    assert array is not None
    return quantised_weights(product, array, bias, float(activation.scale), pair_safe=options.pair_safe)


def _kept(model: ir.Model, found: _Scaled, judge: Judge, options: QuantizationOptions) -> _Kept:
    """What stays float: as many of those that cost most as bring the error below the limit, by bisection."""
    reasons = dict(found.useless)
    outputs = [one.output for one in found.products]
    if not outputs:
        return _Kept(reasons, {})
    switched = SwitchedModel(model, found.products, found.scales)
    alone = {one: judge.error(switched, {one}, _SENSITIVITY_SAMPLES) for one in outputs}
    limit = options.max_error
    if limit is None or judge.error(switched, outputs) <= limit:
        return _Kept(reasons, alone)
    costly = sorted(outputs, key=lambda one: -alone[one])
    low, high = 0, len(costly)  # so many float are too few, or enough
    while high - low > 1:
        middle = (low + high) // 2
        if judge.error(switched, costly[middle:]) <= limit:
            high = middle
        else:
            low = middle
    for one in costly[:high]:
        reasons[one] = f"an error of {alone[one]:.1e} by itself: the whole would miss {limit:g}"
    return _Kept(reasons, alone)


def _outcomes(
    graph: Graph,
    able: Sequence[Product],
    refused: Sequence[Unquantised],
    found: _Scaled,
    kept: _Kept,
    options: QuantizationOptions,
) -> tuple[OperatorOutcome, ...]:
    asked = {one.output for one in chosen(able, options.keep_float)}
    made = [OperatorOutcome(one.name, one.op_type, False, one.reason) for one in refused]
    for one in able:
        reason = kept.reasons.get(one.output, "") if one.output in asked else "asked for"
        weights = found.scales.weights.get(one.output)
        made.append(
            OperatorOutcome(
                one.name,
                one.op_type,
                not reason,
                reason,
                kept.errors.get(one.output),
                None if weights is None else weights.error,
            )
        )
    order = {operator.name: operator.number for operator in graph.operators}
    return tuple(sorted(made, key=lambda outcome: order[outcome.name]))


def _require_names(names: Collection[str], able: Sequence[Product], refused: Sequence[Unquantised]) -> None:
    """Raises `UnknownOperatorName` for a name that no operator has."""
    known_names = {word for one in able for word in (one.name, one.output, one.op_type)} | {one.name for one in refused}
    for name in names:
        if name not in known_names:
            shown = ", ".join(dict.fromkeys([*(one.op_type for one in able), *(one.name for one in able)]))
            raise UnknownOperatorName(name=name, known=shown)
