"""`optimize`: from a model to the fastest verified way to run it on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bricolage.base.decoder_options import DecoderOptions
from bricolage.base.option_words import constant_word, sizes_of
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.driver.context import check_again
from bricolage.driver.given_samples import Data, GivenData
from bricolage.driver.model_decision import DecisionRequest, decide_model
from bricolage.driver.sources import GivenModel
from bricolage.errors import BadOption
from bricolage.measure.pool import Pool
from bricolage.runtime.executable import Executable

if TYPE_CHECKING:
    from bricolage.language.language_model import LanguageModel


def optimize(
    source: Any,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    dynamic: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    replan: bool = False,
    provisional: bool = False,
    progress: Progress | None = None,
    pool: Pool | None = None,
    output: str | Path | None = None,
    calibrate: Data | None = None,
    evaluate: Data | None = None,
    decoder: DecoderOptions | None = None,
) -> Executable:
    """The fastest verified way to run a model on this machine, or to answer the most requests a second, as an executable.

    Args:
        source: path of an ONNX file, of a `.pt2` file or of an artifact, an `onnx.ModelProto`, an `onnx_ir.Model`, a
            `torch.nn.Module` with `example_inputs`, or a `torch.export.ExportedProgram`.
        options: precision, effort, threads, shapes ...
        example_inputs: for a module, its arguments; they also serve for measuring unless `inputs` are given.
        dynamic: for a module, its `dynamic_shapes` (see `torch.export.export`).
        inputs: real inputs by name for measuring and verifying; by default inputs are generated.
        shapes: sizes of open dimensions by name, added to those of `options`: `{"batch": (1, 8), "sequence": 128}`. Several make
            shape buckets. A batch takes 1 by default, which is told; others need a size, here or by `inputs`.
        constants: values of inputs that never change, added to those of `options`: `{"sr": 16000}`; None is the value that
            `inputs` have. A call may leave them out, and is refused with another value.
        replan: decide afresh, whatever is on record for the same model, options, versions and hardware. Costs that were measured
            are used again, failures that may have been bad luck are not. A decision on record that is provisional
            (`DecisionRecord.provisional`) is gone on with by default, and taken as it is where `provisional` is asked for.
        progress: is told what happens, and hears of every shape bucket as soon as it is decided.
        pool: worker processes that stay for the next model; by default there are own ones, which end with the decision.
        output: where the artifact goes. A fresh process loads it from there and is compared with float64, on the inputs and at
            another size of each symbolic dimension; what fails gives way to the fastest baseline that does not.
        calibrate: samples, a .npz file or arrays whose first axis is the sample, that give a graph of integers its scales at `low`.
        decoder: lengths at which a language model races. It needs an `output`, and a `LanguageModel` comes back, as of `load`.
        evaluate: likewise, to judge accuracy by; by default a quarter of `calibrate`. It may hold labels for the user's metric.

    Raises:
        UsageError: bad model, input, data or option, or `replan` and `provisional` together.
        NoBackend, NoPlacement: nothing installed can run it.
        NotAccurate: nothing reaches the accuracy asked for.
        LatencyLimit: for throughput, nothing answers within the limit.
        NotWritable: the disk of the cache, or of `output`, is full or cannot be written.
        ArtifactFails: the artifact at `output` fails in a fresh process, whatever of what was measured runs it.

    Ctrl-C while measuring keeps what is finished and returns the best plan so far; a second one gives up.
    """
    if decoder is not None or _is_text(source, options, (shapes, constants, inputs)):
        again = {"replan": replan, "provisional": provisional}
        return cast(Executable, _optimize_language_model(Path(source), output, options, decoder, progress, again))
    options, progress = _settle_options(options or Options(), shapes or {}, constants or {}), progress or Silent()
    check_again(replan, provisional)
    model = GivenModel(source, example_inputs, dynamic, inputs, _give_data(calibrate, evaluate, options))
    path = None if output is None else Path(output)
    return decide_model(DecisionRequest(model, options, progress, pool, path, replan=replan, provisional=provisional))


def _give_data(calibrate: Data | None, evaluate: Data | None, options: Options) -> GivenData:
    """Samples, if they go with the options."""
    data = GivenData.of(calibrate, evaluate)
    data.check(options)
    return data


def _is_text(source: object, options: Options | None, of_graphs: Sequence[object]) -> bool:
    """`of_graphs`: arguments that say how an ONNX file is measured as a graph."""
    if not isinstance(source, str | Path):
        return False
    from bricolage.api.optimize_decoder import is_decided_as_text

    return is_decided_as_text(Path(source), options or Options(), has_inputs=any(map(bool, of_graphs)))


def _optimize_language_model(
    source: Path,
    output: str | Path | None,
    options: Options | None,
    decoder: DecoderOptions | None,
    progress: Progress | None,
    again: Mapping[str, bool],
) -> LanguageModel:
    """`again`: by name, what becomes of a decision on record.

    Raises:
        BadOption: it is not said where the artifact goes.
    """
    from bricolage.api.optimize_decoder import optimize_decoder
    from bricolage.api.text_generation import open_text_model

    if output is None:
        advice = "The artifact of a language model holds the model; give the folder that it goes to"
        raise BadOption(option="output", value=None, advice=advice)
    optimize_decoder(source, Path(output), options, decoder, progress, **again)
    return open_text_model(Path(output))


def _settle_options(
    options: Options, shapes: Mapping[str, int | Sequence[int]], constants: Mapping[str, object]
) -> Options:
    """The options with these sizes and constants, if they go with this machine."""
    sizes = {**options.shapes, **{name: sizes_of(size) for name, size in shapes.items()}}
    words = {**options.constants, **{name: constant_word(name, value) for name, value in constants.items()}}
    options = replace(options, shapes=sizes, constants=words)
    options.check_here()
    return options
