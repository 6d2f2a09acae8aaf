"""A file as a language model that writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from bricolage.base.generation_options import NGRAM, LanguageSettings
from bricolage.base.options import available_cores
from bricolage.base.progress import Progress, Silent
from bricolage.errors import BadOption
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import DECODER_PLAN
from bricolage.frontends.decoders.decoder_program import CacheType
from bricolage.language.any_decoder import read_any_decoder
from bricolage.language.decoder_model import DecoderModel
from bricolage.language.decoder_programs import Arithmetic
from bricolage.language.draft_model import ModelDrafter, check_same_tokens
from bricolage.language.language_model import LanguageModel
from bricolage.language.sequence_scheduler import DrafterFactory, SchedulerSettings
from bricolage.language.speculation import NgramDrafter, StepSeconds, measure_steps
from bricolage.language.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bricolage.language.handover_model import HandoverModel
    from bricolage.language.private_cache_model import PrivateCacheModel
    from bricolage.plan.decoder_plan import DecoderPlan


def open_language_model(
    path: Path, settings: LanguageSettings | None = None, progress: Progress | None = None
) -> LanguageModel:
    """Reads a language model.

    Args:
        path: of a GGUF file, of an ONNX file with a cache, of a folder with one or of Hugging Face, or of an artifact, which says
            who runs it.
        settings: its threads, memory and guesses; v(n) is measured where there are guesses.
        progress: is told where programs have to be compiled first.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind, UnreadDecoderGraph: as `read_any_decoder`, of the model and of the
            one that guesses.
        MissingLibrary: the package `tokenizers` is not installed.
        OtherVocabulary: the tokens of the tokenizer, of the model and of the one that guesses are not the same.
        BadArtifact, NewerArtifact, MissingBackend, BadOption: an artifact cannot be run as it says.
        ModelBeyondMemory, NotEnoughMemory: its weights, or its cache, do not fit.
    """
    settings = settings or LanguageSettings()
    plan = _read_plan(path)
    decoder = read_any_decoder(path)
    tokenizer = Tokenizer(decoder.tokenizer, path)
    progress = progress or Silent()
    make_drafter = _choose_drafter(settings, tokenizer, progress)
    model: DecoderModel | PrivateCacheModel | HandoverModel
    model = run_decoder(decoder, settings) if plan is None else _run_artifact(decoder, plan, settings, path)
    _prepare(model, settings, progress)
    limits = SchedulerSettings(settings.most_sequences, prefix_bytes=settings.prefix_bytes)
    if make_drafter is None:
        return LanguageModel(model, tokenizer, limits, on_close=model.close)
    seconds = StepSeconds(measure_steps(model, limits.most_rows))
    return LanguageModel(model, tokenizer, limits, (seconds, make_drafter))


def run_decoder(decoder: DecoderDescription, settings: LanguageSettings) -> DecoderModel:
    """A decoder on our engine, as the settings say, whose programs are compiled when they are needed.

    Raises:
        ModelBeyondMemory, NotEnoughMemory, Refused, BadOption: as `DecoderModel`.
    """
    config: Arithmetic = "int8" if settings.precision == "low" else "f32"
    threads, cache = settings.threads or available_cores(), cast(CacheType, settings.cache)
    return DecoderModel(decoder, threads=threads, config=config, cache=cache)


# What plans and other backends need is imported for artifacts alone: a file starts without it.


def _read_plan(path: Path) -> DecoderPlan | None:
    if not (path / DECODER_PLAN).is_file():
        return None
    from bricolage.plan.decoder_plan import read_decoder_plan

    return read_decoder_plan(path)


def _run_artifact(
    decoder: DecoderDescription, plan: DecoderPlan, settings: LanguageSettings, path: Path
) -> DecoderModel | PrivateCacheModel | HandoverModel:
    from bricolage.language.planned_decoder import run_planned_decoder

    if settings.cache != LanguageSettings().cache:
        advice = "An artifact's backends have caches of their own: leave it out, or give the model's file"
        raise BadOption(option="--cache", value=settings.cache, advice=advice)
    return run_planned_decoder(decoder, plan, settings, path)


def _prepare(
    model: DecoderModel | PrivateCacheModel | HandoverModel, settings: LanguageSettings, progress: Progress
) -> None:
    model.prepare(progress, every=settings.prepare or bool(settings.speculate))


def _choose_drafter(settings: LanguageSettings, tokenizer: Tokenizer, progress: Progress) -> DrafterFactory | None:
    if not settings.speculate:
        return None
    if settings.speculate == NGRAM:
        return lambda _: NgramDrafter()
    path = Path(settings.speculate)
    decoder = read_any_decoder(path)
    check_same_tokens(tokenizer, Tokenizer(decoder.tokenizer, path))
    draft_model = run_decoder(decoder, settings)
    _prepare(draft_model, settings, progress)
    return lambda options: ModelDrafter(draft_model, options)
