"""Files of equations: one JSON object a line, both directions of each a rule.

`rule` is the equation. `where` gives the most general shapes of its variables, for readers; where it is given it must be right.
`inaccurate` names the sides that lose accuracy in float32, by measurement: decisions leave out what leads there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from bricolage.equations.float32_accuracy import inaccurate
from bricolage.equations.term import BadSyntax, Equation, is_directed, read_equation
from bricolage.equations.term_shapes import IllTyped
from bricolage.errors import BadRuleFile
from bricolage.rewrite.rule_from_equation import EquationRule

_KEYS = {"rule", "where", "inaccurate"}


def read_rules(path: Path, *, stem: str | None = None, cost_based: bool = True) -> list[EquationRule]:
    """The rules of a file, named by `stem` (the file's, where none is given) and line. They are for a search alone, or not
    `cost_based`, applied wherever they are profitable.

    Raises:
        BadRuleFile: a line is no rule; whether it is *true* is for `bricolage.rulemaking.verification` to say.
    """
    rules: list[EquationRule] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRuleFile(path=path, line=0, reason=str(error)) from error
    width = len(str(len(lines)))
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rules += _rules(line, f"{stem or path.stem}-{number:0{width}}", cost_based)
            except _Wrong as error:
                raise BadRuleFile(path=path, line=number, reason=str(error)) from error
    return rules


class _Wrong(Exception):
    """What is wrong with a line."""


def _rules(line: str, name: str, cost_based: bool) -> list[EquationRule]:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise _Wrong(f"not JSON ({error})") from error
    if not isinstance(given, dict) or not isinstance(given.get("rule"), str):
        raise _Wrong("it has no text 'rule'")
    if set(given) - _KEYS:
        raise _Wrong(f"'{min(set(given) - _KEYS)}' means nothing here")
    lost = given.get("inaccurate", [])
    if not isinstance(lost, list) or not all(side in ("left", "right") for side in lost):
        raise _Wrong("'inaccurate' is no list of left and right")
    try:
        equation = read_equation(given["rule"])
        stated = given.get("where")
        typing = equation.typing.text()
    except BadSyntax as error:
        raise _Wrong(str(error)) from error
    except IllTyped as error:
        raise _Wrong(f"no shapes fit both sides: {error}") from error
    if stated is not None and stated != typing:
        raise _Wrong(f"'where' should be {json.dumps(typing)}")
    directions = [("", equation, "right"), ("-back", equation.turned, "left")]
    rules = [
        EquationRule(name + mark, orientation, unstable=side in lost, cost_based=cost_based)
        for mark, orientation, side in directions
        if is_directed(orientation)
    ]
    if not rules or equation.left == equation.right:
        raise _Wrong("neither side can be replaced by the other")
    return rules


def write_rules(path: Path, equations: Iterable[Equation]) -> None:
    """Writes equations, measuring which lose accuracy. Raises OSError."""
    path.write_text("".join(f"{json.dumps(_line(equation))}\n" for equation in equations), encoding="utf-8")


def _line(equation: Equation) -> dict[str, object]:
    line: dict[str, object] = {"rule": str(equation), "where": equation.typing.text()}
    lost = inaccurate(equation)
    return {**line, "inaccurate": lost} if lost else line
