"""One thread that runs a model for many sequences: those that write share each step, and prompts are read in chunks between the
steps."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bricolage.base.generation_options import GenerationOptions
from bricolage.errors import BricolageError, ContextFull, EmptyPrompt, ExecutableClosed
from bricolage.language.prefix_store import PrefixStore
from bricolage.language.sequence import EventSink, RunningSequence
from bricolage.language.speculation import Draft, Drafter, SequenceSpeculation, StepSeconds
from bricolage.language.token_model import Logits, TextTokens, TokenModel

DrafterFactory = Callable[[GenerationOptions], Drafter]


@dataclass(frozen=True)
class SchedulerSettings:
    """Limits of what runs at a time."""

    most_sequences: int = 8
    """That are under way; others wait."""
    most_rows: int = 8
    """Of a step: a row a sequence, and one for each guess."""
    chunk: int = 128
    """Tokens of a prompt that are read between two steps of others."""
    prefix_bytes: int = 512 * 2**20
    """Of states that are kept for prompts that begin alike; 0: none."""


class SequenceScheduler:
    """Sequences join and leave at each step. It owns the model, and its thread alone runs it.

    Each step takes a row of every sequence that writes, then a chunk of one prompt, in turn. So no sequence waits for the
    whole prompt of another one. What the model answers does not depend on who shares a step (`TokenModel`), and so no text does.
    """

    def __init__(
        self,
        model: TokenModel,
        tokenizer: TextTokens,
        settings: SchedulerSettings | None = None,
        drafts: tuple[StepSeconds, DrafterFactory] | None = None,
    ) -> None:
        """`drafts`: v(n) of the model, and what makes a drafter for each sequence."""
        self._model, self._tokenizer = model, tokenizer
        self._settings = settings or SchedulerSettings()
        self._drafts = drafts
        self._prefixes = PrefixStore(self._settings.prefix_bytes)
        self._changed = threading.Condition()
        self._waiting: deque[RunningSequence] = deque()
        self._active: list[RunningSequence] = []
        """In the order in which their prompts are read."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bricolage-sequences", daemon=True)
        self._thread.start()

    def submit(self, tokens: Sequence[int], options: GenerationOptions, events: EventSink) -> RunningSequence:
        """A sequence that goes on behind these tokens; what `events` gets ends with a `SequenceEnd`.

        Raises:
            EmptyPrompt: there are no tokens.
            ContextFull: they leave no place for another one.
            ExecutableClosed: the scheduler is closed.
        """
        if not tokens:
            raise EmptyPrompt
        limit = self._model.context_length
        if len(tokens) + min(1, options.max_tokens) > limit:
            raise ContextFull(tokens=len(tokens) + min(1, options.max_tokens), limit=limit)
        sequence = RunningSequence(list(tokens), options, self._tokenizer, events)
        with self._changed:
            if self._closed:
                raise ExecutableClosed(model="the language model")
            self._waiting.append(sequence)
            self._changed.notify_all()
        return sequence

    def cancel(self, sequence: RunningSequence) -> None:
        """Ends a sequence whose reader is gone; its place is free before the next step."""
        with self._changed:
            sequence.cancelled = True
            self._changed.notify_all()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Whether nothing is under way, at once or before the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._active, timeout_s)

    def close(self) -> None:
        """Cancels what is under way, and ends the thread."""
        with self._changed:
            self._closed = True
            for sequence in (*self._waiting, *self._active):
                sequence.cancelled = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._admit():
                self._leave([sequence for sequence in self._active if sequence.cancelled or sequence.finish])
                self._guarded(self._step, [sequence for sequence in self._active if len(sequence.missing) == 1])
                reading = [sequence for sequence in self._active if len(sequence.missing) > 1]
                self._guarded(self._read_chunk, reading[:1])
        finally:  # by a fault of this program: no reader may wait for ever
            fault = sys.exception()
            with self._changed:
                self._closed = True
                left = [*self._active, *self._waiting]
                self._waiting.clear()
            self._leave(left, fault)
            self._prefixes.clear()

    def _admit(self) -> bool:
        """Waits for a sequence, and takes those that there is place for; false at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._active or self._closed)
            joining: list[RunningSequence] = []
            while self._waiting and len(self._active) < self._settings.most_sequences:
                joining.append(self._waiting.popleft())
                self._active.append(joining[-1])
            closed = self._closed and not self._active
        for sequence in joining:
            self._guarded(self._join, [sequence])
        return not closed

    def _join(self, joining: Sequence[RunningSequence]) -> None:
        for sequence in joining:
            sequence.state = self._model.open_sequence()
            if self._drafts is not None:
                seconds, make_drafter = self._drafts
                drafter = make_drafter(sequence.options)
                sequence.speculation = SequenceSpeculation(drafter, seconds, self._settings.most_rows)
            if not sequence.cancelled:
                sequence.restored = self._prefixes.restore(sequence.tokens, sequence.state)

    def _leave(self, sequences: Sequence[RunningSequence], error: BaseException | None = None) -> None:
        """Their places are free, and their states kept where nothing went wrong."""
        for sequence in sequences:
            if sequence.state is not None and error is None:
                self._prefixes.put(sequence.tokens[: sequence.state.length], sequence.state)
            elif sequence.state is not None:
                sequence.state.close()
        with self._changed:
            self._active = [sequence for sequence in self._active if sequence not in sequences]
            self._changed.notify_all()
        for sequence in sequences:
            sequence.end(error)

    def _guarded(self, act: Callable[[Sequence[RunningSequence]], None], sequences: Sequence[RunningSequence]) -> None:
        """What goes wrong is told to the readers of these sequences; others go on."""
        try:
            act(sequences)
        except (BricolageError, MemoryError, OSError, RuntimeError) as error:
            self._leave(sequences, error)

    def _step(self, writing: Sequence[RunningSequence]) -> None:
        """One row, and its guesses, of each sequence that writes; all share as many steps as their rows need."""
        size = self._settings.most_rows
        for first in range(0, len(writing), size):
            sharing = writing[first : first + size]
            drafts = [sequence.guess(len(sharing), self._model.context_length) for sequence in sharing]
            self._share_step(sharing, drafts)

    def _share_step(self, sharing: Sequence[RunningSequence], drafts: Sequence[Draft]) -> None:
        guessed = any(draft.tokens for draft in drafts)
        rows = []
        for sequence, draft in zip(sharing, drafts, strict=True):
            assert sequence.state is not None
            rows.append((sequence.state, [*sequence.missing, *draft.tokens]))
        begun = time.perf_counter()
        logits = self._model.extend(rows, every_row=guessed)
        if self._drafts is not None:
            count, seconds = sum(len(tokens) for _, tokens in rows), time.perf_counter() - begun
            more = seconds - self._drafts[0].predict(len(rows))
            for sequence, draft in zip(sharing, drafts, strict=True):
                if sequence.speculation is not None and draft.tokens:
                    sequence.speculation.bear(more * len(draft.tokens) / (count - len(rows)))
            self._drafts[0].observe(count, seconds, guessed=guessed)
        for sequence, draft, answered in zip(sharing, drafts, logits, strict=True):
            self._draw(sequence, answered, draft)

    def _draw(self, sequence: RunningSequence, logits: Logits, draft: Draft) -> None:
        try:
            sequence.draw(logits, draft, self._model.context_length)
        except BricolageError as error:  # of its logits, which are no other sequence's
            self._leave([sequence], error)

    def _read_chunk(self, reading: Sequence[RunningSequence]) -> None:
        """A part of one prompt; behind its end the first token is drawn. The next prompt has the next turn."""
        for sequence in reading:
            assert sequence.state is not None
            logits = self._model.extend([(sequence.state, sequence.missing[: self._settings.chunk])])
            if not sequence.missing:
                self._draw(sequence, logits[0], Draft())
                continue
            with self._changed:
                self._active.remove(sequence)
                self._active.append(sequence)
