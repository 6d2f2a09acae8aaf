"""A language model as an artifact of it says: who reads prompts, who takes steps."""

from __future__ import annotations

import logging
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.generation_options import LanguageSettings
from bricolage.device.host import select_device
from bricolage.errors import BadOption, MissingBackend
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.language.decoder_model import DecoderModel
from bricolage.language.handover_model import HandoverModel, SideModel
from bricolage.language.private_cache_model import PrivateCacheModel
from bricolage.plan.decoder_plan import DecoderPlan
from bricolage.work.implementation import OWN_ENGINE, Implementation, KernelConfig

_FLOATS = "f32-alike"
"""Our engine's products in float32, with the same bits for any number of rows."""
_LOG = logging.getLogger(__name__)


def run_planned_decoder(
    decoder: DecoderDescription, plan: DecoderPlan, settings: LanguageSettings, path: Path
) -> SideModel | HandoverModel:
    """What runs a decoder as it was decided.

    Raises:
        MissingBackend: one that ships is not installed here.
        BadOption: a precision is asked for that it was not decided at. What was decided at a lower one than `highest` runs at
            `highest` where our engine does, from the same weights; another backend that ships in bytes is decided anew.
        ModelBeyondMemory, NotEnoughMemory, Refused: as of the models.
    """
    options = plan.provenance.options
    prompt, step = (choose_precision(side, plan, settings, path) for side in (plan.prompt, plan.step))
    for name in dict.fromkeys((prompt.backend, step.backend)):
        status = registry.get(name).status()
        if not isinstance(status, Available):
            raise MissingBackend(name=name, reason=status.reason, cure=status.cure)
    if select_device(options.isa, options.cores).fingerprint() != plan.provenance.fingerprint:
        _LOG.warning("%s was decided on another machine (%s): decide again here", path, plan.provenance.hardware)
    threads = settings.threads or options.threads
    step_side = _open_side(decoder, step, threads)
    return step_side if prompt == step else HandoverModel(_open_side(decoder, prompt, threads), step_side)


def choose_precision(
    shipped: Implementation, plan: DecoderPlan, settings: LanguageSettings, path: Path
) -> Implementation:
    """What runs prompts or steps at the precision that is asked for.

    Args:
        shipped: what was decided to run them.
        plan: the decision.
        settings: a precision, or none: then it is the one that was decided.
        path: of the artifact, for the error.

    Raises:
        BadOption: it cannot.
    """
    asked, decided = settings.precision, plan.provenance.options.precision
    if asked in (None, decided):
        return shipped
    if asked == "highest" and not shipped.config.in_bytes:
        return shipped
    if asked == "highest" and shipped.backend == OWN_ENGINE:
        return Implementation(OWN_ENGINE, KernelConfig(_FLOATS))
    advice = f"It was decided at '{decided}', where {shipped} won; decide again: bricolage optimize {path} --precision {asked}"
    raise BadOption(option="--precision", value=asked, advice=advice)


def _open_side(decoder: DecoderDescription, implementation: Implementation, threads: int) -> SideModel:
    if implementation.backend == OWN_ENGINE:
        config = "int8" if implementation.config.in_bytes else "f32"
        return DecoderModel(decoder, threads=threads, config=config)  # type: ignore[arg-type]
    return PrivateCacheModel(decoder, implementation, threads)
