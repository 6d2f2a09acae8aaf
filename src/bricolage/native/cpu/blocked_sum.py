"""C of long sums: rounding grows with the number of terms that one float32 takes, so that some thousand at most go into one.

A sum of n terms of one sign is off by some √n roundings. One of two million terms, taken as sixteen (a vector), was off by 2.7e-6
of itself, and a normalisation of 112x112 positions with channels last by 6.6e-6. In parts that are added in float64, both are off
by less than 3e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bricolage.native.cpu.emit import indent_lines

Loop = tuple[str, int]
"""A loop variable, and how often it runs."""

_SHORT, _PART = 16_384, 1_024
"""Terms up to which one sum is enough, taken in vectors, and terms of a part, if the innermost loops have as many."""
_SHORT_BESIDE, _PART_BESIDE = 256, 128
"""The same where every term is rounded on its own: sums of neighbours that are taken side by side, and loops too short for
vectors."""
_FULL = 64
"""Terms below which a part is not worth its own addition."""


def blocked_sum(name: str, loops: Sequence[Loop], step: Callable[[str], list[str]]) -> list[str]:
    """Declares the float `name`: the sum over `loops`, outermost first. `step` adds one term to the float that it is told."""
    innermost = next((extent for _, extent in reversed(loops) if extent > 1), 1)
    short, terms = (_SHORT, _PART) if innermost >= _FULL else (_SHORT_BESIDE, _PART_BESIDE)  # too short to fill vectors
    if _terms(loops) <= short:
        return [f"float {name} = 0.0f;", *wrap_in_loops(loops, step(name), adding(name))]
    part = _Part(["float part = 0.0f;"], step("part"), adding("part"), [f"{name}_parts += part;"])
    return [f"double {name}_parts = 0.0;", *_in_parts(loops, part, terms), f"const float {name} = {name}_parts;"]


def blocked_sums(name: str, width: int, loops: Sequence[Loop], step: Callable[[str], list[str]]) -> list[str]:
    """Declares `width` floats `name`, sums over `loops` side by side. `step` adds a term to each of the floats that it is told."""
    each = f"for (long l = 0; l < {width}; l++)"
    if _terms(loops) <= _SHORT_BESIDE:
        return [f"float {name}[{width}];", f"{each} {name}[l] = 0.0f;", *wrap_in_loops(loops, step(name))]
    opening = [f"float part[{width}];", f"{each} part[l] = 0.0f;"]
    part = _Part(opening, step("part"), "", [f"{each} {name}_parts[l] += part[l];"])
    return [
        f"double {name}_parts[{width}];",
        f"{each} {name}_parts[l] = 0.0;",
        *_in_parts(loops, part, _PART_BESIDE),
        f"float {name}[{width}];",
        f"{each} {name}[l] = {name}_parts[l];",
    ]


@dataclass(frozen=True)
class _Part:
    opening: list[str]
    step: list[str]
    pragma: str
    """What is said of the loop around the step."""
    closing: list[str]


def _terms(loops: Sequence[Loop]) -> int:
    return math.prod(extent for _, extent in loops)


def _in_parts(loops: Sequence[Loop], part: _Part, terms: int) -> list[str]:
    """The loops, with a part for the innermost of them, or for pieces of one that has more than twice `terms` terms."""
    loops = [loop for loop in loops if loop[1] > 1]
    at = next(i for i in reversed(range(len(loops))) if _terms(loops[i:]) >= _FULL)
    (index, extent), within = loops[at], loops[at + 1 :]
    width = max(1, terms // _terms(within))
    cut = extent > 2 * width
    lines = [
        *part.opening,
        *([part.pragma] if part.pragma and not within else []),
        f"for (long {index} = {'from' if cut else 0}; {index} < {'until' if cut else extent}; {index}++) {{",
        *indent_lines(wrap_in_loops(within, part.step, part.pragma) if within else part.step),
        "}",
        *part.closing,
    ]
    if cut:
        lines = [
            f"for (long from = 0; from < {extent}; from += {width}) {{",
            f"  const long until = from + {width} < {extent} ? from + {width} : {extent};",
            *indent_lines(lines),
            "}",
        ]
    return wrap_in_loops(loops[:at], lines)


def adding(name: str) -> str:
    """Says of a loop that it may add to `name` in vectors."""
    return f"#pragma omp simd reduction(+:{name})"


def wrap_in_loops(loops: Sequence[Loop], lines: list[str], pragma: str = "") -> list[str]:
    """`lines` in loops, with something said of the innermost one."""
    loops = [loop for loop in loops if loop[1] > 1]
    if not loops:
        return ["{", *indent_lines(lines), "}"]  # the names in it are its own
    for index, extent in reversed(loops):
        head = [pragma] if pragma and (index, extent) == loops[-1] else []
        lines = [*head, f"for (long {index} = 0; {index} < {extent}; {index}++) {{", *indent_lines(lines), "}"]
    return lines
