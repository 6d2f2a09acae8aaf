"""Decoders that were read from graphs, kept in the cache: reading a graph takes far longer than mapping its weights.

A folder has `weights`, arrays one behind another, and `decoder.json`, the description with their places.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes  # noqa: F401 -- numpy knows the name of bfloat16 by it
import numpy as np

from bricolage import _version
from bricolage.base.cache import UNFINISHED, cache_directory, discard, trim
from bricolage.base.codec import DecodeError, decode, encode
from bricolage.frontends.decoders.decoder_description import DecoderDescription, SourceFile, TokenizerDescription
from bricolage.frontends.decoders.onnx_decoder_files import KEPT_DESCRIPTION

_WEIGHTS, _ARRAY = "weights", "array"
_ALIGNMENT = 64
NO_TOKENIZER = TokenizerDescription("gpt2")


def place_of(file: Path, stated: str) -> Path:
    """The folder for what is read from a graph. `stated`: what else the reading rests on."""
    digest = hashlib.sha256(f"{_digest_reader()} {stated}".encode())
    with file.open("rb") as opened:
        digest.update(hashlib.file_digest(opened, "sha256").digest())
    return cache_directory() / "compiled" / "decoders" / "read" / digest.hexdigest()


@cache
def _digest_reader() -> str:
    """Of the code that reads graphs."""
    digest = hashlib.sha256(_version.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def keep_decoder(folder: Path, decoder: DecoderDescription, graph: Path, files: Iterable[Path]) -> None:
    """Writes a decoder but for its tokenizer. Another process may do the same at the same time; a full disk loses nothing.

    Args:
        folder: as `place_of` names it.
        decoder: what was read.
        graph: the ONNX file.
        files: with weights of the graph: where one is not what it is now, the reading is of no use.
    """
    draft = folder.with_name(f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        draft.mkdir(parents=True)
        with (draft / _WEIGHTS).open("wb") as file:
            places: dict[int, dict[str, object]] = {}

            def place(array: np.ndarray) -> dict[str, object]:
                if id(array) not in places:
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    places[id(array)] = {_ARRAY: file.tell(), "shape": list(array.shape), "dtype": array.dtype.name}
                    np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(file)
                return places[id(array)]

            described = encode(replace(decoder, tokenizer=NO_TOKENIZER))
            described.pop("sources")
            whole = {
                "files": [[str(path.absolute()), _name_beside(graph, path), *_look_at(path)] for path in files],
                "decoder": described,
            }
            text = json.dumps(whole, default=place)
        (draft / KEPT_DESCRIPTION).write_text(text, encoding="utf-8")
        discard(folder)  # of weights that are no more, or that lie next to another copy of the graph
        draft.rename(folder)
    except OSError:
        discard(draft)
    trim()


def open_kept_decoder(
    folder: Path, tokenizer: TokenizerDescription, graph: Path | None = None
) -> DecoderDescription | None:
    """The decoder in a folder, its weights mapped; None where there is none, or it is damaged, or the weights of `graph` are others
    than those that were read: two files may have the same graph."""
    try:
        weights = np.memmap(folder / _WEIGHTS, np.uint8, "r")
        data = json.loads((folder / KEPT_DESCRIPTION).read_bytes())
        for path, name, *facts in data["files"]:
            folders = [] if graph is None else [graph.parent, graph.resolve().parent]
            places = [place / name for place in folders] or [Path(path)]
            if all(not place.exists() or _look_at(place) != facts for place in places):
                return None
        decoder = decode(DecoderDescription, _with_arrays(data["decoder"], weights), "decoder")
        sources = tuple(SourceFile.of(folder / name) for name in (KEPT_DESCRIPTION, _WEIGHTS))
        os.utime(folder)  # what was used last is removed last
    except (OSError, ValueError, TypeError, KeyError, DecodeError):
        return None
    decoder = replace(decoder, tokenizer=tokenizer)
    object.__setattr__(decoder, "sources", sources)  # no argument, as in `read_decoder`
    return decoder


def _with_arrays(value: object, weights: np.ndarray) -> object:
    if isinstance(value, dict):
        if _ARRAY in value:
            dtype, start = np.dtype(value["dtype"]), value[_ARRAY]
            size = math.prod(value["shape"]) * dtype.itemsize
            return weights[start : start + size].view(dtype).reshape(value["shape"])
        return {key: _with_arrays(inner, weights) for key, inner in value.items()}
    return [_with_arrays(inner, weights) for inner in value] if isinstance(value, list) else value


def _name_beside(graph: Path, path: Path) -> str:
    """How a file of weights is called from the folder of its graph."""
    return str(path.relative_to(graph.parent)) if path.is_relative_to(graph.parent) else path.name


def _look_at(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_size, facts.st_ino, facts.st_mtime_ns]  # a link to it changes ctime
