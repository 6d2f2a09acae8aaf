"""`optimize` of a language model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from bricolage.base.decoder_options import DecoderOptions, parse_contexts
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.base.undo import undo_on_failure
from bricolage.costs.database import Database
from bricolage.driver.decoders.decoder_decision import DecoderRequest, decide_decoder
from bricolage.driver.decoders.stored_decision import complete_decoder_plan, forget_decoder_plan
from bricolage.errors import ArtifactFails, BadOption, NotALanguageModel
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import DECODER_PLAN, is_language_model, is_stored_decoder, model_within
from bricolage.language.any_decoder import open_untouched_file, read_any_decoder
from bricolage.language.decoder_trial import try_artifact
from bricolage.plan.decoder_plan import DecoderCheck, DecoderPlan, read_decoder_plan, write_decoder_artifact

__all__ = [
    "DecoderOptions",
    "check_decoder_options",
    "is_decided_as_text",
    "optimize_decoder",
    "parse_contexts",
    "read_decision",
]

_FOR_GRAPHS = ("accuracy", "weights", "objective", "latency_limit_ms", "shapes", "constants", "ray", "pattern")
"""Options that say nothing of a language model."""


def optimize_decoder(
    source: Path,
    output: Path,
    options: Options | None = None,
    decoder_options: DecoderOptions | None = None,
    progress: Progress | None = None,
    *,
    replan: bool = False,
    provisional: bool = False,
) -> DecoderPlan:
    """Decides who reads the prompts of a language model and who takes its steps, by races at stated lengths, and writes the
    artifact: a folder with the decision and the model. A fresh process loads it and is compared with float64.

    Args:
        source: a GGUF file, an ONNX file with a cache, a folder with one or of Hugging Face, or an artifact of one of these.
        output: the artifact's folder.
        options: precision, effort, threads, backends.
        decoder_options: lengths, and whether texts keep their bits.
        progress: is told what happens.
        replan: decide afresh, whatever is on record for the same model, options, versions and hardware.
        provisional: take a decision on record as it is, though other processes disturbed it.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind, UnreadDecoderGraph, ModelBeyondMemory: the model cannot be read.
        BadOption: an option says nothing of a language model, `output` is the model, or `replan` and `provisional` are both given.
        MissingBackend, NoBackend, NotAccurate: no backend can run it, or not accurately.
        NotWritable, ArtifactFails: the artifact cannot be written, or does not do in a fresh process what was measured of it; it
            has no decision then, and is no artifact.
    """
    options, progress = options or Options(), progress or Silent()
    check_decoder_options(options)
    options.check_here()
    within = model_within(source)
    if output.resolve() in (source.resolve(), within.resolve()) and source == within:
        raise BadOption(option="--output", value=output, advice="It would overwrite the model")
    progress.start(f"read {source.name}")
    decoder, original = read_any_decoder(source, progress), open_untouched_file(source)
    request = DecoderRequest(source, options, decoder_options or DecoderOptions(), replan, provisional, original)
    plan = decide_decoder(decoder, request, progress)
    write_decoder_artifact(plan, within, output)
    if plan.check is None:
        progress.start("the artifact in a fresh process")
        with undo_on_failure(lambda: (output / DECODER_PLAN).unlink(missing_ok=True)):
            plan = replace(plan, check=_try_on_record(plan, decoder, output))
        write_decoder_artifact(plan, within, output)
        with Database() as database:
            complete_decoder_plan(database, plan)
        progress.finish()
    return plan


def is_decided_as_text(source: Path, options: Options, *, has_inputs: bool = False) -> bool:
    """Whether `optimize` takes a path for a language model. An ONNX file with a cache is one unless sizes, values or
    inputs say how it is to be measured as a graph.

    Args:
        source: the path.
        options: with sizes of dimensions and values of inputs.
        has_inputs: whether it comes with inputs.
    """
    as_graph = bool(options.shapes or options.constants) or has_inputs
    return is_stored_decoder(source) or (not as_graph and is_language_model(source))


def _try_on_record(plan: DecoderPlan, decoder: DecoderDescription, output: Path) -> DecoderCheck:
    """As `try_artifact`. A decision whose artifact is wrong is on record no more; one whose trial was interrupted is."""
    try:
        return try_artifact(plan, decoder, output)
    except ArtifactFails:
        with Database() as database:
            forget_decoder_plan(database, plan)
        raise


def check_decoder_options(options: Options, also: Collection[tuple[str, object]] = ()) -> None:
    """
    Raises:
        BadOption: one of the options, or of `also`, (flag, value), is for other models.
    """
    default = Options()
    given = [(name, getattr(options, name)) for name in _FOR_GRAPHS if getattr(options, name) != getattr(default, name)]
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in given] + [
        (flag, value) for flag, value in also if value
    ]
    for flag, value in flags:
        advice = "It is for models with inputs and outputs, and this is a language model: leave it out"
        raise BadOption(option=flag, value=value, advice=advice)


def read_decision(path: Path) -> DecoderPlan | None:
    """The decision in an artifact of a language model; None of any other path.

    Raises:
        BadArtifact, NewerArtifact: it is damaged, or too new.
        NotALanguageModel: the model is gone.
    """
    plan = read_decoder_plan(path)
    if plan is not None and not model_within(path).exists():
        raise NotALanguageModel(path=path, reason="its model is missing")
    return plan
