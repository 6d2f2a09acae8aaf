"""A language model as its users have it: text in, text out, piece by piece."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import BadOption, MissingTemplate
from bricolage.language.chat_template import Message, render_chat
from bricolage.language.draft_model import check_vocabulary
from bricolage.language.sequence import (
    EventSink,
    FinishReason,
    RunningSequence,
    SequenceEvent,
    TextPiece,
    TokenRecord,
)
from bricolage.language.sequence_scheduler import DrafterFactory, SchedulerSettings, SequenceScheduler
from bricolage.language.speculation import StepSeconds
from bricolage.language.token_model import TextTokens, TokenModel


@dataclass(frozen=True)
class GenerationFigures:
    """Of one text."""

    prompt_tokens: int
    restored_tokens: int
    """Of the prompt, whose state was kept from an earlier one."""
    tokens: int
    """That were drawn."""
    first_token_s: float | None
    """From the request to the first token; None where there is none."""
    tokens_per_s: float | None
    """Behind the first token; None where there are less than two."""
    guessed_tokens: int
    accepted_tokens: int
    """Of the guesses."""


class TextGeneration:
    """A text while it is written."""

    def __init__(self, scheduler: SequenceScheduler, sequence: RunningSequence) -> None:
        self._scheduler, self._sequence = scheduler, sequence
        self._ended = False
        self.records: list[TokenRecord] = []
        """The tokens so far."""
        self.finish_reason: FinishReason | None = None
        """`stop` (the model, or a stop string, has ended the text) or `length`; None before the end."""

    def take(self, event: SequenceEvent) -> TextPiece | None:
        """What has happened; None at the end.

        Raises:
            UndefinedLogits, and others: the model failed.
        """
        if isinstance(event, TextPiece):
            self.records += event.tokens
            return event
        self._ended = True
        self.finish_reason = event.reason
        if event.error is not None:
            raise event.error
        return None

    @property
    def figures(self) -> GenerationFigures:
        """So far."""
        sequence, times = self._sequence, self._sequence.times
        first, last, drawn = times.first_token_s, times.last_token_s, sequence.drawn
        counts = {} if sequence.speculation is None else sequence.speculation.counts
        return GenerationFigures(
            prompt_tokens=sequence.prompt_length,
            restored_tokens=sequence.restored,
            tokens=drawn,
            first_token_s=None if first is None else first - times.submitted_s,
            tokens_per_s=None if first is None or last is None or last <= first else (drawn - 1) / (last - first),
            guessed_tokens=counts.get("guessed", 0),
            accepted_tokens=counts.get("accepted", 0),
        )

    def close(self) -> None:
        """Ends it where it is. Nothing happens behind its end."""
        if not self._ended:
            self._scheduler.cancel(self._sequence)


class GenerationStream(TextGeneration):
    """Pieces of a text while it is written. It may be left before the end; `close`, or the end of a `with` block, frees its place
    in the model."""

    def __init__(
        self, scheduler: SequenceScheduler, sequence: RunningSequence, events: queue.SimpleQueue[SequenceEvent]
    ) -> None:
        super().__init__(scheduler, sequence)
        self._events = events

    def __iter__(self) -> Iterator[str]:
        """Its text, in pieces that are whole characters."""
        return (piece.text for piece in self.pieces() if piece.text)

    def pieces(self) -> Iterator[TextPiece]:
        """What each step has added: text that is certain, and tokens. A piece's text may be empty.

        Raises:
            UndefinedLogits, and others: the model failed.
        """
        while not self._ended:
            piece = self.take(self._events.get())
            if piece is not None:
                yield piece

    @property
    def text(self) -> str:
        """All that is left of it, once it is at its end."""
        return "".join(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class LanguageModel:
    """A model with its tokenizer. Any number of threads may have texts written at the same time."""

    def __init__(
        self,
        model: TokenModel,
        tokenizer: TextTokens,
        settings: SchedulerSettings | None = None,
        drafts: tuple[StepSeconds, DrafterFactory] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`drafts`: see `SequenceScheduler`. `on_close` is called when no text is written any more.

        Raises:
            OtherVocabulary: the tokenizer has tokens that the model does not have.
        """
        check_vocabulary(tokenizer, model)
        self.tokenizer = tokenizer
        self.context_length = model.context_length
        self._scheduler = SequenceScheduler(model, tokenizer, settings, drafts)
        self._on_close = on_close

    def encode_prompt(self, prompt: str | Sequence[Message], *, raw: bool = False) -> list[int]:
        """Tokens of a prompt.

        Args:
            prompt: messages of a chat, or a text; a text is a chat of one message where the model has a template.
            raw: whether a text is the prompt as it is, with the names of special tokens as text.

        Raises:
            MissingTemplate, BadTemplate, BadMessage: messages cannot become a prompt.
        """
        if isinstance(prompt, str) and (raw or self.tokenizer.template is None):
            return self.tokenizer.encode(prompt)
        if raw:
            raise BadOption(option="raw", value=raw, advice="Messages need the model's template; give a text")
        if self.tokenizer.template is None:
            raise MissingTemplate
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = render_chat(self.tokenizer.template, messages, self.tokenizer.names)
        begun = bool(self.tokenizer.names.get("bos_token")) and text.startswith(self.tokenizer.names["bos_token"])
        return self.tokenizer.encode(text, begin=not begun, special=True)  # never two of those that begin a text

    def generate(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        *,
        raw: bool = False,
        **changes: object,
    ) -> GenerationStream:
        """Begins to write what follows a prompt.

        Args:
            prompt: see `encode_prompt`.
            options: how tokens are drawn, and when the text ends. It ends as well where the model's context is full.
            raw: see `encode_prompt`.
            changes: fields of the options, by name: `max_tokens=20`.

        Raises:
            EmptyPrompt, ContextFull: the prompt has no tokens, or too many.
            MissingTemplate, BadTemplate, BadMessage: messages cannot become a prompt.
            BadOption: a token of `logit_bias` is none of the model's.
            ExecutableClosed: it is closed.
        """
        events: queue.SimpleQueue[SequenceEvent] = queue.SimpleQueue()
        options = replace(options or GenerationOptions(), **changes)  # type: ignore[arg-type]
        return GenerationStream(*self.submit(self.encode_prompt(prompt, raw=raw), options, events), events)

    def submit(
        self, tokens: Sequence[int], options: GenerationOptions, events: EventSink
    ) -> tuple[SequenceScheduler, RunningSequence]:
        """`generate` for a reader with a queue of its own: what a `TextGeneration` is made of.

        Raises:
            EmptyPrompt, ContextFull, BadOption, ExecutableClosed: as `generate`.
        """
        for token, bias in options.logit_bias:
            if token >= self.tokenizer.size:
                advice = f"The model has tokens 0 to {self.tokenizer.size - 1}"
                raise BadOption(option="logit_bias", value=f"{token}: {bias}", advice=advice)
        return self._scheduler, self._scheduler.submit(tokens, options, events)

    def drain(self, timeout_s: float) -> bool:
        """Waits until all texts are at their end, or the time is over; whether they are."""
        return self._scheduler.wait_until_idle(timeout_s)

    def close(self) -> None:
        """Ends all texts where they are."""
        self._scheduler.close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
