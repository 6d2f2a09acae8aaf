"""The code of a decoder's programs in the cache: compiled once, and opened again by what the decoder is.

A record says in which folder a program's code lies, and its inputs and outputs. Its name is a digest of the decoder's contents, the
program, the engine and the processor; so a program that was compiled before is opened without reading weights and without a graph.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.kernel import Kernel
from bricolage.base import scratch, sealed
from bricolage.base.cache import compiled_directory
from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, encode, parse
from bricolage.device.tensor_form import SizedTensor
from bricolage.errors import NotWritable
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_program import DecoderProgram
from bricolage.graph.region_model import KeptEnds, RegionModel
from bricolage.work.implementation import KernelConfig

Arithmetic = Literal["f32", "int8"]
"""In which products are computed: `int8` rounds rows to bytes, each block of them with a scale of its own."""
_BACKEND = "native"
"""Only our own engine leaves the length of a cache out of its code."""
_LOG = logging.getLogger(__name__)
_FORMAT = 1
_FILE = "program.json"
_MOST = 10_000
"""Inputs and outputs."""


@dataclass(frozen=True)
class ProgramSettings:
    """How all programs of a model are compiled."""

    threads: int
    config: Arithmetic


@dataclass(frozen=True)
class _KeptProgram:
    """What opens a program again."""

    code: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}", "folder's name")]
    """Its folder, next to the record."""
    inputs: Annotated[tuple[SizedTensor, ...], Length(0, _MOST)]
    outputs: Annotated[tuple[SizedTensor, ...], Length(0, _MOST)]
    format: Annotated[int, Within(_FORMAT, _FORMAT)] = _FORMAT


def compile_decoder_program(
    decoder: DecoderDescription, identity: str, program: DecoderProgram, settings: ProgramSettings
) -> tuple[Kernel, KeptEnds]:
    """Compiles a program, keeps its code and a record of it, and opens it.

    Raises:
        Refused, MissingBackend: the engine does not compile it.
        NotWritable: the disk is full or the cache cannot be written.
    """
    from bricolage.frontends.decoders.decoder_graph import build_decoder_graph
    from bricolage.graph.extract import write_model
    from bricolage.graph.store import Store

    resources = _resources(settings)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch.using(scratch.temporary()))
        model = build_decoder_graph(decoder, program)
        Store(folder).share([model])
        write_model(model, folder / "region.onnx")
        region = RegionModel(folder / "region.onnx")
        ends = KeptEnds(*(tuple(map(SizedTensor.of, side)) for side in (region.inputs, region.outputs)))
        try:
            kernel = registry.get(_BACKEND).compile(region, KernelConfig(f"{settings.config}-alike"), resources)
            with sealed.making(_name_record(identity, program, settings)) as record:
                text = json.dumps(encode(_KeptProgram(kernel.kept, ends.inputs, ends.outputs)))
                (record / _FILE).write_text(text, encoding="utf-8")
        except OSError as error:
            raise NotWritable(path=error.filename or resources.cache, reason=error.strerror or error) from error
        return kernel, ends


def reopen_decoder_program(
    identity: str, program: DecoderProgram, settings: ProgramSettings
) -> tuple[Kernel, KeptEnds] | None:
    """What was compiled before; None where it was not, or is not as it was left."""
    record = _name_record(identity, program, settings)
    try:
        if not sealed.intact(record):
            return None
        kept = decode(_KeptProgram, parse((record / _FILE).read_bytes()))
        ends = KeptEnds(kept.inputs, kept.outputs)
        kernel = registry.get(_BACKEND).reopen(ends, kept.code, _resources(settings))
    except (OSError, DecodeError) as error:
        _LOG.debug("%s is not used: %s", record, error)
        return None
    return None if kernel is None else (kernel, ends)


def is_program_kept(identity: str, program: DecoderProgram, settings: ProgramSettings) -> bool:
    """Whether there is a record of it, which may be damaged."""
    return _name_record(identity, program, settings).is_dir()


def _resources(settings: ProgramSettings) -> Resources:
    resources = Resources(threads=settings.threads, shares_weights=True)
    cache = compiled_directory(resources.device.fingerprint(), _BACKEND, registry.version(_BACKEND))
    return replace(resources, cache=cache)


def _name_record(identity: str, program: DecoderProgram, settings: ProgramSettings) -> Path:
    resources = _resources(settings)
    device = resources.device
    facts = [
        *(_FORMAT, identity, encode(program), encode(settings)),
        *(sorted(device.instructions), asdict(device.caches)),
    ]
    assert resources.cache is not None
    return resources.cache / f"decoder-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"
