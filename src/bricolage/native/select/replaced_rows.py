"""Rows that are written into a cache where they belong.

Where the result lies in the memory of the cache, nothing else is touched: a token costs a row, however long the cache is. Otherwise
the other rows are copied first. Threads share the cache by the rows' numbers, so that none writes what another copies or writes.
"""

from __future__ import annotations

from bricolage.native.cpu.emit import Body, indent_lines
from bricolage.native.cpu.nested_loops import nested_loops
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.ir.cache_nodes import ReplacedRows
from bricolage.native.ir.index_expressions import ZERO, Index, variable
from bricolage.native.ir.tensors import STORED_BYTES, STORED_TYPES
from bricolage.native.select.algorithm import Algorithm, KernelRequest

SHARED_FROM = 16
"""Rows from which on threads share them."""
_WORK = 16
"""Multiply-adds that take as long as an element."""


def _applies(request: KernelRequest) -> bool:
    return isinstance(request.root, ReplacedRows)


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    root, plan, kernel = request.root, request.plan, request.kernel
    assert isinstance(root, ReplacedRows)
    rows, width = root.shape
    count = root.updates.shape[0]
    parts = request.target.threads if count >= SHARED_FROM else 1
    memory = FunctionMemory(weights)
    target = memory.pointer(kernel.target)
    source = memory.pointer(plan.buffers[root.cache])
    o = variable("o", count)
    place = Body(plan, memory, kernel.targets)
    at = place.value(root.places, (o, ZERO))
    stored = {"float16": "wide_to_half({})", "bfloat16": "nat_narrow({})"}.get(root.dtype, "{}")

    def store(body: Body, i: Index) -> str:
        return f"to[{i.c()}] = {stored.format(body.value(root.updates, (o, i)))};"

    kind, bytes_ = STORED_TYPES[root.dtype], width * STORED_BYTES[root.dtype]
    lines = [
        "for (long part = begin; part < end; part++) {",
        f"  if ((const void *){target} != (const void *){source})",
        f"    for (long row = part; row < {rows}; row += {parts})",
        f"      __builtin_memcpy({target} + row * {width}, {source} + row * {width}, {bytes_});",
        f"  for (long o = 0; o < {count}; o++) {{",
        *indent_lines(
            indent_lines(
                [
                    *place.lines,
                    f"const long row = nat_wrap({at}, {rows});",
                    f"if (row % {parts} != part) continue;",
                    f"{kind} *const to = {target} + row * {width};",
                    *nested_loops("i", width, lambda: Body(plan, memory, kernel.targets), store),
                ]
            )
        ),
        "  }",
        "}",
    ]
    return [Phase(lines, ParallelRange(parts, _WORK * width * -(-count // parts)), memory.operands)]


REPLACED_ROWS = Algorithm("replaced rows", _applies, _generate)
