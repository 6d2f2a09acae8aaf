"""`bench` of a language model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.api.optimize_decoder import check_decoder_options
from bricolage.base import scratch
from bricolage.base.decoder_options import DecoderOptions
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.driver.decoders.decoder_decision import DecoderRequest, race_decoder
from bricolage.language.any_decoder import open_untouched_file, read_any_decoder
from bricolage.plan.decoder_plan import DecoderPlan, read_decoder_plan


@dataclass(frozen=True)
class RacedDecoder:
    """What came of the races."""

    raced: DecoderPlan
    shipped: DecoderPlan | None
    """The decision in the artifact that was raced; None of a model's file."""


def bench_decoder(
    source: Path,
    options: Options,
    contexts: tuple[int, ...] | None = None,
    given: Collection[str] = (),
    progress: Progress | None = None,
) -> RacedDecoder:
    """Races prompts and steps of a language model on all backends that keep its weights. Nothing is taken from the cost database or
    written to it: this is an independent check of what `optimize` decided.

    Args:
        source: a GGUF file, an ONNX file with a cache, a folder with one or of Hugging Face, or an artifact of one of these.
        options: precision, effort, threads, backends. Of an artifact, what is not `given` is as it was decided.
        contexts: lengths, in tokens; by default those of the artifact, or 16 and 2,048.
        given: names of the fields of `options` that were asked for.
        progress: is told what happens.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind, UnreadDecoderGraph, BadArtifact, NewerArtifact: the model cannot be
            read.
        ModelBeyondMemory: there is no memory for the races.
        BadOption: an option says nothing of a language model.
        MissingBackend, NoBackend, NotAccurate: no backend can run it, or not accurately.
    """
    shipped = read_decoder_plan(source)
    wanted = DecoderOptions()
    if shipped is not None:
        wanted = shipped.decoder
        options = replace(shipped.provenance.options, **{name: getattr(options, name) for name in given})
    check_decoder_options(options)
    options.check_here()
    if contexts is not None:
        wanted = replace(wanted, contexts=contexts)
    progress = progress or Silent()
    progress.start(f"read {source.name}")
    decoder, original = read_any_decoder(source, progress), open_untouched_file(source)
    with scratch.using(scratch.temporary()) as folder:
        request = DecoderRequest(source, options, wanted, original=original)
        raced, _ = race_decoder(decoder, request, progress, folder / "costs.sqlite")
    progress.finish()
    return RacedDecoder(raced, shipped)
