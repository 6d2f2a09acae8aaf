"""`quantize`: a float model and data of its kind in, a model in integers out that any runtime reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.base.option_words import parse_accuracy
from bricolage.base.quantization_options import QuantizationOptions
from bricolage.errors import BadOption, UnusableCalibration
from bricolage.frontends import to_model
from bricolage.graph.model_interface import externalise_model, settle_defaults
from bricolage.quantization.calibration_samples import make_samples
from bricolage.quantization.canonical import canonical
from bricolage.quantization.outcome import QuantizedModel
from bricolage.quantization.products import require_float
from bricolage.quantization.quantize_model import quantize_graph
from bricolage.quantization.weights_only import quantized_weights_only
from bricolage.verify.held_back import Sample
from bricolage.verify.npz_files import read_arrays

Calibration = str | Path | Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]]


def quantize(
    model: object,
    calibrate: Calibration | None = None,
    options: QuantizationOptions | None = None,
    *,
    evaluate: Calibration | None = None,
    example_inputs: object = None,
    **given: object,
) -> QuantizedModel:
    """Makes a model of integers, as standard ONNX that ONNX Runtime and OpenVINO read as it is.

    Products with constant weights (Conv, MatMul, Gemm) become bytes: activations u8 with one scale each, weights s8 with one for
    each output channel. Everything else stays float. Operators that cost the most accuracy stay float too, until on samples that
    calibration has not seen the error is below `max_error` and the measure in `accuracy` holds. With `weights`, weights alone
    become 8 or 4 bits, in blocks.

    Args:
        model: a path, an `onnx.ModelProto`, an `onnx_ir.Model` or a PyTorch module (with `example_inputs`).
        calibrate: an .npz file or a mapping, whose arrays are called as the model's inputs and have the sample as their first axis
            (or `name.0`, `name.1` and so on, one whole input each); or a sequence of mappings, one for each sample. Not needed with
            `weights`, which rounds better with it.
        options: see `QuantizationOptions`; its fields may be given as keywords instead.
        evaluate: samples to measure errors on, likewise; a share of `calibrate` where there are none. Where `accuracy` is a
            function of the user's, samples may hold arrays that are no inputs of the model, such as labels.

    Raises:
        UnusableCalibration, MissingInput, UnknownInput, WrongType, WrongShape: the data do not fit the model, are too few,
            constant or not finite.
        AlreadyQuantised: the model is quantised.
        NothingToQuantise: no operator can be quantised, or none within the error that is allowed.
        UnknownOperatorName: there is no operator of a name in `keep_float`.
        NoReference: the model cannot be evaluated.
        MetricFails, UnusableSamples: the measure in `accuracy` cannot be taken.
        BadOption, UsageError: an option or the model is not usable.
    """
    settled = replace(options or QuantizationOptions(), **given)  # type: ignore[arg-type]
    original = to_model(model, example_inputs=example_inputs)
    settle_defaults(original, {})
    require_float(original)
    more = settled.accuracy is not None and bool(parse_accuracy(settled.accuracy).path)
    data = None if calibrate is None else _samples(original, calibrate, "--calibrate", more=more)
    if data is None and settled.weights is None:
        raise UnusableCalibration(reason="there is none, and scales of activations follow from it")
    if data is None and evaluate is not None:
        raise BadOption(option="--evaluate", value="given without --calibrate", advice="Give both, or neither")
    held = None if evaluate is None else _samples(original, evaluate, "--evaluate", more=more)
    graph = canonical(original, settled)
    if settled.weights is not None:
        quantized_model = quantized_weights_only(graph, data, settled, held)
    else:
        assert data is not None
        quantized_model = quantize_graph(graph, data, settled, held)
    return QuantizedModel(externalise_model(quantized_model.model, graph.model), quantized_model.report)


def _samples(model: ir.Model, given: Calibration, option: str, *, more: bool) -> list[Sample]:
    if isinstance(given, str | Path):
        return make_samples(model, read_arrays(Path(given), option), more=more)
    if isinstance(given, Mapping):
        return make_samples(model, given, more=more)
    input_names = {value.name for value in model.graph.inputs}
    inputs = {
        f"{name}.{at}": a
        for at, sample in enumerate(given)
        for name, a in sample.items()
        if name in input_names or not more
    }
    others = [{name: array for name, array in sample.items() if more and name not in input_names} for sample in given]
    return [{**sample, **other} for sample, other in zip(make_samples(model, inputs), others, strict=True)]
