"""Several tokens in one step: guessed by what costs little, checked by the model, and kept where it would have drawn them.

A guess x from a distribution q is accepted with probability min(1, p(x)/q(x)); else a token is drawn from (p - q)⁺. The text then
has the distribution p, and at temperature 0 it is the same text (Leviathan et al., "Fast Inference from Transformers via
Speculative Decoding", 2023). With k guesses, each accepted with probability α, a step gives E = (1 - α^(k+1))/(1 - α) tokens on
average. It gains where E · v(B) > v(B(k+1)) + d(k): v(n) is the time of a step of n rows, B the sequences in it, d(k) the time to
guess.

A prediction may be wrong, so each text has an account: what its guesses took more, less what they saved. A step with guesses is
taken only where the account allows for all of them being refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bricolage.language.token_model import SequenceState, TokenModel
from bricolage.language.token_sampling import Distribution, certain

MOST_GUESSES = 7
_LEAST_GAIN = 1.03
"""Predicted, below which no guess is made: what is nearer to 1 is noise of the times."""
_WEIGHT = 0.1
"""Of the latest outcome of a guess in a running mean."""
_TIME_WEIGHT = 0.25
"""Of the latest step's time in a running mean: the first steps of a text tell how long its context is."""
_LOSS = 0.01
"""Share of a text's time that its guesses may lose."""
_ADVANCE = 64
"""Tokens that a text is taken to have written before its first. Of a text of as many, guesses thus lose 2 % at most."""
_MEASURED_ROWS = (1, 2, 3, 4, 6, 8)
_MEASURED_STEPS = 5
_MEASURED_CONTEXT = 16
_PRIOR = 0.4
"""The share of guesses that is accepted, before any was seen."""
_TRIAL_SHARE = 0.85
"""Share that is hoped for in a trial, where guesses cost too much to be watched unused."""
_FIRST_PAUSE = 64
"""Steps without guesses behind a trial that did not gain; each further one is twice as long."""
_TRIAL_STEPS = 8


@dataclass(frozen=True)
class Draft:
    """Guesses of the next tokens."""

    tokens: tuple[int, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    """From which each was drawn."""


class Drafter(Protocol):
    """Guesses how one sequence goes on."""

    watches: bool
    """Whether a guess costs so little that it is made to be watched, even if it is not used."""

    def guess(self, tokens: Sequence[int], count: int) -> Draft:
        """At most `count` guesses of what follows `tokens`, which begin with those of the call before up to where they differ."""
        ...

    def close(self) -> None:
        """Gives its memory back."""
        ...


class NgramDrafter:
    """Goes on as the text did at the last place where its last tokens stood (prompt lookup)."""

    watches = True
    _LONGEST, _SHORTEST = 4, 2

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], int] = {}
        """Tokens → the place behind their last occurrence."""
        self._indexed = 0
        """Tokens whose places are known; those at the end are not: they would find themselves."""

    def guess(self, tokens: Sequence[int], count: int) -> Draft:
        """See `Drafter`. Tokens are never taken back, since a sequence only appends."""
        for end in range(max(self._indexed, 1), len(tokens)):
            for size in range(self._SHORTEST, min(self._LONGEST, end) + 1):
                self._behind[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)
        for size in range(min(self._LONGEST, len(tokens)), self._SHORTEST - 1, -1):
            place = self._behind.get(tuple(tokens[-size:]))
            if place is not None:
                guessed = tuple(tokens[place : place + count])
                return Draft(guessed, tuple(map(certain, guessed)))
        return Draft()

    def close(self) -> None:
        """There is nothing to give back."""


def measure_steps(model: TokenModel, most_rows: int) -> dict[int, float]:
    """Seconds of steps of 1 to `most_rows` rows in one sequence: v(n), the shortest of a few. All numbers of rows take turns, so
    that what another process takes changes no ratio of theirs."""
    state = model.open_sequence()
    try:
        model.extend([(state, [0] * _MEASURED_CONTEXT)])
        numbers = [rows for rows in _MEASURED_ROWS if rows <= most_rows]
        for rows in numbers:
            _time_step(model, state, rows)  # the first one may compile
        rounds = [{rows: _time_step(model, state, rows) for rows in numbers} for _ in range(_MEASURED_STEPS)]
        return {rows: min(seconds[rows] for seconds in rounds) for rows in numbers}
    finally:
        state.close()


def _time_step(model: TokenModel, state: SequenceState, rows: int) -> float:
    begun = time.perf_counter()
    model.extend([(state, [0] * rows)], every_row=True)
    seconds = time.perf_counter() - begun
    state.truncate(_MEASURED_CONTEXT)
    return seconds


@dataclass
class StepSeconds:
    """v(n) as it was measured at load, and as steps have taken since: with a longer context they take longer."""

    seconds: dict[int, float]
    """By number of rows."""

    def predict(self, rows: int) -> float:
        """Seconds of a step: linear between what is known, and in proportion beyond."""
        if rows in self.seconds:
            return self.seconds[rows]
        lower = max((measured for measured in self.seconds if measured < rows), default=None)
        upper = min((measured for measured in self.seconds if measured > rows), default=None)
        if lower is None or upper is None:
            nearest = lower if upper is None else upper
            assert nearest is not None
            return self.seconds[nearest] * max(1.0, rows / nearest)
        share = (rows - lower) / (upper - lower)
        return (1 - share) * self.seconds[lower] + share * self.seconds[upper]

    def observe(self, rows: int, seconds: float, *, guessed: bool) -> None:
        """A step has taken so long. One without guesses moves all times by as much for each row, as attention to a longer context
        does; one with guesses that of its rows alone, so that a loss is seen."""
        before = self.predict(rows)
        seconds = min(seconds, 4 * before)  # another process had the cores
        after = (1 - _TIME_WEIGHT) * before + _TIME_WEIGHT * seconds
        if not guessed:
            for measured in self.seconds:
                moved = self.seconds[measured] + (after - before) * measured / rows
                self.seconds[measured] = max(moved, after * min(1.0, measured / rows))
        self.seconds[rows] = after


