"""What all errors share: templates, exit codes, and text that is fit for a terminal."""

from __future__ import annotations

import re
from typing import ClassVar

from bricolage.extras import install_command

OK = 0
INTERNAL = 1
USAGE = 2
NO_GAIN = 3
INACCURATE = 4
NO_BACKEND = 5
_QUOTED = frozenset({"reason", "reasons"})
"""Facts in which messages of other packages may stand."""
_LONGEST_FACT = 600
"""Letters of one fact in a sentence. What is longer (names may have thousands) is cut."""


def plain(text: str, longest: int | None = None) -> str:
    """Text of a model's or an artifact's as a terminal may show it: what is not printable (escape sequences, line breaks, marks
    that turn the direction of writing) becomes its code, and what is longer than `longest` letters is cut."""
    if longest is not None and len(text) > longest:
        text = f"{text[: longest - 30]}... ({len(text)} letters)"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


_REFERRAL = re.compile(
    r"contribut|creat\w* an? (PR|pull request)|pull request|(file|open|submit|raise|create) an? (new )?(issue|bug|ticket)|"
    r"report (this|it|the|a) |please report|bug report|/issues\b|contact the (maintainers|developers)",
    re.IGNORECASE,
)


def without_referrals(text: str) -> str:
    """What another package says went wrong, without the sentences that send the reader to its makers: the model is what he can
    change here. A text of nothing else stays."""
    sentences = re.split(r"(?<=[.!?])\s+|\n+", text)
    kept = [sentence for sentence in sentences if not _REFERRAL.search(sentence)]
    return text if len(kept) == len(sentences) else " ".join(kept).rstrip(".") or text


def _format_fact(fact: object, longest: int) -> object:
    """A fact as it stands in a sentence. Numbers stay what they are: templates format them."""
    return fact if isinstance(fact, int | float) else plain(str(fact), longest)


class BricolageError(Exception):
    """Base of the catalogue. `facts` fill the templates, fit for a terminal, and stay as they are on the exception."""

    what: ClassVar[str] = "{message}"
    hint: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    """The extras, with commas between them, that the command `{install}` of a hint adds; a fact of this name goes before it."""
    exit_code: ClassVar[int] = INTERNAL
    longest_fact: ClassVar[int] = _LONGEST_FACT

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        shown = {name: _format_fact(fact, self.longest_fact) for name, fact in facts.items()}
        for name in _QUOTED & shown.keys():
            shown[name] = without_referrals(str(shown[name]))
        self.sentence = self.what.format(**shown)
        if "{install}" in self.hint:
            shown["install"] = install_command(*str(facts.get("extra", self.extra)).split(","))
        self.next_step = self.hint.format(**shown)
        super().__init__(f"{self.sentence}. {self.next_step}".strip() if self.next_step else self.sentence)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.facts)


def _rebuild(kind: type[BricolageError], facts: dict[str, object]) -> BricolageError:
    return kind(**facts)


class UsageError(BricolageError):
    """The user gave something that cannot be worked with; nothing was written."""

    exit_code = USAGE
