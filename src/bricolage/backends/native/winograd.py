"""3×3 convolutions with fewer multiplications: Winograd's minimal filtering F(m×m, 3×3).

A tile of m × m outputs costs (m + 2)² multiplications for each pair of channels instead of 9 m²: 2.25 times fewer for m = 2, four
times fewer for m = 4, where rounding errors grow, however (Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks",
CVPR 2016, sections 4.1 to 4.3). The transformed input, a matrix product for each of the (m + 2)² points, and the output's
transformation with the epilogue are done block by block, so that a thread's block stays in its second-level cache.

Further spatial dimensions (depth) are summed over in the transformed domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bricolage.backends.native.body import Body, Phase, Weights, address, indented, pointer, shares, tests_of, trace
from bricolage.backends.native.contraction import micro_kernel, panels
from bricolage.backends.native.fusion import Kernel, Plan
from bricolage.backends.native.indexing import ZERO, Index, unflatten, variable
from bricolage.backends.native.isa import Isa
from bricolage.backends.native.tensors import Constant, Conv

_CACHE_BYTES = 512 * 1024
_TRANSFORM_COST = 12.0
"""Multiply-adds that take as long as transforming one element."""
_STREAM_COST = 18.0
"""Multiply-adds that take as long as reading one weight from beyond the second-level cache."""


@dataclass(frozen=True)
class Transform:
    """Matrices of F(m, 3): `data` (Bᵀ), `filter` (G) and `output` (Aᵀ)."""

    m: int
    data: np.ndarray
    filter: np.ndarray
    output: np.ndarray


def transform(m: int, points: tuple[float, ...]) -> Transform:
    """F(m, 3) by the Toom-Cook construction on the given m + 1 finite points and infinity."""
    n = m + 2
    assert len(points) == n - 1
    # Filter and output are evaluations of polynomials; the data transformation is what makes the identity hold.
    f = np.array([[p**j for j in range(3)] for p in points] + [[0.0, 0.0, 1.0]])
    a = np.array([[p**i for p in points] + [float(i == m - 1)] for i in range(m)])
    scale = np.array([math.prod(p - q for q in points if q != p) for p in points] + [1.0])
    # Solve Σ_t a[i, t] f[t, j] b[t, k] = [k == i + j] for b, one column k at a time.
    system = np.array([[a[i, t] * f[t, j] for t in range(n)] for i in range(m) for j in range(3)])
    b = np.zeros((n, n))
    for k in range(n):
        wanted = np.array([float(k == i + j) for i in range(m) for j in range(3)])
        b[:, k] = np.linalg.lstsq(system, wanted, rcond=None)[0]
    # Moving the scale from the data to the filter keeps the data's factors small whole numbers.
    return Transform(m, np.round(b * scale[:, None], 9), f / scale[:, None], a)


F2 = transform(2, (0.0, 1.0, -1.0))
F4 = transform(4, (0.0, 1.0, -1.0, 2.0, -2.0))


def choose(root: Conv, plan: Plan, isa: Isa, threads: int, largest: int) -> Transform | None:
    """The transformation that should be fastest for a convolution, of those with tiles of at most `largest` outputs; None
    where the direct way should be faster, or nothing else fits."""
    if not _fits(root, plan, isa):
        return None
    ways: list[Transform | None] = [None, *(t for t in (F2, F4) if t.m <= largest)]
    return min(ways, key=lambda t: _cost(root, t, isa, threads))


def _fits(root: Conv, plan: Plan, isa: Isa) -> bool:
    """Whether the last two dimensions are a plain 3×3 convolution that reads vectors of channels."""
    taps = root.weight.shape[2:]
    if len(taps) < 2 or taps[-2:] != (3, 3) or root.groups != 1:
        return False
    if root.strides[-2:] != (1, 1) or root.dilations[-2:] != (1, 1) or root.source.shape[1] % isa.lanes:
        return False
    c = variable("c", root.source.shape[1])
    found = trace(root.source, (ZERO, c, *(variable(f"s{i}", e) for i, e in enumerate(root.source.shape[2:]))), plan)
    return found is not None and found[1].stride(next(iter(c.variables))) == 1


def _cost(root: Conv, t: Transform | None, isa: Isa, threads: int) -> float:
    """Multiply-adds of one thread, with memory and additions in the same coin (factors measured on Zen 5)."""
    images, c_out, *deep, height, width = root.shape
    depth = root.source.shape[1] * math.prod(root.weight.shape[2:-2])
    deep_places = images * math.prod(deep)
    if t is None:
        points, per_tile = 9, 1
        transforms = 0.0
    else:
        points, per_tile = (t.m + 2) ** 2, t.m
    tiles = deep_places * -(-height // per_tile) * -(-width // per_tile)
    own = -(-tiles // threads)
    if t is not None:
        transforms = _TRANSFORM_COST * own * points * (depth + c_out)
    products = points * depth * c_out * -(-own // isa.rows) * isa.rows
    streamed = points * depth * c_out if 4 * points * depth * c_out > _CACHE_BYTES else 0
    return products + transforms + _STREAM_COST * streamed


def winograd(kernel: Kernel, plan: Plan, weights: Weights, isa: Isa, t: Transform) -> list[Phase]:
    root = kernel.root
    assert isinstance(root, Conv) and isinstance(root.weight, Constant)
    n, lanes, m = t.m + 2, isa.lanes, t.m
    images, c_out, *sizes = root.shape
    c_in = root.source.shape[1]
    *deep_taps, _, _ = root.weight.shape[2:]
    *deep, height, width = sizes
    across, down = -(-width // m), -(-height // m)
    tiles = images * math.prod(deep) * down * across
    depth = math.prod(deep_taps) * c_in
    wide = 2 * lanes
    columns = -(-c_out // wide)
    last = c_out - (columns - 1) * wide
    last_vectors = 1 if last <= lanes else 2
    stored = ((columns - 1) * 2 + last_vectors) * lanes
    points = n * n
    rows = isa.rows
    block = max(rows, _CACHE_BYTES // (4 * points * (depth + stored)) // rows * rows)
    weight = root.weight.array
    offset = weights.add(("winograd", m, id(root)), lambda: panels(_filters(weight, t, len(deep_taps)), lanes))
    own_data = points * block * depth * 4
    own = own_data + points * block * stored * 4
    p = variable("p", tiles)
    image, *rest = unflatten(p, (images, *deep, down, across))
    *at_deep, th, tw = rest
    helpers: dict[str, str] = {}

    def micro(vectors: int) -> str:
        name = f"product_{rows}x{vectors}_{depth}"
        helpers[name] = micro_kernel(name, rows, vectors, depth, lanes)
        return name

    # --- input: Bᵀ d B for vectors of channels
    taps = [variable(f"t{i}", extent) for i, extent in enumerate(deep_taps)]
    spots = [
        spot * root.strides[i] + tap * root.dilations[i] + (-root.pads[i])
        for i, (spot, tap) in enumerate(zip(at_deep, taps, strict=True))
    ]
    deep_tests = [text for i, spot in enumerate(spots) for text in tests_of(spot, root.source.shape[2 + i])]
    c = variable("c", c_in)
    loads: list[str] = []
    for i in range(n):
        for j in range(n):
            h, w = th * m + (i - root.pads[-2]), tw * m + (j - root.pads[-1])
            found = trace(root.source, (image, c, *spots, h, w), plan)
            assert found is not None
            tests = [*deep_tests, *tests_of(h, root.source.shape[-2]), *tests_of(w, root.source.shape[-1])]
            load = f"load({found[0]} + {found[1].c()})"
            loads.append(
                f"const vec d{i}_{j} = {load};"
                if not tests
                else f"const vec d{i}_{j} = {' && '.join(tests)} ? {load} : zero;"
            )
    here = "data + (p - first) * DEPTH".replace("DEPTH", str(depth))
    at = _at(taps, deep_taps, c_in)
    inner = [
        *loads,
        *_matrix(t.data, "d", "e", n, n, left=True),
        *_matrix(t.data, "e", "f", n, n, left=False),
        f"float *to = {here} + {at} + c;",
        *(f"*(vec *)(to + {(i * n + j) * block * depth}) = f{i}_{j};" for i in range(n) for j in range(n)),
    ]
    lines = [f"for (long c = 0; c < {c_in}; c += {lanes}) {{", *indented(inner), "}"]
    for i, extent in reversed(list(enumerate(deep_taps))):
        if extent > 1:
            lines = [f"for (long t{i} = 0; t{i} < {extent}; t{i}++) {{", *indented(lines), "}"]
    into = ["for (long p = first; p < last; p++) {", *indented(lines), "}"]

    # --- products
    def product(vectors: int) -> list[str]:
        return [
            f"for (long row = 0; row < last - first; row += {rows})",
            f"  {micro(vectors)}({depth}, data + (point * {block} + row) * {depth}, right,",
            f"    made + point * {block * stored} + panel * {block * wide} + row * {vectors * lanes});",
        ]

    per_point = depth * stored
    multiply = [
        f"for (long point = 0; point < {points}; point++)",
        f"  for (long panel = 0; panel < {columns}; panel++) {{",
        f"    const float *right = filters + point * {per_point} + panel * {depth * wide};",
        *indented(
            [*product(2)]
            if last_vectors == 2
            else [f"if (panel < {columns - 1}) {{", *indented(product(2)), "} else {", *indented(product(1)), "}"],
            2,
        ),
        "  }",
    ]

    # --- output: Aᵀ m A and the epilogue
    def finish(vectors: int, panel_width: int) -> list[str]:
        panel = variable("panel", columns)
        j = variable("j", panel_width)
        out = [f"float tile[{m * m}][{vectors * lanes}] __attribute__((aligned(64)));"]
        read = [
            f"const vec g{a}_{b} = load(made + {(a * n + b) * block * stored} + panel * {block * wide}"
            f" + (p - first) * {vectors * lanes} + v);"
            for a in range(n)
            for b in range(n)
        ]
        compute = [
            *read,
            *_matrix(t.output, "g", "h", n, n, left=True),
            *_matrix(t.output, "h", "o", m, n, left=False),
            *(f"*(vec *)(tile[{a * m + b}] + v) = o{a}_{b};" for a in range(m) for b in range(m)),
        ]
        out += [f"for (long v = 0; v < {vectors * lanes}; v += {lanes}) {{", *indented(compute), "}"]
        for a in range(m):
            for b in range(m):
                y, x = th * m + a, tw * m + b
                tests = [*tests_of(y, height), *tests_of(x, width)]
                place = kernel.place_of_result((image, panel * wide + j, *at_deep, y, x))
                body = Body(plan, weights, kernel.target)
                assert kernel.root is not None
                body.bind(kernel.root, f"tile[{a * m + b}][j]")
                value = body.value(kernel.result, place)
                store = f"{pointer(kernel.target)}[{address(kernel.target, place).c()}] = {value};"
                loop = ["#pragma GCC ivdep", f"for (long j = 0; j < {panel_width}; j++) {{"]
                loop += [*indented([*body.lines, store]), "}"]
                out += [f"if ({' && '.join(tests)}) {{", *indented(loop), "}"] if tests else loop
        return out

    split = last < wide and columns > 1
    over = (
        [
            f"if (panel < {columns - 1}) {{",
            *indented(finish(2, wide)),
            "} else {",
            *indented(finish(last_vectors, last)),
            "}",
        ]
        if split
        else finish(last_vectors, last if columns == 1 else wide)
    )
    out_of = [
        "for (long p = first; p < last; p++)",
        f"  for (long panel = 0; panel < {columns}; panel++) {{",
        *indented(over, 2),
        "  }",
    ]
    body = [
        "const vec zero = {0};",
        f"const float *restrict filters = (const float *)(weights + {offset});",
        f"float *restrict data = (float *)own, *restrict made = (float *)(own + {own_data});",
        *shares(tiles),
        f"for (long first = begin; first < end; first += {block}) {{",
        f"  const long last = first + {block} < end ? first + {block} : end;",
        *indented([*into, *multiply, *out_of]),
        "}",
    ]
    return [Phase(body, own=own, helpers=helpers)]


def _at(taps: list[Index], extents: list[int], c_in: int) -> str:
    total = ZERO
    for tap, extent in zip(taps, extents, strict=True):
        total = total * extent + tap
    return (total * c_in).c()


def _filters(weight: np.ndarray, t: Transform, deep: int) -> np.ndarray:
    """G g Gᵀ as [points, depth, outputs]."""
    exact = weight.astype(np.float64)
    n = t.m + 2
    moved = np.einsum("ai,...ij,bj->ab...", t.filter, exact, t.filter)  # [n, n, out, in, deep...]
    order = (0, 1, *range(4, 4 + deep), 3, 2)
    found: np.ndarray = moved.transpose(order).reshape(n * n, -1, weight.shape[0]).astype(np.float32)
    return found


def _matrix(by: np.ndarray, of: str, made: str, rows: int, columns: int, *, left: bool) -> list[str]:
    """C of a product with a constant matrix: from the left, made[a][j] = Σ by[a][i] of[i][j]; from the right with its
    transpose, made[i][a] = Σ by[a][j] of[i][j]. `rows` and `columns` are those of `of`."""
    lines: list[str] = []
    count = by.shape[0]
    for a in range(count):
        for other in range(columns if left else rows):
            terms: list[str] = []
            for k in range(by.shape[1]):
                factor = float(by[a, k])
                if factor == 0:
                    continue
                name = f"{of}{k}_{other}" if left else f"{of}{other}_{k}"
                sign = "-" if factor < 0 else "+" if terms else ""
                size = abs(factor)
                terms.append(f"{sign} {name}" if size == 1 else f"{sign} {size!r}f * {name}")
            target = f"{made}{a}_{other}" if left else f"{made}{other}_{a}"
            lines.append(f"const vec {target} = {' '.join(terms) or 'zero'};")
    return lines
