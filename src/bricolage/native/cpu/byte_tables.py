"""Which tensors of bytes are a function of one byte: what quantised graphs compute between two products, element by element.

Such a function is a table of 256 bytes, however long it is: a HardSwish that a file takes apart is rounded three times.
"""

from __future__ import annotations

from collections.abc import Mapping

from bricolage.native.fuse.kernel_plan import Buffer
from bricolage.native.ir.tensors import Constant, Node, Pointwise

_LEAST = 12
"""Instructions of a function that takes longer than looking it up: a vector of elements is looked up in the time of some eight
(measured on an Intel Xeon, family 6, model 167)."""
_USUAL = 10
_INSTRUCTIONS: Mapping[str, int] = {
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum", "relu", "square", "abs", "neg", "identity"), 1),
    **dict.fromkeys(("clip", "clip_to", "leaky", "cast"), 2),
    "dequantise": 3,
    "hardsigmoid": 3,
    "hardswish": 4,
    "saturate": 5,
    "finite_steps": 6,
    "steps": 8,
}
"""Of functions, and of any other."""


def byte_before(node: Node, buffers: Mapping[Node, Buffer]) -> Node | None:
    """The tensor of bytes that one of bytes is a function of, element by element: the furthest there is. None where there is none,
    or the function is so short that it is computed."""
    if not _is_byte(node) or not isinstance(node, Pointwise):
        return None
    inside: set[Node] = set()
    furthest: Node | None = None
    best = 0
    for candidate in _bytes_behind(node, buffers):
        inside.clear()
        if candidate.shape == node.shape and _depends_on(node, candidate, buffers, inside):
            length = sum(_INSTRUCTIONS.get(inner.function, _USUAL) for inner in inside if isinstance(inner, Pointwise))
            if length > max(best, _LEAST - 1):
                furthest, best = candidate, length
    return furthest


def _is_byte(node: Node) -> bool:
    return node.dtype == "uint8"


def _bytes_behind(node: Node, buffers: Mapping[Node, Buffer]) -> list[Node]:
    """Tensors of bytes that it is computed of by functions alone."""
    todo, seen, byte_nodes = list(node.sources), set[Node](), list[Node]()
    while todo:
        ancestor = todo.pop()
        if ancestor in seen:
            continue
        seen.add(ancestor)
        if _is_byte(ancestor) and not isinstance(ancestor, Constant):
            byte_nodes.append(ancestor)
        if isinstance(ancestor, Pointwise) and ancestor not in buffers:
            todo.extend(ancestor.sources)
    return byte_nodes


def _depends_on(node: Node, byte: Node, buffers: Mapping[Node, Buffer], inside: set[Node]) -> bool:
    """Whether it is a function of that and of single constants alone; `inside` takes the functions."""
    if node is byte or (isinstance(node, Constant) and node.elements == 1):
        return True
    if node in inside:
        return True
    if not isinstance(node, Pointwise) or node.shape != byte.shape or (inside and node in buffers):
        return False
    inside.add(node)
    return all(_depends_on(source, byte, buffers, inside) for source in node.sources)
