"""Rows of `benchmarks.generate`, and what they are to reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bricolage.base.options import available_cores

GREEDY = 64
"""Tokens that are compared with the reference's."""
TIE = 1e-3


@dataclass(frozen=True)
class Row:
    """A contestant at a length of context."""

    contestant: str
    format: str
    context: int
    text: str = "prose"
    prompt_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    first_token_ms: float | None = None
    kl: float | None = None
    greedy: int | None = None
    """Of `GREEDY` tokens, those that the reference writes too, or would but for a gap below `TIE` between its logits."""
    threads: int = 0
    reason: str = ""
    """Why there are no numbers."""


@dataclass(frozen=True)
class Bar:
    """A figure with its bar."""

    name: str
    format: str
    value: float
    bar: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """Whether the bar is reached."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar


_BUSY_PROCESSES = 2
"""Beside which `…, busy` is timed: with more threads and processes than cores, a model's threads have their share of these."""
_PEERS = ("llama.cpp", "openvino genai", "onnxruntime genai")
Figure = Callable[[Row], float | None]


def list_bars(rows: Sequence[Row]) -> list[Bar]:
    """Every bar whose rows are there, by format."""
    return [bar for form in dict.fromkeys(row.format for row in rows) for bar in _Bars(rows, form).list()]


class _Bars:
    """Bars of one format."""

    def __init__(self, rows: Sequence[Row], form: str) -> None:
        self._rows, self._form = [row for row in rows if row.format == form], form
        self._bars: list[Bar] = []

    def list(self) -> list[Bar]:
        """All of them."""
        ours, rate = "bricolage {} {}".format, _tokens_per_s
        for context, bar in ((16, 2.0), (2048, 1.8)):
            self._compare(f"steps at {context} × best peer", rate, ours("low", "kernels"), _PEERS, context, bar)
        self._compare("prompt of 512 × best peer", _prompt_per_s, ours("low", "kernels"), _PEERS, 512, 1.5)
        self._compare("highest × best peer, steps at 16", rate, ours("highest", "kernels"), _PEERS, 16, 1.0)
        for word in ("highest", "low"):
            python = (ours(word, "python"),)
            self._compare(f"{word}: python × kernels", rate, python[0], (ours(word, "kernels"),), 16, 0.97)
            self._compare(f"{word}: eight texts × one", rate, ours(word, "eight texts"), python, 16, 2.5)
            for text, bar in (("prose", 0.98), ("repeated", 1.3)):
                for context in (16, 512):
                    name = f"{word}: guesses × none, {text} of {context}"
                    self._compare(name, rate, ours(word, "guesses"), python, context, bar, text)
        http = ours("highest", "http")
        self._compare("http × python", rate, http, (ours("highest", "python"),), 16, 0.95)
        self._compare("eight clients × one", rate, ours("highest", "eight http"), (http,), 16, 2.5)
        for word in ("python", "http", "eight http"):
            alone, row = ours("highest", word), self._row(ours("highest", word))
            cores = available_cores()
            share = 1.0 if row is None else min(1.0, cores / (row.threads + _BUSY_PROCESSES))
            self._compare(f"{word} beside two processes × alone", rate, f"{alone}, busy", (alone,), 16, 0.9 * share)
        self._compare("start × llama.cpp", _start_ms, ours("low", "python"), ("llama.cpp",), None, 1.0, at_least=False)
        self._bound("KL of highest", _kl, ours("highest", "kernels"), 1e-6)
        llama = self._best(_kl, ("llama.cpp",), None, "prose")
        if llama is not None:
            self._bound("KL of low, to llama.cpp's", _kl, ours("low", "kernels"), llama)
        greedy = self._best(lambda row: row.greedy, (ours("highest", "kernels"),), None, "prose")
        if greedy is not None:
            self._bars.append(Bar(f"tokens of {GREEDY} as the reference's", self._form, greedy, GREEDY))
        return self._bars

    def _row(self, name: str) -> Row | None:
        return next((row for row in self._rows if row.contestant == name), None)

    def _best(self, figure: Figure, names: Sequence[str], context: int | None, text: str) -> float | None:
        rows = [row for row in self._rows if row.contestant in names and row.text == text]
        values = [figure(row) for row in rows if context is None or row.context == context]
        return max((value for value in values if value is not None), default=None)

    def _compare(
        self,
        name: str,
        figure: Figure,
        ours: str,
        others: Sequence[str],
        context: int | None,
        bar: float,
        text: str = "prose",
        *,
        at_least: bool = True,
    ) -> None:
        value, other = (self._best(figure, names, context, text) for names in ((ours,), others))
        if value is not None and other is not None:
            self._bars.append(Bar(name, self._form, value / other, bar, at_least))

    def _bound(self, name: str, figure: Figure, ours: str, bar: float) -> None:
        value = self._best(figure, (ours,), None, "prose")
        if value is not None:
            self._bars.append(Bar(name, self._form, value, bar, at_least=False))


def _tokens_per_s(row: Row) -> float | None:
    return row.tokens_per_s


def _prompt_per_s(row: Row) -> float | None:
    return row.prompt_tokens_per_s


def _start_ms(row: Row) -> float | None:
    return row.first_token_ms


def _kl(row: Row) -> float | None:
    return row.kl
