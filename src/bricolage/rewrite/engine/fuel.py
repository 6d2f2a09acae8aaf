"""Optimisation fuel: how many applications of rules may still be made, and which are left out.

With it a wrong answer is traced to one application: the first N are the same in every run (Whalley, "Automatic isolation of
compiler errors", ACM TOPLAS 1994)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from bricolage.plan.rewrite_steps import RewriteStep

Site: TypeAlias = tuple[str, tuple[str, ...]]
"""Where a rule is applied: its name, and the names of the values that it replaces."""


def site_of(step: RewriteStep) -> Site:
    """The place of a step."""
    return step.rule, step.roots


class Fuel:
    """What several drivers of one rewriting share. Without a limit there is no end of it."""

    def __init__(self, limit: int | None = None, without: Collection[Site] = ()) -> None:
        """`limit`: applications in all; `without`: where none is made."""
        self._left, self._without = limit, frozenset(without)
        self.left_out: set[Site] = set()
        """Of those without which it is done, the ones that came up."""

    @property
    def empty(self) -> bool:
        """Whether no more applications may be made."""
        return self._left is not None and self._left <= 0

    def take(self, step: RewriteStep) -> bool:
        """Whether an application may be made; if so, it is counted."""
        site = site_of(step)
        if site in self._without:
            self.left_out.add(site)
            return False
        if self.empty:
            return False
        if self._left is not None:
            self._left -= 1
        return True
