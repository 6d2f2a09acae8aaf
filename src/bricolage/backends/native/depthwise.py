"""Depthwise convolutions as C: vectors of channels, all taps of an output pixel at once."""

from __future__ import annotations

import math

import numpy as np

from bricolage.backends.native.body import (
    Body,
    Phase,
    Weights,
    address,
    indented,
    pointer,
    shares,
    step_of,
    tests_of,
    trace,
)
from bricolage.backends.native.fusion import Kernel, Plan
from bricolage.backends.native.indexing import ZERO, flatten, unflatten, variable
from bricolage.backends.native.isa import Isa
from bricolage.backends.native.tensors import Constant, Conv


def is_depthwise(root: Conv) -> bool:
    """Whether every channel is convolved by itself."""
    return root.groups > 1 and root.groups == root.shape[1] == root.source.shape[1]


def depthwise(kernel: Kernel, plan: Plan, weights: Weights, isa: Isa) -> list[Phase]:
    """A convolution of each channel by itself: vectors of channels, all taps of an output pixel at once."""
    root = kernel.root
    assert isinstance(root, Conv) and isinstance(root.weight, Constant)
    weight = root.weight
    images, channels, *sizes = root.shape
    taps = weight.shape[2:]
    offset = weights.add(
        ("depthwise", id(root)), lambda: np.ascontiguousarray(weight.array.reshape(channels, -1).T, dtype=np.float32)
    )
    o = variable("o", images * math.prod(sizes))
    image, *spots = unflatten(o, (images, *sizes))
    tap = [variable(f"t{n}", extent) for n, extent in enumerate(taps)]
    reads = [
        spot * root.strides[n] + t * root.dilations[n] + (-root.pads[n])
        for n, (spot, t) in enumerate(zip(spots, tap, strict=True))
    ]
    tests = [t for n, index in enumerate(reads) for t in tests_of(index, root.source.shape[2 + n])]
    lines = [f"const float *restrict taps = (const float *)(weights + {offset});", *shares(images * math.prod(sizes))]
    inside: list[str] = []
    done = 0
    for count in (4 * isa.lanes, isa.lanes, 1):
        blocks = (channels - done) // count
        if not blocks:
            continue
        c = variable("q", blocks) * count + done
        j = variable("j", count)
        found = trace(root.source, (image, c + j, *reads), plan)
        vectors = count // isa.lanes
        contiguous = found is not None and step_of(found[1], j) == 1
        w = f"taps + {(flatten(tap, taps) * channels + c).c()}"
        if vectors and contiguous:
            assert found is not None
            start = found[1].substitute(dict.fromkeys(j.variables, ZERO))
            declared = [f"vec acc{v} = {{0}};" for v in range(vectors)]
            step = [f"const float *x = {found[0]} + {start.c()}, *w = {w};"]
            step += [f"acc{v} += load(x + {v * isa.lanes}) * load(w + {v * isa.lanes});" for v in range(vectors)]
            finish = [f"*(vec *)(tile + {v * isa.lanes}) = acc{v};" for v in range(vectors)]
        else:
            body = Body(plan, weights, kernel.target)
            value = body.value(root.source, (image, c + j, *reads))
            declared = [f"for (long j = 0; j < {count}; j++) tile[j] = 0.0f;"]
            step = [f"const float *w = {w};", f"for (long j = 0; j < {count}; j++) {{"]
            step += [*indented([*body.lines, f"tile[j] += {value} * w[j];"]), "}"]
            finish = []
        over = [f"if ({' && '.join(tests)}) {{", *indented(step), "}"] if tests else ["{", *indented(step), "}"]
        for n, extent in reversed(list(enumerate(taps))):
            if extent > 1:
                over = [f"for (long t{n} = 0; t{n} < {extent}; t{n}++) {{", *indented(over), "}"]
        place = kernel.place_of_result((image, c + j, *spots))
        body = Body(plan, weights, kernel.target)
        body.bind(root, "tile[j]")
        value = body.value(kernel.result, place)
        store = f"{pointer(kernel.target)}[{address(kernel.target, place).c()}] = {value};"
        block = [f"float tile[{count}] __attribute__((aligned(64)));", *declared, *over, *finish]
        block += ["#pragma GCC ivdep", f"for (long j = 0; j < {count}; j++) {{", *indented([*body.lines, store]), "}"]
        inside += [f"for (long q = 0; q < {blocks}; q++) {{", *indented(block), "}"]
        done += blocks * count
    lines += ["for (long o = begin; o < end; o++) {", *indented(inside), "}"]
    return [Phase(lines)]
