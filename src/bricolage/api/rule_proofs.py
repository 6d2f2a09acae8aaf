"""What proves rules, which of them derive those of others, and rules made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bricolage.base.progress import Progress, Silent
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.rulefile import read_rules
from bricolage.rulemaking import coverage, generation, taso
from bricolage.rulemaking.coverage import RuleCoverage
from bricolage.rulemaking.rulegen.generate import GenerationResult
from bricolage.rulemaking.verification import Verified, verify


def prove_rules(only: Sequence[str] = (), file: Path | None = None, *, seed: int = 0) -> list[Verified]:
    """Proves rules on their examples, in exact arithmetic: those in `only`, or else all, or instead of them those of a file.

    Raises:
        UnknownFamily: there is no such family or rule.
        BadRuleFile: a line of the file is no rule.
        FalseRule: on an example both sides differ, or a rule does not apply to its own.
    """
    return [verify(rule, seed=seed) for rule in (read_rules(file) if file is not None else choose_rules(only))]


def prove_own_rules(file: Path | None, *, seed: int = 0) -> list[Rule]:
    """The rules of a file of the user's, to be applied wherever they are profitable, each proved; none without a file.

    Raises:
        BadRuleFile, FalseRule: as `prove_rules`.
    """
    stated = [] if file is None else read_rules(file, cost_based=False)
    for rule in stated:
        verify(rule, seed=seed)
    return list(stated)


def cover_file(
    file: Path,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    *,
    seconds: float = 3.0,
    progress: Progress | None = None,
) -> list[RuleCoverage]:
    """Which of our rules derive each equation of a file of TASO or Tensat, by equality saturation.

    Args:
        file: of equations; each is proved first.
        only, skip: families or names of our rules, as for `choose_rules`.
        seconds: for each equation, and each way to read it, at most.
        progress: told about equations.

    Raises:
        UnknownFamily: there is no such family or rule.
        BadEquationFile: the file has none of the three forms, or no equation.
    """
    ours, equations = choose_rules(only, skip), taso.read_equations(file)
    shown, outcomes = progress or Silent(), list[RuleCoverage]()
    shown.start("equations", len(equations))
    for outcome in coverage.cover_equations(equations, ours, replace(coverage.LIMITS, seconds=seconds)):
        outcomes.append(outcome)
        shown.advance()
    shown.finish()
    return outcomes


def enumerate_rules(
    out: Path, derived: Path | None, *, max_operators: int = 4, seed: int = 0, progress: Progress | None = None
) -> GenerationResult:
    """Finds rules by enumerating all terms with up to `max_operators` operators on a side, proves them and writes them to `out`;
    the substitutions that follow from them go to `derived`.

    Raises:
        NotWritable: a file cannot be written.
    """
    generated = generation.generate_rules(max_operators, seed, progress)
    generation.write_generated(generated, out, derived)
    return generated
