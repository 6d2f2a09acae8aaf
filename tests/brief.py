"""Decisions of small models spend their time on starting processes for the race and on rounds. No test asks who wins, so one
process and few rounds do; budgets stay as they are, so that a busy machine leaves nothing out. Every decision is final: on a busy
machine the next one would go on with it, and tests would take as long as the machine is busy. So
they would if time was given back."""

from __future__ import annotations

from dataclasses import replace

from bricolage.base.efforts import PROFILES

FEW = {"rounds": 3, "race_rounds": 7, "pattern_rounds": 3, "race_seconds": 10.0, "race_processes": 1}
FEW |= {"teams": False, "continued": 0}


def decide_briefly() -> None:
    """From now on in this process, and in those that are forked from it."""
    for effort, profile in list(PROFILES.items()):
        brief = replace(profile, **FEW, shares=replace(profile.shares, given_back=0.0))  # type: ignore[arg-type]
        PROFILES.update({effort: brief})  # type: ignore[attr-defined]


if __name__ == "__main__":  # `python -P tests/brief.py WORDS`: the command line, deciding briefly
    decide_briefly()
    from bricolage.__main__ import main

    main()