def expected_tokens(acceptance: float, guesses: int) -> float:
    """Of a step: E = 1 + α + … + α^k."""
    return sum(acceptance**power for power in range(guesses + 1))


def predict_loss(times: StepSeconds, sequences: int, guesses: int, guess_s: float) -> float:
    """Seconds that a step takes longer with `guesses` for each of `sequences`, divided by these; see `choose_guesses`."""
    return (times.predict(sequences * (1 + guesses)) - times.predict(sequences)) / sequences + guesses * guess_s


def choose_guesses(
    times: StepSeconds,
    acceptance: float,
    sequences: int,
    most_rows: int,
    guess_s: float,
    most_loss_s: float = math.inf,
) -> int:
    """How many guesses each of `sequences` is to have: the number of the highest predicted gain, and 0 where none is predicted.

    Args:
        times: v(n).
        acceptance: α.
        sequences: B, which share a step.
        most_rows: that a step may have.
        guess_s: time to make one guess for one sequence, d(1).
        most_loss_s: that a sequence may lose if all its guesses are refused.
    """
    plain = times.predict(sequences)
    best, best_gain = 0, _LEAST_GAIN
    for guesses in range(1, min(MOST_GUESSES, most_rows // sequences - 1) + 1):
        seconds = times.predict(sequences * (1 + guesses)) + sequences * guesses * guess_s
        gain = expected_tokens(acceptance, guesses) * plain / seconds
        if gain > best_gain and predict_loss(times, sequences, guesses, guess_s) <= most_loss_s:
            best, best_gain = guesses, gain
    return best


@dataclass
class SequenceSpeculation:
    """Guesses for one sequence, as long as they are predicted to gain and have been seen to."""

    drafter: Drafter
    times: StepSeconds
    """Of the model, which all sequences share."""
    most_rows: int
    acceptance: float = _PRIOR
    guess_s: float = 0.0
    _watched: int | None = None
    _trial_steps: int = _TRIAL_STEPS
    _pause: int = 0
    _next_pause: int = _FIRST_PAUSE
    _token_s: float = 0.0
    """That a token of the latest step would have taken without guesses."""
    _written_s: float = 0.0
    """That all tokens would have taken without guesses."""
    lost_s: float = 0.0
    """Seconds that guesses took more than they have saved."""
    counts: dict[str, int] = field(default_factory=lambda: {"guessed": 0, "accepted": 0})

    def guess(self, tokens: Sequence[int], sequences: int, most: int) -> Draft:
        """Guesses for the next step, which `sequences` share; at most `most`."""
        self._token_s = self.times.predict(sequences) / sequences
        count = min(most, self._choose(sequences))
        if count == 0 and not self.drafter.watches:
            return Draft()
        begun = time.perf_counter()
        draft = self.drafter.guess(tokens, max(count, 1))
        if draft.tokens:
            seconds = (time.perf_counter() - begun) / len(draft.tokens)
            self.guess_s = seconds if self.guess_s == 0.0 else (1 - _WEIGHT) * self.guess_s + _WEIGHT * seconds
            self.lost_s += 0.0 if self.drafter.watches else seconds * len(draft.tokens)
        self._watched = draft.tokens[0] if draft.tokens and count == 0 else None
        return draft if count else Draft()

    def _choose(self, sequences: int) -> int:
        if self._pause > 0:
            self._pause -= 1
            self._trial_steps = _TRIAL_STEPS if self._pause == 0 else self._trial_steps
            return 0
        acceptance, tried = self.acceptance, not self.drafter.watches and self._trial_steps > 0
        if tried:
            acceptance = max(acceptance, _TRIAL_SHARE)
        guess_s = 0.0 if self.drafter.watches else self.guess_s  # what is made in any case costs nothing more
        count = choose_guesses(self.times, acceptance, sequences, self.most_rows, guess_s)
        if count == 0 and not self.drafter.watches:
            self._pause, self._next_pause = self._next_pause, 2 * self._next_pause
        most_loss_s = _LOSS * (self._written_s + _ADVANCE * self._token_s) - self.lost_s
        if count and predict_loss(self.times, sequences, count, guess_s) > most_loss_s:
            count = choose_guesses(self.times, acceptance, sequences, self.most_rows, guess_s, most_loss_s)
        self._trial_steps -= tried and count > 0
        return count

    def bear(self, seconds: float) -> None:
        """The step has taken so much longer for this sequence's guesses."""
        self.lost_s += seconds

    def observe(self, draft: Draft, accepted: int, token: int) -> None:
        """Of a draft the first `accepted` guesses were; `token` is the first one that the step has drawn."""
        self._written_s += (1 + accepted) * self._token_s
        if draft.tokens:
            self.counts["guessed"] += len(draft.tokens)
            self.counts["accepted"] += accepted
            self.lost_s -= accepted * self._token_s
            outcomes = [1.0] * accepted + [0.0] * (accepted < len(draft.tokens))
        else:
            outcomes = [] if self._watched is None else [float(self._watched == token)]
        for outcome in outcomes:
            self.acceptance = (1 - _WEIGHT) * self.acceptance + _WEIGHT * outcome
