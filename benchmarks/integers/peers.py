"""Files of quantisers: ours, and other tools' at the settings that their own documentation advises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bricolage import quantize

Arrays = Mapping[str, np.ndarray]
Quantiser = Callable[[Path, Sequence[Arrays], Path, bool], None]
"""Given a float32 file, samples, where to write, and whether matrix products alone are to be quantised."""
ASKED = "ours-asked"
"""Ours with as many operators in float as the measure of the network's answers needs."""


def ort_static(float32: Path, samples: Sequence[Arrays], to: Path, products_only: bool) -> None:
    """ONNX Runtime's static quantiser: QDQ, u8 activations, s8 weights by channel; its own preprocessing first."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # untyped base
        def __init__(self) -> None:
            self._left: Iterator[Arrays] = iter(samples)

        def get_next(self) -> dict[str, np.ndarray] | None:
            found = next(self._left, None)
            return None if found is None else dict(found)

    float32, to = float32.resolve(), to.resolve()
    ready = to.with_suffix(".ready.onnx")
    try:
        with TemporaryDirectory() as folder, chdir(folder):  # where it fails, it leaves two files in the current folder
            quant_pre_process(str(float32), str(ready))
    except Exception:  # its symbolic inference fails on some operators, in many ways; sizes are fixed anyway
        quant_pre_process(str(float32), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready),
        str(to),
        Reader(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm"] if products_only else None,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def ort_dynamic(float32: Path, _samples: Sequence[Arrays], to: Path, _products_only: bool) -> None:
    """ONNX Runtime's dynamic quantiser: matrix products with s8 weights by channel."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(float32), str(to), op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
    )


def nncf_static(float32: Path, samples: Sequence[Arrays], to: Path, products_only: bool) -> None:
    """NNCF's post-training quantisation of an ONNX file."""
    import nncf
    import onnx

    given = nncf.Dataset([dict(one) for one in samples])
    kind = nncf.ModelType.TRANSFORMER if products_only else None
    found = nncf.quantize(
        onnx.load(str(float32)), given, preset=nncf.QuantizationPreset.MIXED, model_type=kind, subset_size=len(samples)
    )
    onnx.save(found, str(to))


def ours(float32: Path, samples: Sequence[Arrays], to: Path, _products_only: bool) -> None:
    """`bricolage quantize` as it comes, but without a limit of the error: it compares quantisers, not what stays float."""
    quantize(float32, samples, max_error=None, errors_by_operator=False).save(to)


def ours_asked(float32: Path, samples: Sequence[Arrays], to: Path, judging: Sequence[Arrays], accuracy: str) -> None:
    """The same with what `--accuracy` asks for on samples of their own; results in front of functions stay float, as the native
    engine and OpenVINO multiply bytes there."""
    quantize(
        float32,
        samples,
        evaluate=judging,
        accuracy=accuracy,
        max_error=None,
        float_results=True,
        errors_by_operator=False,
    ).save(to)


def ours_float(float32: Path, samples: Sequence[Arrays], to: Path, _products_only: bool) -> None:
    """The same with `--float-results`, which `optimize` takes: what is in front of a HardSwish or the like is not rounded."""
    quantize(float32, samples, max_error=None, errors_by_operator=False, float_results=True).save(to)


PEERS: Mapping[str, Quantiser] = {
    "ours": ours,
    "ours-float": ours_float,
    "ort-static": ort_static,
    "ort-dynamic": ort_dynamic,
    "nncf": nncf_static,
}
