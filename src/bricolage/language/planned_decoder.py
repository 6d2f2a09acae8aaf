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
from bricolage.work.implementation import OWN_ENGINE, Implementation

_LOG = logging.getLogger(__name__)


def run_planned_decoder(
    decoder: DecoderDescription, plan: DecoderPlan, settings: LanguageSettings, path: Path
) -> SideModel | HandoverModel:
    """What runs a decoder as it was decided.

    Raises:
        MissingBackend: one that ships is not installed here.
        BadOption: `low` is asked for, and it was decided at `highest`. What was decided at `low` runs so: `highest`, the default of
            settings, asks for nothing there.
        ModelBeyondMemory, NotEnoughMemory, Refused: as of the models.
    """
    options = plan.provenance.options
    if settings.precision not in ("highest", options.precision):
        advice = f"It was decided at '{options.precision}'; decide again: bricolage optimize {path} --precision"
        raise BadOption(option="--precision", value=settings.precision, advice=f"{advice} {settings.precision}")
    for name in dict.fromkeys((plan.prompt.backend, plan.step.backend)):
        status = registry.get(name).status()
        if not isinstance(status, Available):
            raise MissingBackend(name=name, reason=status.reason, cure=status.cure)
    if select_device(options.isa, options.cores).fingerprint() != plan.provenance.fingerprint:
        _LOG.warning("%s was decided on another machine (%s): decide again here", path, plan.provenance.hardware)
    threads = settings.threads or options.threads
    step = _open_side(decoder, plan.step, threads)
    return step if plan.prompt == plan.step else HandoverModel(_open_side(decoder, plan.prompt, threads), step)


def _open_side(decoder: DecoderDescription, implementation: Implementation, threads: int) -> SideModel:
    if implementation.backend == OWN_ENGINE:
        config = "int8" if implementation.config.in_bytes else "f32"
        return DecoderModel(decoder, threads=threads, config=config)  # type: ignore[arg-type]
    return PrivateCacheModel(decoder, implementation, threads)
