"""Rules found by enumeration: `generated.jsonl`, which `bricolage rules generate` makes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from bricolage.rewrite.rule import Rule
from bricolage.rewrite.rulefile import read_rules

FILE = Path(__file__).with_name("generated.jsonl")
DERIVED = Path(__file__).with_name("generated-derived.txt")
"""Equations of at most four operators that follow from them, one a line."""


@cache
def generated_rules() -> tuple[Rule, ...]:
    """Both directions of every equation in the file."""
    return tuple(read_rules(FILE))


def substitutions() -> list[str]:
    """All distinct substitutions: the rules and what follows from them, as equations."""
    stated = [rule.equation for rule in generated_rules() if not rule.name.endswith("-back")]
    return [*stated, *DERIVED.read_text(encoding="utf-8").splitlines()]
