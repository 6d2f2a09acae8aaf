"""A small recurrent model in numpy, and a tokenizer whose tokens are bytes: fast, and no answer depends on who shares a call."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from bricolage.errors import ContextFull

BYTES = 256
BEGIN, END, TURN = 256, 257, 258
SPECIALS = {"<|begin|>": BEGIN, "<|end|>": END, "<|turn|>": TURN}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


class ByteTokens:
    """Its ids are bytes, and three special tokens."""

    size = 259
    ends = frozenset({END})

    def __init__(self, template: str | None = TEMPLATE, size: int = 259) -> None:
        self.template = template
        self.size = size
        self.names = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}

    def encode(self, text: str, *, begin: bool = True, special: bool = False) -> list[int]:
        tokens = [BEGIN] if begin and text else []
        while text:
            name = next((name for name in SPECIALS if special and text.startswith(name)), None)
            tokens += [SPECIALS[name]] if name else text[0].encode()
            text = text[len(name) if name else 1 :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < BYTES else b""


class _State:
    """Hidden values behind each token."""

    def __init__(self, model: RecurrentModel) -> None:
        self.model = model
        self.hidden = [np.zeros(model.width)]
        model.open_states += 1

    @property
    def length(self) -> int:
        return len(self.hidden) - 1

    @property
    def nbytes(self) -> int:
        return self.length * self.model.width * 8

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        del self.hidden[length + 1 :]

    def copy_prefix(self, source: _State, length: int) -> None:
        assert self.length == 0 and length <= source.length
        self.hidden = source.hidden[: length + 1]

    def close(self) -> None:
        self.model.open_states -= 1


class RecurrentModel:
    """h ← tanh(W h + e), logits = O h. It counts what it is asked for."""

    vocabulary = 260

    def __init__(
        self,
        seed: int = 0,
        *,
        context_length: int = 512,
        noise: float = 0.0,
        sharpness: float = 1.0,
        never_ends: bool = True,
    ) -> None:
        """`noise`: how far its weights are from those of the model of the same seed without."""
        self.context_length, self.width = context_length, 16
        draws, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)

        def weights(*shape: int) -> np.ndarray:
            return draws.normal(size=shape) + noise * other.normal(size=shape)

        self._recurrent = weights(self.width, self.width) / 4
        self._embedding = weights(self.vocabulary, self.width)
        self._output = weights(self.vocabulary, self.width) * sharpness
        self._bias = np.zeros(self.vocabulary)
        self._bias[BYTES:] = -1e4 if never_ends else 0.0
        self.open_states = 0
        self.calls: list[list[int]] = []
        """Number of tokens of each sequence of each call."""
        self.seconds_a_call = self.seconds_a_row = 0.0
        self.fails_on: int | None = None
        """A token."""
        self.undefined_behind: int | None = None

    def open_sequence(self) -> _State:
        return _State(self)

    def extend(self, rows: Sequence[tuple[_State, Sequence[int]]], every_row: bool = False) -> list[np.ndarray]:
        self.calls.append([len(tokens) for _, tokens in rows])
        assert len({id(state) for state, _ in rows}) == len(rows)
        answers = []
        for state, tokens in rows:
            assert len(tokens) > 0
            if state.length + len(tokens) > self.context_length:
                raise ContextFull(tokens=state.length + len(tokens), limit=self.context_length)
            if self.fails_on in tokens:
                raise MemoryError("no memory for a token")
            answers.append(np.stack([self._step(state, token) for token in tokens][0 if every_row else -1 :]))
        pause = self.seconds_a_call + self.seconds_a_row * sum(self.calls[-1])
        if pause:
            time.sleep(pause)
        return answers

    def _step(self, state: _State, token: int) -> np.ndarray:
        state.hidden.append(np.tanh(self._recurrent @ state.hidden[-1] + self._embedding[token]))
        logits = (self._output @ state.hidden[-1] + self._bias).astype(np.float32)
        if token == self.undefined_behind:
            logits[3] = np.nan
        return logits
