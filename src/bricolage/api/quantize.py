"""`quantize`: a float model and data of its kind in, a model in integers out that any runtime reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bricolage.base.option_words import parse_accuracy
from bricolage.base.progress import Progress
from bricolage.base.quantization_options import GGUF_FORMATS, QuantizationOptions
from bricolage.errors import BadOption, MissingLibrary, UnusableCalibration
from bricolage.frontends import to_model
from bricolage.frontends.decoders.decoder_files import is_language_model
from bricolage.graph.model_interface import externalise_model, settle_defaults
from bricolage.quantization.calibration_samples import make_samples
from bricolage.quantization.canonical import canonical
from bricolage.quantization.outcome import QuantizedModel
from bricolage.quantization.products import require_float
from bricolage.quantization.quantize_model import quantize_graph
from bricolage.quantization.weights_only import quantized_weights_only
from bricolage.verify.held_back import Sample
from bricolage.verify.npz_files import read_arrays

if TYPE_CHECKING:
    from bricolage.language.quantized_decoder import QuantizedDecoder

Calibration = str | Path | Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]]


def quantize(
    model: object,
    calibrate: Calibration | None = None,
    options: QuantizationOptions | None = None,
    *,
    evaluate: Calibration | None = None,
    example_inputs: object = None,
    progress: Progress | None = None,
    **given: object,
) -> QuantizedModel | QuantizedDecoder:
    """Makes a model of integers, as standard ONNX that ONNX Runtime and OpenVINO read as it is.

    Products with constant weights (Conv, MatMul, Gemm) become bytes: activations u8 with one scale each, weights s8 with one for
    each output channel. Everything else stays float. Operators that cost the most accuracy stay float too, until on samples that
    calibration has not seen the error is below `max_error` and the measure in `accuracy` holds. With `weights`, weights alone
    become 8 or 4 bits, in blocks. Of a language model (a GGUF file or a folder of Hugging Face) that is all that can be; it becomes
    a GGUF file, `calibrate` and `evaluate` are files of text, and perplexity and KL are measured.

    Args:
        model: a path, an `onnx.ModelProto`, an `onnx_ir.Model` or a PyTorch module (with `example_inputs`).
        calibrate: an .npz file or a mapping, whose arrays are called as the model's inputs and have the sample as their first axis
            (or `name.0`, `name.1` and so on, one whole input each); or a sequence of mappings, one for each sample. Not needed with
            `weights`, which rounds better with it.
        options: see `QuantizationOptions`; its fields may be given as keywords instead.
        evaluate: samples to measure errors on, likewise; a share of `calibrate` where there are none. Where `accuracy` is a
            function of the user's, samples may hold arrays that are no inputs of the model, such as labels.
        progress: is told about the layers and the text of a language model.

    Raises:
        UnusableCalibration, MissingInput, UnknownInput, WrongType, WrongShape: the data do not fit the model, are too few,
            constant or not finite.
        AlreadyQuantised: the model is quantised.
        NothingToQuantise: no operator can be quantised, or none within the error that is allowed.
        UnknownOperatorName: there is no operator of a name in `keep_float`.
        NoReference: the model cannot be evaluated.
        MetricFails, UnusableSamples: the measure in `accuracy` cannot be taken.
        UnusableText: a text is empty, too short, or none.
        BadOption, UsageError: an option or the model is not usable.
    """
    settled = replace(options or QuantizationOptions(), **given)  # type: ignore[arg-type]
    if isinstance(model, str | Path) and is_language_model(model):
        return _quantize_language(Path(model), settled, (calibrate, evaluate), progress)
    original = to_model(model, example_inputs=example_inputs)
    _refuse_language_options(settled)
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


def _refuse_language_options(options: QuantizationOptions) -> None:
    if options.block_format in GGUF_FORMATS or options.block_method == "mse":
        option, value = ("--method", "mse") if options.block_method == "mse" else ("--format", options.block_format)
        raise BadOption(option=option, value=value, advice="It is for language models, and this is an ONNX model")


def _quantize_language(
    path: Path,
    options: QuantizationOptions,
    texts: tuple[Calibration | None, Calibration | None],
    progress: Progress | None,
) -> QuantizedDecoder:
    try:
        from bricolage.language.quantized_decoder import quantize_decoder
    except ImportError as error:
        purpose = "to quantise language models"
        raise MissingLibrary(name=error.name, purpose=purpose, reason=error, extra="language") from error
    paths = list[Path | None]()
    for option, given in zip(("--calibrate", "--evaluate"), texts, strict=True):
        if given is not None and not isinstance(given, str | Path):
            raise BadOption(option=option, value=type(given).__name__, advice="Of a language model: a file of text")
        paths.append(None if given is None else Path(given))
    return quantize_decoder(path, options, paths[0], paths[1], progress)


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
