"""What a user can set when it is decided who runs a language model."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.errors import BadOption

MOST_CONTEXTS = 8


@dataclass(frozen=True)
class DecoderOptions:
    """At which lengths it is raced, and whether its texts keep their bits.

    Raises:
        BadOption: a length is out of range, or there are none or too many.
    """

    contexts: tuple[int, ...] = (16, 2048)
    """Tokens in front of a step, and of a prompt; ascending."""
    same_bits: bool = True
    """Whether only what gives a text the same bits may ship, however its tokens come: our own engine. Others race all the same."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.contexts) <= MOST_CONTEXTS or min(self.contexts) < 1 or max(self.contexts) > 2**24:
            words = ",".join(map(str, self.contexts))
            advice = f"Give one to {MOST_CONTEXTS} numbers of tokens from 1: 16,2048"
            raise BadOption(option="--contexts", value=words, advice=advice)
        object.__setattr__(self, "contexts", tuple(sorted(set(self.contexts))))


def parse_contexts(text: str) -> tuple[int, ...]:
    """`"16,2048"` as numbers.

    Raises:
        BadOption: a word is no number.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and len(word) < 12 for word in words):
        raise BadOption(option="--contexts", value=text, advice="Give numbers of tokens, separated by commas: 16,2048")
    return tuple(int(word) for word in words)
