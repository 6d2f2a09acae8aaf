"""C for one target: what its compiler would leave out is left out of the text, so that readers see what is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable

Defines = Callable[[str], bool | None]
"""Whether a compiler defines a macro; None where that is not known before it runs."""
_DIRECTIVE = re.compile(r" *# *(if|ifdef|ifndef|elif|else|endif)\b([^/]*)")
_DEFINED = re.compile(r"defined *\(? *(\w+) *\)?")


def resolve_conditions(text: str, defines: Defines) -> str:
    """C without the branches whose conditions fail. Conditions that are not known stay as they are."""
    lines: list[str] = []
    nested: list[_Condition] = []
    for line in text.split("\n"):
        directive = _DIRECTIVE.match(line)
        if directive is not None and directive[1].startswith("if"):
            nested.append(_Condition())
        written: str | None = line
        if directive is not None:
            written = nested[-1].enter(directive[1], _value(directive[1], directive[2].strip(), defines), line)
        around = nested if directive is None else nested[:-1]
        if directive is not None and directive[1] == "endif":
            nested.pop()
        if written is not None and all(condition.writes for condition in around):
            lines.append(written)
    return "\n".join(lines)


class _Condition:
    """The branches from an `#if` to its `#endif`."""

    def __init__(self) -> None:
        self.writes = True
        """Whether the current branch is written."""
        self._decided = False
        """Whether a branch so far is the one that is compiled, if none before it is."""
        self._stays = False
        """Whether a branch so far is one that is not decided, so that directives stay."""

    def enter(self, word: str, value: bool | None, line: str) -> str | None:
        """The line of a directive, whose condition has this value, as it is written; None where it goes."""
        if word == "endif":
            return line if self._stays else None
        self.writes = not self._decided and value is not False
        self._decided = self._decided or value is True
        if not self.writes:
            return None
        if value is True:
            return "#else" if self._stays else None
        first, self._stays = not self._stays, True
        return line.replace("elif", "if", 1) if first else line


def _value(word: str, condition: str, defines: Defines) -> bool | None:
    if word == "else":
        return True
    if word in ("ifdef", "ifndef"):
        value = defines(condition)
        return value if word == "ifdef" or value is None else not value
    return _evaluate(condition, defines)


def _evaluate(condition: str, defines: Defines) -> bool | None:
    """A condition of macros that are defined, with && and ||; anything else in it is not known."""
    for operator, decisive in (("||", True), ("&&", False)):
        parts = _split(condition, operator)
        if len(parts) > 1:
            values = [_evaluate(part, defines) for part in parts]
            return decisive if decisive in values else None if None in values else not decisive
    (part,) = _split(condition, "||")
    if part.startswith("(") and part.endswith(")"):
        return _evaluate(part[1:-1], defines)
    macro = _DEFINED.fullmatch(part)
    return None if macro is None else defines(macro[1])


def _split(condition: str, operator: str) -> list[str]:
    """The parts of a condition between operators that are in no parentheses."""
    parts, depth = [""], 0
    for piece in re.split(r"(\(|\)|\|\||&&)", condition):
        depth += (piece == "(") - (piece == ")")
        if piece == operator and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]
