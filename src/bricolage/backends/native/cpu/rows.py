"""C of softmax and of normalisations over rows that a thread keeps."""

from __future__ import annotations

import math

from bricolage.backends.native.cpu.emit import KEEP_SCALAR, Body, epilogue, indented, literal
from bricolage.backends.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.backends.native.cpu.sharing import ParallelRange
from bricolage.backends.native.fuse.plan import FusionPlan, PlannedKernel
from bricolage.backends.native.ir.indexing import unflatten, variable
from bricolage.backends.native.ir.tensors import Normalise, Softmax

_WORK = 32
"""Multiply-adds that take as long as an element."""
SOFTMAX = "(row[i] * scale)"
"""An element of a softmax as C, after `exponentials`."""


def exponentials(width: int) -> list[str]:
    """Makes exponentials of `row`, and `scale`, which makes a softmax of them."""
    return [
        "float top = -__builtin_inff();",
        "#pragma omp simd reduction(max:top)",
        f"for (long i = 0; i < {width}; i++) top = row[i] > top ? row[i] : top;",
        "float sum = 0.0f;",
        "#pragma omp simd reduction(+:sum)",
        f"for (long i = 0; i < {width}; i++) {{ const float e = nat_exp(row[i] - top); row[i] = e; sum += e; }}",
        "const float scale = 1.0f / sum;",
    ]


def rows(kernel: PlannedKernel, plan: FusionPlan, weights: ConstantBlock) -> Phase:
    """A softmax or a normalisation: each row is read once into a thread's own memory, and written once."""
    root = kernel.root
    assert isinstance(root, (Softmax, Normalise))
    *lead, width = root.shape
    o, i = variable("o", math.prod(lead)), variable("i", width)
    coords = (*unflatten(o, lead), i)
    memory = FunctionMemory(weights)
    body = Body(plan, memory, kernel.targets)
    element = body.value(root.source, coords)
    if isinstance(root, Softmax):
        found = SOFTMAX
        middle = exponentials(width)
    else:
        found = "((row[i] - mean) * scale)"
        mean = [
            "float sum = 0.0f;",
            "#pragma omp simd reduction(+:sum)",
            f"for (long i = 0; i < {width}; i++) sum += row[i];",
            f"const float mean = sum * {literal(1.0 / width, 'float32')};",
        ]
        middle = [
            *(mean if root.centred else ["const float mean = 0.0f;"]),
            "float squares = 0.0f;",
            "#pragma omp simd reduction(+:squares)",
            f"for (long i = 0; i < {width}; i++) {{ const float d = row[i] - mean; squares += d * d; }}",
            f"const float scale = 1.0f / __builtin_sqrtf(squares * {literal(1.0 / width, 'float32')}"
            f" + {literal(root.epsilon, 'float32')});",
        ]
    inside = [
        *([KEEP_SCALAR] if body.guarded else []),
        f"float row[{width}];",
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indented([*body.lines, f"row[i] = {element};"]),
        "}",
        *middle,
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indented(epilogue(kernel, plan, memory, coords, found)),
        "}",
    ]
    lines = ["for (long o = begin; o < end; o++) {", *indented(inside), "}"]
    return Phase(lines, ParallelRange(math.prod(lead), _WORK * width), memory.operands)
