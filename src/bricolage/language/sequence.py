"""One text that a model writes: its tokens, its draws, and what its reader is told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from bricolage.base.generation_options import GenerationOptions
from bricolage.language.speculation import Draft, SequenceSpeculation
from bricolage.language.text_stream import TextStream
from bricolage.language.token_model import Logits, SequenceState, TextTokens, token_data
from bricolage.language.token_sampling import likeliest, log_probabilities, next_distribution

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class TokenRecord:
    """A token that was drawn."""

    token: int
    data: bytes
    """Its part of the text."""
    logprob: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()
    """(token, log-probability), as many as were asked for."""


@dataclass(frozen=True)
class TextPiece:
    """What one step has added to a text."""

    text: str
    """That is certain now; it may be empty."""
    tokens: tuple[TokenRecord, ...]


@dataclass(frozen=True)
class SequenceEnd:
    """Nothing follows."""

    reason: FinishReason | None
    """None: it was cancelled, or failed."""
    error: BaseException | None = None


SequenceEvent = TextPiece | SequenceEnd


class EventSink(Protocol):
    """Where a sequence's reader waits. `put` never blocks. At most `max_tokens` pieces come, so that a reader who stands still
    stops no other one."""

    def put(self, event: SequenceEvent, /) -> None:
        """Takes what has happened; called by the scheduler's thread."""
        ...


@dataclass(frozen=True)
class SequenceTimes:
    """Of a sequence, in the seconds of `time.perf_counter`."""

    submitted_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(eq=False)
class RunningSequence:
    """A sequence in the hands of the scheduler, whose thread alone changes it."""

    tokens: list[int]
    """Of the prompt, and those drawn."""
    options: GenerationOptions
    tokenizer: TextTokens
    events: EventSink
    """For the reader."""
    speculation: SequenceSpeculation | None = None
    cancelled: bool = False
    """Set by the reader."""
    restored: int = 0
    """Tokens of the prompt whose state was kept."""
    state: SequenceState | None = None
    times: SequenceTimes = field(default_factory=lambda: SequenceTimes(time.perf_counter()))

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.finish: FinishReason | None = "length" if self.options.max_tokens == 0 else None
        self._seen = Counter(self.tokens) if self.options.repetition_penalty != 1.0 else Counter[int]()
        self._generator = np.random.Generator(np.random.PCG64([self.options.seed, 0]))
        self._text = TextStream(self.options.stop)

    @property
    def missing(self) -> Sequence[int]:
        """Tokens that the model has not seen yet: of the prompt, or the last one."""
        assert self.state is not None
        return self.tokens[self.state.length :]

    @property
    def drawn(self) -> int:
        """Number of tokens behind the prompt."""
        return len(self.tokens) - self.prompt_length

    def guess(self, sequences: int, context_length: int) -> Draft:
        """Guesses for its next step, none of which may be beyond its end."""
        most = min(self.options.max_tokens - self.drawn, context_length - len(self.tokens)) - 1
        if self.speculation is None or most <= 0:
            return Draft()
        return self.speculation.guess(self.tokens, sequences, most)

    def draw(self, logits: Logits, draft: Draft, context_length: int) -> None:
        """Takes tokens from logits behind its last token and behind each guess, tells the reader, and brings the state to all
        tokens but the last."""
        assert self.state is not None
        records: list[TokenRecord] = []
        text, accepted = "", 0
        for place, row in enumerate(logits):
            distribution = next_distribution(row, self._seen, self.options, len(self.tokens))
            guessed = place < len(draft.tokens)
            if guessed and self._accepts(distribution.probability(draft.tokens[place]), place, draft):
                token = draft.tokens[place]
                accepted += 1
            elif guessed:
                token = distribution.without(draft.distributions[place]).draw(self._generator)
            else:
                token = distribution.draw(self._generator)
            if place == 0 and self.speculation is not None:
                first = token
            text += self._append(token, row, records, context_length)
            if self.finish is not None or accepted <= place:
                break
        if self.speculation is not None:
            self.speculation.observe(draft, accepted, first)
        self.state.truncate(min(self.state.length, len(self.tokens) - 1))
        if self.finish is not None:
            text += self._text.end()
        now = time.perf_counter()
        self.times = SequenceTimes(self.times.submitted_s, self.times.first_token_s or now, now)
        self.events.put(TextPiece(text, tuple(records)))

    def _accepts(self, probability: float, place: int, draft: Draft) -> bool:
        ratio = probability / draft.distributions[place].probability(draft.tokens[place])
        return ratio >= 1.0 or float(self._generator.random()) < ratio

    def _append(self, token: int, row: np.ndarray, records: list[TokenRecord], context_length: int) -> str:
        """The text that is certain with a token; it is not part of the text where it ends it."""
        if token in self.tokenizer.ends:
            self.finish = "stop"
            return ""
        self.tokens.append(token)
        if self.options.repetition_penalty != 1.0:
            self._seen[token] += 1
        data = token_data(self.tokenizer, token)
        records.append(self._record(token, data, row))
        text = self._text.add(data)
        if self._text.stopped:
            self.finish = "stop"
        elif self.drawn == self.options.max_tokens or len(self.tokens) == context_length:
            self.finish = "length"
        return text

    def _record(self, token: int, data: bytes, row: np.ndarray) -> TokenRecord:
        if self.options.logprobs is None:
            return TokenRecord(token, data)
        log_probability = log_probabilities(row)
        most = tuple(likeliest(log_probability, self.options.logprobs))
        return TokenRecord(token, data, float(log_probability[token]), most)

    def end(self, error: BaseException | None = None) -> None:
        """Tells the reader that nothing follows, and gives back what guesses were made with."""
        if self.speculation is not None:
            self.speculation.drafter.close()
        self.events.put(SequenceEnd(None if error is not None or self.cancelled else self.finish, error))
