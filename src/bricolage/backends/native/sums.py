"""C of long sums: rounding grows with the number of terms that one float32 takes, so that some thousand at most go into one.

A sum of n terms of one sign is off by some √n roundings. One of two million terms, taken as sixteen (a vector), was off by 2.7e-6
of itself; in parts that are added in float64, it is off by less than 2e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bricolage.backends.native.body import indented

Loop = tuple[str, int]
"""A loop variable, and how often it runs."""

_SHORT = 16_384
"""Terms up to which one sum is enough."""
_PART = 1_024
"""Terms that go into one part, if the innermost loops have as many."""
_FULL = 64
"""Terms below which a part is not worth its own addition."""


def summed(name: str, loops: Sequence[Loop], step: Callable[[str], list[str]]) -> list[str]:
    """Declares the float `name`: the sum over `loops`, outermost first. `step` adds one term to the float that it is told."""
    loops = [loop for loop in loops if loop[1] > 1]
    if math.prod(extent for _, extent in loops) <= _SHORT:
        return [f"float {name} = 0.0f;", *looped(loops, step(name), adding(name))]
    at = next(i for i in reversed(range(len(loops))) if math.prod(extent for _, extent in loops[i:]) >= _FULL)
    (index, extent), within = loops[at], loops[at + 1 :]
    width = max(1, _PART // math.prod(extent for _, extent in within))
    cut = extent > 2 * width
    lines = [
        "float part = 0.0f;",
        *([] if within else [adding("part")]),
        f"for (long {index} = {'from' if cut else 0}; {index} < {'until' if cut else extent}; {index}++) {{",
        *indented(looped(within, step("part"), adding("part")) if within else step("part")),
        "}",
        f"{name}_parts += part;",
    ]
    if cut:
        lines = [
            f"for (long from = 0; from < {extent}; from += {width}) {{",
            f"  const long until = from + {width} < {extent} ? from + {width} : {extent};",
            *indented(lines),
            "}",
        ]
    return [f"double {name}_parts = 0.0;", *looped(loops[:at], lines), f"const float {name} = {name}_parts;"]


def adding(name: str) -> str:
    """Says of a loop that it may add to `name` in vectors."""
    return f"#pragma omp simd reduction(+:{name})"


def looped(loops: Sequence[Loop], lines: list[str], pragma: str = "") -> list[str]:
    """`lines` in loops, with something said of the innermost one."""
    loops = [loop for loop in loops if loop[1] > 1]
    if not loops:
        return ["{", *indented(lines), "}"]  # the names in it are its own
    for index, extent in reversed(loops):
        head = [pragma] if pragma and (index, extent) == loops[-1] else []
        lines = [*head, f"for (long {index} = 0; {index} < {extent}; {index}++) {{", *indented(lines), "}"]
    return lines
