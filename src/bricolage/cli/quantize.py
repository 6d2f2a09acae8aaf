"""`bricolage quantize`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bricolage import errors
from bricolage.base.quantization_options import QuantizationOptions
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="The quantised ONNX file.", show_default=False)
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="FILE",
        help="Inputs as the model will see them (.npz): for each input an array of its name whose first axis is the sample, or "
        "NAME.0, NAME.1 and so on, one whole input each. A part is held back to measure errors on. Of a language model: a file "
        "of text.",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as an HTML page.")]


@guard_command
@a.decision_options(of=QuantizationOptions, before={"held_back": "evaluate"})
def quantize(
    model: a.Model,
    out: Output,
    calibrate: Calibrate = None,
    *,
    options: QuantizationOptions,
    evaluate: a.Evaluate = None,
    html: Html = None,
    as_json: a.Json = False,
) -> None:
    """Quantise MODEL to 8 bits, or its weights alone to 8 or 4, as a standard ONNX file for any runtime; a language model's weights
    as a GGUF file.

    Scales follow from calibration data. Operators stay float where the whole would miss --max-error or --accuracy, those first that
    cost most for the time that they save: the report says which, and why. Both are measured against the float model in float64, on
    samples that calibration has not seen. Of a language model, perplexity and KL are measured on text.
    """
    from bricolage.cli import output, progress_bars

    for file in (model, calibrate, evaluate):
        if file is not None and not file.exists():
            raise errors.MissingFile(path=file)
    if out.resolve() == model.resolve():
        raise errors.BadOption(option="--output", value=out, advice="It would overwrite the model")
    if options.max_error == math.inf:
        options = replace(options, max_error=None)
    output.check_writable(out, html)
    with output.stdout_kept():
        from bricolage.api.quantize import quantize as run

        with progress_bars.show_progress() as shown:
            quantised_model = run(model, calibrate, options, evaluate=evaluate, progress=shown)
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
