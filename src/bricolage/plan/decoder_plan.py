"""What was decided about a language model: who runs its prompts, who its steps, on which evidence; and the folder that holds it.

Such an artifact is a folder: `decoder-plan.json`, and the model's own file or files, linked where the disk allows it and copied
elsewhere. It holds no code and no compiled program.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, encode, parse
from bricolage.base.decoder_options import DecoderOptions
from bricolage.errors import BadArtifact, NewerArtifact, NotWritable
from bricolage.frontends.decoders.decoder_files import DECODER_PLAN, find_decoder_graph, model_within
from bricolage.plan.field_types import Duration, ErrorNumber, Hash, Size
from bricolage.plan.plan import Provenance
from bricolage.plan.race_outcome import RaceOutcome
from bricolage.work.implementation import Implementation

DECODER_FORMAT = 1
"""Version of the format. Readers refuse a higher one."""
DecoderPart = Literal["prompt", "step"]
_LARGEST_PLAN = 16 << 20
_BLOCK = 1 << 20
_FileName = Annotated[str, Matching(r"[A-Za-z0-9_][A-Za-z0-9_. +-]{0,199}", "file's name")]


@dataclass(frozen=True)
class DecoderRace:
    """The race of one program."""

    part: DecoderPart
    context: Size
    """Tokens of the prompt, or in front of the step."""
    rows: Size
    """Tokens that a call takes: a chunk of the prompt, its last one."""
    bound: ErrorNumber
    """Relative error that was accepted."""
    race: RaceOutcome


@dataclass(frozen=True)
class DecoderCheck:
    """What a fresh process answered that loaded the artifact, against float64."""

    tokens: Size
    """Of a text; each was judged."""
    kl: ErrorNumber
    """Of the probabilities behind them, nats, the mean."""
    kl_bound: ErrorNumber
    error: ErrorNumber
    """Of the logits: the relative norm of the difference."""
    bound: ErrorNumber


@dataclass(frozen=True)
class DecoderPlan:
    """The decision for a language model."""

    model: str
    digest: Hash
    """SHA-256 of the model's files."""
    files: Annotated[Mapping[_FileName, Size], Length(1, 10_000)]
    """Bytes of each."""
    prompt: Implementation
    """Who reads prompts ..."""
    step: Implementation
    """... and who takes steps."""
    same_bits: bool
    """Whether a text has the same bits however its tokens come: in chunks, with others, behind a kept prefix, on any number of
    threads."""
    handover_ms: Duration
    """What it takes to hand the cache of a chunk from one to the other; 0 where both are the same."""
    decoder: DecoderOptions
    races: Annotated[tuple[DecoderRace, ...], Length(1, 100)]
    provenance: Provenance
    check: DecoderCheck | None = None
    seconds: Mapping[str, Duration] | None = None
    """That parts of the decision took."""
    format: Annotated[int, Within(DECODER_FORMAT, DECODER_FORMAT)] = DECODER_FORMAT

    @property
    def provisional(self) -> bool:
        """Whether other processes disturbed the races: it is decided again once they do not."""
        return any(each.race.under_load for each in self.races)


def list_model_files(source: Path) -> list[Path]:
    """The files of a model: its GGUF file, those of its folder, or those that belong to an ONNX file.

    Raises:
        NotALanguageModel: a folder has several ONNX files, or weights lie in another folder than their graph.
    """
    stored = source.is_dir() and (source.parent / DECODER_PLAN).is_file()  # a model in an artifact has no other files
    if not stored and (graph := find_decoder_graph(source)) is not None:
        from bricolage.frontends.decoders.onnx_decoder_parts import (
            list_decoder_parts,
        )  # files of other kinds need no ONNX

        return list_decoder_parts(graph)
    if source.is_dir():
        return sorted(path for path in source.iterdir() if path.is_file() and path.name != DECODER_PLAN)
    return [source]


def digest_files(files: list[Path]) -> str:
    """SHA-256 of the names and contents of files."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(
                f"{path.name if len(files) > 1 else ''} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode()
            )
    return whole.hexdigest()


def write_decoder_artifact(plan: DecoderPlan, source: Path, folder: Path) -> None:
    """Writes the folder: the model first, the plan last.

    Raises:
        NotWritable: the disk is full, or something else is there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = list_model_files(source)
        target = folder / "model.gguf"
        if several := len(files) > 1:
            target = folder / "model"
            target.mkdir(exist_ok=True)
        for path in files:
            _link_or_copy(path.resolve(), target / path.name if several else target)
        partial = folder / f".{DECODER_PLAN}.partial"
        partial.write_text(json.dumps(encode(plan), indent=1), encoding="utf-8")
        partial.replace(folder / DECODER_PLAN)
    except OSError as error:
        raise NotWritable(path=folder, reason=error.strerror or error) from error


def _link_or_copy(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, partial)
    partial.replace(target)


def read_decoder_plan(folder: Path) -> DecoderPlan | None:
    """The plan of an artifact; None where the path is a model without one.

    Raises:
        BadArtifact: it is damaged, or the model's files are not those that were decided on.
        NewerArtifact: its format is a later one.
    """
    file = folder / DECODER_PLAN
    if not folder.is_dir() or not file.is_file():
        return None
    try:
        if file.stat().st_size > _LARGEST_PLAN:
            raise BadArtifact(path=folder, reason=f"{DECODER_PLAN} is larger than any plan")
        document = parse(file.read_bytes())
        version = document.get("format") if isinstance(document, dict) else None
        if isinstance(version, int) and version > DECODER_FORMAT:
            raise NewerArtifact(path=folder, found=version, known=DECODER_FORMAT)
        plan = decode(DecoderPlan, document)
    except (DecodeError, OSError) as error:
        raise BadArtifact(path=folder, reason=error) from error
    _check_sizes(plan, folder)
    return plan


def _check_sizes(plan: DecoderPlan, folder: Path) -> None:
    present = {path.name: path.stat().st_size for path in _files_within(folder)}
    for name, size in plan.files.items():
        if present.get(name) != size:
            state = "is missing" if name not in present else f"has {present[name]} bytes"
            raise BadArtifact(
                path=folder, reason=f"the model's file {name} {state}, and was decided on with {size} bytes"
            )


def _files_within(folder: Path) -> Iterator[Path]:
    model = model_within(folder)
    yield from list_model_files(model) if model.exists() else ()
