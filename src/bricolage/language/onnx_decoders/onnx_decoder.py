"""A decoder in an ONNX file with a cache as inputs and outputs, with the files that belong to it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.base.progress import Progress, Silent
from bricolage.errors import UnreadDecoderGraph
from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    build_checked_decoder,
)
from bricolage.frontends.decoders.named_values import NamedValues
from bricolage.frontends.decoders.onnx_decoder_files import find_settings
from bricolage.frontends.decoders.tokenizer_json import read_tokenizer_json
from bricolage.frontends.onnx_file import load_onnx
from bricolage.language.onnx_decoders.cache_interface import CacheInterface, find_cache_interface
from bricolage.language.onnx_decoders.decoder_reading import StatedSizes, read_decoder_graph
from bricolage.language.onnx_decoders.kept_decoders import keep_decoder, open_kept_decoder, place_of
from bricolage.language.onnx_decoders.original_answers import answer_by_onnxruntime
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.language.onnx_decoders.rounded_rows import ROUNDING_OPERATORS
from bricolage.verify.decoder_reference import compute_decoder_logits
from bricolage.verify.unoptimised import is_installed

_LOG = logging.getLogger(__name__)
_CALLS = (7, 1, 3)
"""Tokens of the calls by which a reading is compared with its file: a prompt, a step, and several tokens behind a cache."""
_WHOLE, _ROUNDED = 1e-3, 0.1
"""Differences of logits, by norm, to ONNX Runtime: of float32, and where it rounds to 16 bits or rows to bytes."""


def read_onnx_decoder(file: Path, progress: Progress | None = None) -> DecoderDescription:
    """The decoder of an ONNX file. It is read and compared with what ONNX Runtime answers once, and then kept in the cache.
    `progress` is told of both.

    Raises:
        NotALanguageModel: it has no tokenizer, or sizes do not fit together.
        UnknownDecoderKind: a tokenizer that is not read.
        UnreadDecoderGraph: a part of the graph is something that no description has, or the answers differ.
        NotAModel, MissingExternalData, InvalidGraph and others: as `load_onnx`.
    """
    folder, config = find_settings(file)
    tokenizer = read_tokenizer_json(folder, config)
    context = config.integer("max_position_embeddings")
    stated = StatedSizes(context, _base_of(config), tokenizer)
    place = place_of(file, f"{context} {stated.rope_base}")
    return open_kept_decoder(place, tokenizer, file) or _read_graph(file, stated, place, progress or Silent())


def _read_graph(file: Path, stated: StatedSizes, place: Path, progress: Progress) -> DecoderDescription:
    progress.start(f"read the graph of {file.name}, which is done once")
    model = load_onnx(file)
    tensors = [value.const_value for value in model.graph.initializers.values()]
    files = sorted({Path(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)})
    rounded = _is_rounded(model)  # before the model is changed
    try:
        interface = find_cache_interface(model)
        decoder = build_checked_decoder(file, lambda: read_decoder_graph(model, interface, stated))
        progress.start(f"compare what was read of {file.name} with ONNX Runtime")
        _compare(file, interface, decoder, rounded)
    except NotUnderstood as reason:
        raise UnreadDecoderGraph(path=file, reason=reason) from reason
    except (ArithmeticError, LookupError, ValueError) as error:  # sizes that no step expects
        raise UnreadDecoderGraph(path=file, reason=f"its parts do not fit together ({error})") from error
    finally:
        progress.finish()
    keep_decoder(place, decoder, file, files)
    return open_kept_decoder(place, stated.tokenizer, file) or decoder


def _compare(file: Path, interface: CacheInterface, decoder: DecoderDescription, rounded: bool) -> None:
    """Raises NotUnderstood: the file answers otherwise than what was read."""
    if not is_installed():
        _LOG.warning("what was read of '%s' is not compared with it: that takes the package onnxruntime", file)
        return
    tokens = np.random.default_rng(0).integers(0, decoder.vocabulary, sum(_CALLS)).tolist()
    ends = np.cumsum(_CALLS)
    calls = [tokens[end - count : end] for end, count in zip(ends, _CALLS, strict=True)]
    original = answer_by_onnxruntime(file, interface, calls)
    logits = compute_decoder_logits(decoder, tokens, np.float32)[ends - 1]
    difference = float(np.linalg.norm(logits - original) / np.linalg.norm(original))
    _LOG.info("its logits differ by %.1e from those of ONNX Runtime", difference)
    if not difference <= (_ROUNDED if rounded else _WHOLE):
        raise NotUnderstood(f"ONNX Runtime's logits differ by {difference:.1e} from what was read")


def _is_rounded(model: ir.Model) -> bool:
    """Whether ONNX Runtime may round more than float32 does: halves, or rows for products with integers."""
    halves = any(value.dtype == ir.DataType.FLOAT16 for value in model.graph.initializers.values())
    kinds = {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}
    return halves or not kinds.isdisjoint(ROUNDING_OPERATORS)


def _base_of(config: NamedValues) -> float | None:
    """Of rotary frequencies, where they are said to be unscaled."""
    parameters = config.within("rope_parameters")
    scaled = parameters.text("rope_type", "default") != "default" or config.values.get("rope_scaling") is not None
    base = parameters.number("rope_theta", config.number("rope_theta", 0.0))
    return base if base > 0 and not scaled else None
