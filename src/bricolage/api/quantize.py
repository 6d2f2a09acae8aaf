"""`quantize`: a float model and data of its kind in, a model in integers out that any runtime reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.errors import UnusableCalibration
from bricolage.frontends import to_model
from bricolage.graph.interface import externalised, settle_defaults
from bricolage.quantization.canonical import canonical
from bricolage.quantization.options import QuantizationOptions
from bricolage.quantization.outcome import QuantizedModel
from bricolage.quantization.products import require_float
from bricolage.quantization.quantize import quantized
from bricolage.quantization.samples import samples
from bricolage.quantization.weights_only import quantized_weights_only

Calibration = str | Path | Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]]


def quantize(
    model: object,
    calibrate: Calibration | None = None,
    options: QuantizationOptions | None = None,
    *,
    example_inputs: object = None,
    **given: object,
) -> QuantizedModel:
    """Makes a model of integers, as standard ONNX that ONNX Runtime and OpenVINO read as it is.

    Products with constant weights (Conv, MatMul, Gemm) become bytes: activations u8 with one scale each, weights s8 with one for
    each output channel. Everything else stays float. Operators that cost the most accuracy stay float too, until the error on
    samples that calibration has not seen is below `max_error`. With `weights`, weights alone become 8 or 4 bits, in blocks.

    Args:
        model: a path, an `onnx.ModelProto`, an `onnx_ir.Model` or a PyTorch module (with `example_inputs`).
        calibrate: an .npz file or a mapping, whose arrays are called as the model's inputs and have the sample as their first axis
            (or `name.0`, `name.1` and so on, one whole input each); or a sequence of mappings, one for each sample. Not needed with
            `weights`, which rounds better with it.
        options: see `QuantizationOptions`; its fields may be given as keywords instead.

    Raises:
        UnusableCalibration, MissingInput, UnknownInput, WrongType, WrongShape: the data do not fit the model, are too few,
            constant or not finite.
        AlreadyQuantised: the model is quantised.
        NothingToQuantise: no operator can be quantised, or none within the error that is allowed.
        UnknownOperatorName: there is no operator of a name in `keep_float`.
        NoReference: the model cannot be evaluated.
        BadOption, UsageError: an option or the model is not usable.
    """
    settled = replace(options or QuantizationOptions(), **given)  # type: ignore[arg-type]
    original = to_model(model, example_inputs=example_inputs)
    settle_defaults(original, {})
    require_float(original)
    data = None if calibrate is None else _samples(original, calibrate)
    if settled.weights is not None:
        graph = canonical(original, settled)
        made = quantized_weights_only(graph, data, settled)
    elif data is None:
        raise UnusableCalibration(reason="there is none, and scales of activations follow from it")
    else:
        graph = canonical(original, settled)
        made = quantized(graph, data, settled)
    return QuantizedModel(externalised(made.model, graph.model), made.report)


def _samples(model: ir.Model, calibrate: Calibration) -> list[Mapping[str, np.ndarray]]:
    if isinstance(calibrate, str | Path):
        return samples(model, _read(Path(calibrate)))
    if isinstance(calibrate, Mapping):
        return samples(model, calibrate)
    numbered = {f"{name}.{at}": array for at, one in enumerate(calibrate) for name, array in one.items()}
    return samples(model, numbered)


def _read(path: Path) -> Mapping[str, np.ndarray]:
    from bricolage.verify.inputs import read_arrays

    return read_arrays(path, "--calibrate")
