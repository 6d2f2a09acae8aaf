"""`bricolage quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.quantization.quantization_options import QuantizationOptions

Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="The quantised ONNX file.", show_default=False)
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="FILE",
        help="Inputs as the model will see them (.npz): for each input an array of its name whose first axis is the sample, or "
        "NAME.0, NAME.1 and so on, one whole input each. A part is held back to measure errors on.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option("--weights", metavar="TYPE", help="Quantise weights alone, in blocks: int8 or int4. Needs no data."),
]
BlockSize = Annotated[
    int, typer.Option("--block-size", metavar="N", help="Weights along k with one scale: 16, 32, 64, 128 or 256.")
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORM",
        help="Of --weights: matmulnbits (ONNX Runtime's operator) or blocks (DequantizeLinear of opset 21).",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Of --weights: rtn, hqq, awq or gptq; default: gptq with --calibrate, else hqq.",
    ),
]
AccuracyLevel = Annotated[
    int,
    typer.Option(
        "--accuracy-level",
        metavar="N",
        help="Of ONNX Runtime's operator: 4 multiplies bytes, several times as fast; 0 multiplies float numbers.",
    ),
]
Observer = Annotated[
    str,
    typer.Option(
        "--observer", metavar="NAME", help="How ranges follow from values: minmax, percentile, mse or entropy."
    ),
]
Percentile = Annotated[
    float, typer.Option("--percentile", metavar="P", help="Of the values, that the observer percentile keeps.")
]
KeepFloat = Annotated[
    list[str] | None,
    typer.Option("--keep-float", metavar="NAME", help="This operator, or type, stays float. Repeatable."),
]
MaxError = Annotated[
    float,
    typer.Option(
        "--max-error",
        metavar="E",
        help="Relative, on held-back samples: operators that cost most stay float until it holds. inf quantises all.",
    ),
]
Accuracy = Annotated[
    str | None,
    typer.Option(
        "--accuracy",
        metavar="METRIC",
        help="What must hold as well: sqnr=DB, cosine=X, top1=SHARE, or FILE.py:FUNCTION>=X; operators stay float until it does.",
    ),
]
HeldBack = Annotated[
    float, typer.Option("--held-back", metavar="SHARE", help="Share of the samples that calibration does not see.")
]
PairSafe = Annotated[
    bool,
    typer.Option(
        "--pair-safe/--no-pair-safe",
        help="Scales of weights with which products are exact on processors without VNNI, too.",
    ),
]
Smooth = Annotated[
    float,
    typer.Option(
        "--smooth", metavar="A", help="How far outliers behind normalisations move into weights (SmoothQuant); 0: not."
    ),
]
Equalise = Annotated[
    bool, typer.Option("--equalise/--no-equalise", help="Make the ranges of channels between convolutions equal.")
]
Outliers = Annotated[
    bool,
    typer.Option(
        "--outliers/--no-outliers", help="Multiply a few channels far larger than the others apart, where that pays."
    ),
]
CorrectBias = Annotated[
    bool, typer.Option("--correct-bias/--no-correct-bias", help="Let biases take up the mean error of rounding.")
]
Sums = Annotated[
    bool,
    typer.Option("--sums", help="Quantise residual sums too: faster in ONNX Runtime, and less accurate."),
]
FloatResults = Annotated[
    bool | None,
    typer.Option(
        "--float-results/--no-float-results",
        help="Results of convolutions in front of a HardSwish or the like stay float: more accurate, and slower in ONNX Runtime, "
        "which computes these convolutions in float32. Default: where that leaves more in integers at the accuracy asked for.",
        show_default=False,
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as an HTML page.")]


@guard_command
def quantize(
    model: a.Model,
    out: Output,
    calibrate: Calibrate = None,
    weights: Weights = None,
    block_size: BlockSize = 32,
    block_format: Format = "matmulnbits",
    block_method: Method = None,
    accuracy_level: AccuracyLevel = 4,
    observer: Observer = "mse",
    percentile: Percentile = 99.99,
    keep_float: KeepFloat = None,
    max_error: MaxError = 0.1,
    accuracy: Accuracy = None,
    evaluate: a.Evaluate = None,
    held_back: HeldBack = 0.25,
    pair_safe: PairSafe = True,
    smooth: Smooth = 0.5,
    equalise: Equalise = True,
    outliers: Outliers = True,
    correct_bias: CorrectBias = True,
    sums: Sums = False,
    float_results: FloatResults = None,
    html: Html = None,
    as_json: a.Json = False,
) -> None:
    """Quantise MODEL to 8 bits, or its weights alone to 8 or 4, as a standard ONNX file for any runtime.

    Scales follow from calibration data. Operators stay float where the whole would miss --max-error or --accuracy, those first that
    cost most for the time that they save: the report says which, and why. Both are measured against the float model in float64, on
    samples that calibration has not seen.
    """
    from bricolage.cli import output

    given = dict(locals())
    for file in (model, calibrate, evaluate):
        if file is not None and not file.exists():
            raise errors.MissingFile(path=file)
    if out.resolve() == model.resolve():
        raise errors.BadOption(option="--output", value=out, advice="It would overwrite the model")
    options = _options(given)
    output.check_writable(out, html)
    with output.stdout_kept():
        from bricolage.api.quantize import quantize as run

        quantised_model = run(model, calibrate, options, evaluate=evaluate)
        quantised_model.save(out)
    from bricolage.report import quantization

    if html is not None:
        output.write_text(html, quantization.quantization_page(quantised_model.report, model.stem))
        output.note(f"wrote {html}")
    if as_json:
        output.show_json(quantization.quantization_json(quantised_model.report))
    else:
        output.show_result(quantization.quantization_table(quantised_model.report))
    output.note(f"wrote {out}")


def _options(given: Mapping[str, object]) -> QuantizationOptions:
    """The command's arguments, by name, as options."""
    from bricolage.quantization.quantization_options import QuantizationOptions

    settings = {name: value for name, value in given.items() if name in QuantizationOptions.__dataclass_fields__}
    settings["keep_float"] = tuple(settings["keep_float"] or ())  # type: ignore[arg-type]
    settings["max_error"] = None if settings["max_error"] == float("inf") else settings["max_error"]
    return QuantizationOptions(**settings)  # type: ignore[arg-type]  # which it checks itself
