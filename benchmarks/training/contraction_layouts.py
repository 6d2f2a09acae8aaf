"""In which layouts an operator runs that is a sum of products, from its index expression ("ab,bc->ac")."""

from __future__ import annotations

from collections.abc import Mapping

from bricolage.search.sharding.layouts import PARTIAL, REPLICATED, Layout, split_along


def contraction_layouts(
    expression: str, sizes: Mapping[str, int], workers: int, *, linear: bool = True, whole: str = ""
) -> list[tuple[tuple[Layout, ...], Layout]]:
    """Layouts of what it reads, and of what it writes.

    Divided along one index, each operand that has it is divided there, and the others are whole; what is written is divided there
    too, or is summands where the index is summed over. A sum of products is linear in each operand alone: one may be summands.

    Args:
        expression: as of `einsum`, with letters.
        sizes: of the letters.
        workers: devices that have to divide an index evenly.
        linear: False for what is not linear in any operand.
        whole: letters along which it cannot be divided, as those of a softmax.
    """
    left, _, output = expression.partition("->")
    operands = left.split(",")
    layouts = [((REPLICATED,) * len(operands), REPLICATED)]
    for letter in dict.fromkeys(left.replace(",", "")):
        if letter in whole or sizes[letter] % workers:
            continue
        inputs = tuple(split_along(operand.index(letter)) if letter in operand else REPLICATED for operand in operands)
        layouts.append((inputs, split_along(output.index(letter)) if letter in output else PARTIAL))
    if linear:
        for place in range(len(operands)):
            inputs = tuple(PARTIAL if other == place else REPLICATED for other in range(len(operands)))
            layouts.append((inputs, PARTIAL))
    return layouts
