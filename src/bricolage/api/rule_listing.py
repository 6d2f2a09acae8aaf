"""The rules that there are, and the substitutions that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.rewrite.catalogue import by_family, choose_rules
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.rules.generated import substitutions


def list_families(only: Sequence[str] = ()) -> dict[str, list[Rule]]:
    """The rules by family, in the order in which they are tried: those of the families or names in `only`, or else all.

    Raises:
        UnknownFamily: there is no such family or rule.
    """
    return {family: rules for family, rules in by_family(choose_rules(only)).items() if rules}


def list_substitutions() -> list[str]:
    """The substitutions of up to four operators that generated rules derive, as equations."""
    return substitutions()
