"""A loop over elements that lie side by side only in parts: loops over the parts around one over each."""

from __future__ import annotations

from collections.abc import Callable

from bricolage.native.cpu.blocked_sum import wrap_in_loops
from bricolage.native.cpu.emit import Body
from bricolage.native.ir.index_expressions import Index, Var, flatten, nested_extents, variable


def nested_loops(
    name: str, extent: int, make_body: Callable[[], Body], write: Callable[[Body, Index], str]
) -> list[str]:
    """C of a loop over `extent` elements, of which `write` makes the last statement for an element's number. Where a body would
    divide, which takes a gather instead of a load for each vector, loops stand in its place, whose names begin with `name`."""
    probe = make_body()
    write(probe, variable(name, extent))
    extents = nested_extents(Var(name, extent), probe.indices)
    loops = [(f"{name}{number}", count) for number, count in enumerate(extents)]
    body = make_body()
    last = write(body, flatten([variable(*loop) for loop in loops], extents))
    return wrap_in_loops(loops, [*body.lines, last], "#pragma GCC ivdep")
