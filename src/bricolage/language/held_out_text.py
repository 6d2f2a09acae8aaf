"""How accurate a language model is on a text of the user's: perplexity, KL and agreement with float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bricolage.base.generation_options import LanguageSettings
from bricolage.base.progress import Progress, Silent
from bricolage.errors import BadOption, MissingFile, UndefinedLogits, UnusableText
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_memory import (
    count_packed_bytes,
    count_reference_bytes,
    require_memory,
)
from bricolage.language.any_decoder import read_any_decoder
from bricolage.language.decoder_model import DecoderModel
from bricolage.language.open_language import run_decoder
from bricolage.language.tokenizer import Tokenizer
from bricolage.plan.decoder_plan import read_decoder_plan
from bricolage.verify.decoder_reference import compute_decoder_logits
from bricolage.verify.text_accuracy import WINDOW, AccuracyCounter, TextAccuracy, count_context, cut_windows

PredictWindow = Callable[[Sequence[int]], np.ndarray]
"""From a window to the logits behind its tokens from `count_context` on, but for its last."""


def measure_text_accuracy(
    path: Path, settings: LanguageSettings, text: Path, progress: Progress | None = None
) -> TextAccuracy:
    """A model as it generates, compared with float32 of the numbers in its file.

    Args:
        path: of a GGUF file, or of a folder of Hugging Face.
        settings: its threads, precision and cache.
        text: a file of plain text.
        progress: is told about windows.

    Raises:
        UnusableText: the text is empty, too short, or no text.
        BadOption: the model is an artifact.
        MissingFile, NotALanguageModel and others: as `open_language_model`.
    """
    if read_decoder_plan(path) is not None:
        raise BadOption(option="--accuracy", value=path, advice="Give the model's file: an artifact has other backends")
    decoder = read_any_decoder(path)
    windows = read_windows(text, Tokenizer(decoder.tokenizer, path), decoder.context_length)
    require_memory(count_reference_bytes(decoder) + count_packed_bytes(decoder), " next to those of the reference")
    model = run_decoder(decoder, settings)
    return compare_predictions(windows, reference_of(decoder), lambda window: _predict(model, window), progress)


def read_windows(path: Path, tokenizer: Tokenizer, context_length: int) -> list[list[int]]:
    """A text as windows of tokens; the text is no template's, so names of special tokens in it are text.

    Raises:
        MissingFile: there is none.
        UnusableText: it is empty, shorter than a window, or no UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFile(path=path) from None
    except UnicodeDecodeError as error:
        raise UnusableText(path=path, reason=f"it is no UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise UnusableText(path=path, reason=error.strerror or error) from error
    if not text.strip():
        raise UnusableText(path=path, reason="it is empty")
    window, tokens = min(WINDOW, context_length), tokenizer.encode(text)
    if len(tokens) < window or window < 4:
        raise UnusableText(path=path, reason=f"it has {len(tokens)} tokens, and a window {max(window, 4)}")
    return cut_windows(tokens, window, tokenizer.begin)


def reference_of(decoder: DecoderDescription) -> PredictWindow:
    """What float32 makes of a description's numbers."""
    return lambda window: compute_decoder_logits(decoder, window, np.float32)[count_context(len(window)) : -1]


def compare_predictions(
    windows: Sequence[Sequence[int]],
    reference: PredictWindow,
    predict: PredictWindow,
    progress: Progress | None = None,
) -> TextAccuracy:
    """Both on all windows.

    Raises:
        UndefinedLogits: a logit is undefined.
    """
    counter, shown = AccuracyCounter(), progress or Silent()
    shown.start("predict the text", len(windows))
    for window in windows:
        logits = predict(window)
        if np.isnan(logits).any():
            raise UndefinedLogits(position=count_context(len(window)) + int(np.isnan(logits).any(axis=1).argmax()))
        counter.add(window, reference(window), logits)
        shown.advance()
    shown.finish()
    return counter.count()


def _predict(model: DecoderModel, window: Sequence[int]) -> np.ndarray:
    context, state = count_context(len(window)), model.open_sequence()
    try:
        model.extend([(state, window[:context])])
        (logits,) = model.extend([(state, window[context:-1])], every_row=True)
        return logits
    finally:
        state.close()
