"""Attention as one kernel: a product, the softmax of its rows, and the product with that.

A tile of rows goes through all three before the next, so that scores and probabilities never leave the thread's caches. Rows are
whole, with no running maximum (unlike in FlashAttention, which cuts columns as well: Dao et al., NeurIPS 2022). Both right
sides are packed once for each head.
"""

from __future__ import annotations

from bricolage.backends.native.body import Phase, Weights, indented, shares
from bricolage.backends.native.contraction import Blocking, Writer
from bricolage.backends.native.isa import Isa
from bricolage.backends.native.loops import SOFTMAX, exponentials
from bricolage.backends.native.panels import Operand
from bricolage.backends.native.plan import Buffer, Kernel, Plan
from bricolage.backends.native.products import product
from bricolage.backends.native.tensors import MatMul

_SCORES = "scores"
_ALL = Blocking(panel_bytes=1 << 40, by_columns=False, ahead=False)
"""All of k at once."""


def attention(kernel: Kernel, plan: Plan, weights: Weights, isa: Isa, threads: int, operand: Operand) -> Phase:
    """The phase of an attention with its epilogue. Threads share heads, or rows where there are fewer heads than threads."""
    second = kernel.root
    assert isinstance(second, MatMul) and kernel.before is not None
    first, softmax = kernel.before
    width = softmax.shape[-1]
    two = Writer(kernel, plan, weights, isa, threads, product(second, isa.lanes), operand, _ALL)
    in_place = operand.dtype == "float32"
    pitch = two.depth if in_place else width
    strides = (*(0 for _ in softmax.shape[:-2]), pitch, 1)
    scores = Buffer((_SCORES, 0), softmax.shape, "float32", strides)
    inner = Kernel(softmax.source, scores, first)
    one = Writer(inner, plan, weights, isa, threads, product(first, isa.lanes), operand, _ALL)
    p, tiles = two.p, two.tiles
    own = 0

    def take(size: int) -> int:
        nonlocal own
        own += -(-size // 64) * 64
        return own - -(-size // 64) * 64

    rights: list[str] = []
    packing: list[str] = []
    for writer in (one, two):
        if callable(writer.p.right):
            rights.append(writer.constant_right())
        else:
            rights.append(writer.packed_right(take(writer.right_bytes)))
            packing += ["{", *indented([rights[-1], *writer.pack_right()]), "}"]
    lines: list[str] = []
    if one.direct is None:
        lines.append(
            f"{one.element} *restrict block = ({one.element} *)(own + {take(one.most * one.depth * one.bytes)});"
        )
        left, lda, origin = "block", one.depth, "start"
        pack_left = one.pack_rows("start", "stop", "start")
    else:
        (left, lda), origin, pack_left = one.direct, "0", []
    lines.append(f"float *const rows = (float *)(own + {take(two.most * pitch * 4)});")
    if in_place:
        probabilities = "(const float *)rows"
    else:
        at = take(two.most * two.depth * two.bytes)
        lines.append(f"{two.element} *restrict probabilities = ({two.element} *)(own + {at});")
        probabilities = "probabilities"
    part = two.depth // operand.parts
    softened = [
        "float *const row = rows + r * " + str(pitch) + ";",
        *exponentials(width),
        f"{two.element} *const to = {'row' if in_place else f'probabilities + r * {two.depth}'};",
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indented(two.kept(SOFTMAX, "i", part)),
        "}",
        *two.zeros("to", width, part),
    ]
    work = [
        "for (long first = low; first < high; first++) {",
        *indented(
            [
                f"const long last = first + 1, start = {p.m}L * first / {tiles}, stop = {p.m}L * last / {tiles};",
                *pack_left,
                f"float *const {_SCORES}_0_float32_0 = rows - start * {pitch};",
                "{",
                *indented([rights[0], *one.over_panels("first", "last", left, lda, origin)]),
                "}",
                "for (long r = 0; r < stop - start; r++) {",
                *indented(softened),
                "}",
                "{",
                *indented([rights[1], *two.over_panels("first", "last", probabilities, two.depth, "start")]),
                "}",
            ]
        ),
        "}",
    ]
    if p.batch >= threads and p.batch > 1:
        lines += [*shares(p.batch), "for (long b = begin; b < end; b++) {"]
        low = f"const long low = 0, high = {tiles};"
    else:
        lines.append(f"for (long b = 0; b < {p.batch}; b++) {{")
        low = f"const long low = {tiles}L * tid / threads, high = {tiles}L * (tid + 1) / threads;"
    lines += [*indented([*packing, low, *work]), "}"]
    return Phase(operand.prepared(two.most, lines), own=own, helpers={**one.helpers, **two.helpers})
