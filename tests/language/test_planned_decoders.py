"""Language models on other backends than our engine, and prompts and steps on two of them: right, and what of their bits holds."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.errors import ContextFull
from bricolage.language.decoder_model import DecoderModel
from bricolage.language.handover_model import HandoverModel, SideModel
from bricolage.language.private_cache_model import PrivateCacheModel
from bricolage.verify.decoder_reference import compute_decoder_logits
from bricolage.work.implementation import Implementation
from tests.language.mixed_decoders import CONTEXT, VOCABULARY, mixed_decoder

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 190).tolist()
CUTS = (1, 20, 1, 3, 100, 1, 40, 1, 9, 14)
"""Steps, chunks with rows that are not used, and more tokens than the window and the first cache have room for."""
RIGHT = compute_decoder_logits(mixed_decoder(), TOKENS)


def open_side(backend: str) -> SideModel:
    if not isinstance(registry.get(backend).status(), Available):
        pytest.skip(backend)
    if backend == "native":
        return DecoderModel(mixed_decoder(), threads=1)
    return PrivateCacheModel(mixed_decoder(), Implementation(backend), 1)


def check_logits(logits: np.ndarray, end: int, bound: float) -> None:
    assert np.abs(logits - RIGHT[end - len(logits) : end]).max() < bound * np.abs(RIGHT).max()


def check_text(model: SideModel | HandoverModel, bound: float) -> None:
    """A text in pieces, a copied prefix, and tokens taken back."""
    state, done = model.open_sequence(), 0
    for count in CUTS:
        (logits,) = model.extend([(state, TOKENS[done : done + count])], every_row=count == 3)
        done += count
        assert len(logits) == (3 if count == 3 else 1)
        check_logits(logits, done, bound)
    other = model.open_sequence()
    other.copy_prefix(state, 150)
    state.truncate(100)
    first, second = model.extend([(state, TOKENS[100:]), (other, TOKENS[150:151])])
    check_logits(first, 190, bound)
    check_logits(second, 151, bound)
    assert (state.length, other.length) == (190, 151)
    with pytest.raises(ContextFull):
        model.extend([(other, [1]), (state, [1] * CONTEXT)])
    assert (state.length, other.length) == (190, 151)
    state.close()
    assert state.length == state.nbytes == 0


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_backend_with_private_caches_is_right(backend: str) -> None:
    check_text(open_side(backend), 1e-5)


@pytest.mark.parametrize(("prompt", "step"), [("onnxruntime", "native"), ("native", "openvino")])
def test_a_cache_that_is_handed_over_is_right(prompt: str, step: str) -> None:
    check_text(HandoverModel(open_side(prompt), open_side(step)), 2e-2)  # keys and values are float16 on one side


def test_rows_that_are_handed_over_are_those_of_the_other_side() -> None:
    prompt, step = open_side("onnxruntime"), open_side("native")
    model = HandoverModel(prompt, step)
    state = model.open_sequence()
    model.extend([(state, TOKENS[:60])])
    model.extend([(state, TOKENS[60:61])])
    assert (state.prompt.length, state.step.length) == (60, 61)
    for given, taken in zip(state.prompt.take_rows(0, 60), state.step.take_rows(0, 60), strict=True):
        assert np.array_equal(given.astype(np.float16), taken)


def test_bits_do_not_depend_on_other_sequences() -> None:
    model = open_side("onnxruntime")
    alone, mate, third = (model.open_sequence() for _ in range(3))
    (expected,) = model.extend([(alone, TOKENS[:50])])
    model.extend([(third, TOKENS[:7])])
    logits, _ = model.extend([(mate, TOKENS[:50]), (third, TOKENS[7:90])])
    assert np.array_equal(logits, expected)
