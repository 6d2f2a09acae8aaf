"""3×3 convolutions with fewer multiplications: Winograd's minimal filtering F(m×m, 3×3).

A tile of m × m outputs costs (m + 2)² multiplications for each pair of channels instead of 9 m²: 2.25 times fewer for m = 2, four
times fewer for m = 4, where rounding errors grow, however (Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks",
CVPR 2016, sections 4.1 to 4.3). The transformed input, a matrix product for each of the (m + 2)² points, and the output's
transformation with the epilogue are done block by block, so that a thread's block stays in its second-level cache.

Further spatial dimensions (depth) are summed over in the transformed domain. In bfloat16, transformed inputs and filters are
rounded where they are stored; transformations and sums stay float32. Convolutions of bytes are done in integers
(`winograd_integers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bricolage.native.cpu.emit import (
    KEEP_SCALAR,
    VECTORISED,
    ByteRuns,
    bounds_tests,
    conjunction,
    epilogue,
    indent_lines,
    nest_loops,
    trace_element,
)
from bricolage.native.cpu.panels import MicroTile, ProductOperand
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.winograd_integers import SIGNED_SUMS, SUMS, divide_exactly
from bricolage.native.cpu.winograd_transform import (
    Transform,
    compute_cost,
    fitting_transforms,
    tile_rows,
    transformed_operand,
)
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import ZERO, flatten, unflatten, variable
from bricolage.native.ir.tensors import Constant, Conv
from bricolage.native.select.algorithm import Algorithm, KernelRequest, product_parameters


def choose_transform(request: KernelRequest) -> Transform:
    """Of the transformations that fit the one that should be fastest."""
    return min(_fitting(request), key=lambda transform: _multiply_adds(request, transform))


def _fitting(request: KernelRequest) -> list[Transform]:
    """The transformations that fit; where a tile was chosen, of these the one that has it."""
    root, tile = request.root, request.choice.tile
    if not isinstance(root, Conv) or request.kernel.fused_producer is not None:
        return []
    fitting = fitting_transforms(root, request.plan, request.target, request.arithmetic)
    return [transform for transform in fitting if tile is None or transform.m == tile]


def _applies(request: KernelRequest) -> bool:
    """To plain 3×3 convolutions in an arithmetic that allows a tile, which read vectors of channels."""
    return bool(_fitting(request))


def _cost(request: KernelRequest) -> float:
    """Nothing where a tile was chosen."""
    if request.choice.tile is not None:
        return 0.0
    return _multiply_adds(request, choose_transform(request)) / _multiply_adds(request, None)


def _multiply_adds(request: KernelRequest, transform: Transform | None) -> float:
    """Of one thread, by a transformation or as a contraction."""
    root, isa = request.root, request.target.isa
    assert isinstance(root, Conv)
    operand = transformed_operand(root, isa, request.arithmetic)
    if transform is None and root.dtype == "int32":
        operand = request.operand
    return compute_cost(root, transform, request.target, operand)


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """The phase of a convolution with its epilogue: blocks of tiles are transformed, multiplied, and transformed back."""
    root, target, transform = request.root, request.target, choose_transform(request)
    assert isinstance(root, Conv) and isinstance(root.weight, Constant)
    return [
        _WinogradCodegen(
            request.kernel,
            request.plan,
            memory=FunctionMemory(weights),
            target=target,
            t=transform,
            root=root,
            filters=root.weight.array,
            operand=transformed_operand(root, target.isa, request.arithmetic),
            block_bytes=request.choice.gemm.mc_bytes or target.l2_bytes // 2,
        ).phase()
    ]


@dataclass(frozen=True)
class _Numbers:
    """C of the vectors that are transformed."""

    data: str
    """Type of a vector of inputs."""
    lanes: int
    """Of such a vector."""
    load: str
    """Of one in memory, at {0}."""
    store: str
    """Stores {1} at {0}."""
    outside: str
    """Around the images."""
    sums: str = "vec"
    """Type of a vector of products' sums."""
    tile: str = "float"
    """Type of an output."""
    tile_vector: str = "vec"
    result: Callable[[str], str] = str
    """What the output's transformation has made, as outputs."""


def _numbers(root: Conv, t: Transform, operand: ProductOperand, stored: str, lanes: int) -> _Numbers:
    """For inputs that lie in memory as `stored`."""
    if root.dtype == "float32":
        load = "(vec)load_narrow({0})" if stored == "bfloat16" else "load({0})"
        store = "store_narrow({0}, {1})" if operand.dtype == "bfloat16" else "store({0}, {1})"
        return _Numbers("vec", lanes, load, store, "(vec){0}")
    kind, count = ("half", lanes) if root.source.shape[1] % (2 * lanes) else ("whole", 2 * lanes)
    data = f"winograd_{kind}"
    return _Numbers(
        data,
        count,
        load=f"{data}_load({{0}})",
        store=f"*({data} *)({{0}}) = {{1}}",
        outside=f"({data}){{0}} + {root.fill}",
        sums=SUMS,
        tile="int32_t",
        tile_vector=SIGNED_SUMS,
        result=lambda sums: divide_exactly(sums, t.multiple),
    )


@dataclass
class _WinogradCodegen:
    kernel: PlannedKernel
    plan: FusionPlan
    memory: FunctionMemory
    target: CpuTarget
    t: Transform
    root: Conv
    filters: np.ndarray
    operand: ProductOperand
    block_bytes: int

    def __post_init__(self) -> None:
        self.element, self.bytes = self.operand.element, self.operand.bytes
        root, lanes = self.root, self.target.lanes
        images, c_out, *sizes = root.shape
        *self.deep_taps, _, _ = root.weight.shape[2:]
        *deep, height, width = sizes
        across, down = -(-width // self.t.m), -(-height // self.t.m)
        self.helpers: dict[str, str] = self.operand.helpers(self.target.isa)
        self.c_in = root.source.shape[1]
        self.depth = math.prod(self.deep_taps) * self.c_in
        """Products summed at each point."""
        self.points = (self.t.m + 2) ** 2
        self.wide = 2 * lanes
        self.columns = -(-c_out // self.wide)
        self.last_width = c_out - (self.columns - 1) * self.wide
        self.last_vectors = 1 if self.last_width <= lanes else 2
        self.stored = ((self.columns - 1) * 2 + self.last_vectors) * lanes
        """Output channels, padded."""
        self.tiles = images * math.prod(deep) * down * across
        self.rows = rows = tile_rows(self.tiles, self.target.threads, self.operand, self.target.isa)
        alone = tile_rows(self.tiles, 1, self.operand, self.target.isa)
        self.sets = self.operand.sets([alone], min(2, 2 * (self.columns - 1) + self.last_vectors))
        """Of a thread alone, so that a result has the same bits on any number of threads."""
        per_tile = self.points * (self.bytes * self.depth + 4 * self.stored)
        self.block = max(rows, self.block_bytes // per_tile // rows * rows)
        """Tiles that are done together."""
        self.image, *rest = unflatten(variable("p", self.tiles), (images, *deep, down, across))
        *self.deep, self.down, self.across = rest
        element = trace_element(root.source, (ZERO,) * len(root.source.shape), self.plan)
        assert element is not None
        self.numbers = _numbers(root, self.t, self.operand, element[0].dtype, lanes)

    def phase(self) -> Phase:
        weight, t, lanes = self.filters, self.t, self.target.lanes
        offset = self.memory.weights.add(
            ("winograd", t.m, id(self.root)),
            lambda: self.operand.panels(_filters(weight, t, len(self.deep_taps)), lanes),
        )
        data = self.points * self.block * self.depth * self.bytes
        product_bytes = self.points * self.block * self.stored * 4
        body = [
            f"const {self.numbers.data} outside = {self.numbers.outside};",
            f"const {self.element} *restrict filters = (const {self.element} *){self.memory.constant(offset)};",
            f"{self.element} *restrict data = ({self.element} *)own;",
            f"{self.operand.sums} *restrict made = ({self.operand.sums} *)(own + {data});",
            *self.operand.with_tile_config(
                self.rows,
                [
                    f"for (long first = begin; first < end; first += {self.block}) {{",
                    f"  const long last = first + {self.block} < end ? first + {self.block} : end;",
                    *indent_lines([*self._transform(), *self._multiply(), *self._finish()]),
                    "}",
                ],
            ),
        ]
        share = ParallelRange(self.tiles, self.points * self.depth * self.stored, block=self.block)
        return Phase(body, share, self.memory.operands, thread_scratch=data + product_bytes, helpers=self.helpers)

    def _transform(self) -> list[str]:
        """The input: Bᵀ d B for vectors of channels."""
        root, t, n, numbers = self.root, self.t, self.t.m + 2, self.numbers
        taps = [variable(f"t{i}", extent) for i, extent in enumerate(self.deep_taps)]
        spots = [
            spot * root.strides[i] + tap * root.dilations[i] + (-root.pads[i])
            for i, (spot, tap) in enumerate(zip(self.deep, taps, strict=True))
        ]
        deep_tests = [text for i, spot in enumerate(spots) for text in bounds_tests(spot, root.source.shape[2 + i])]
        c = variable("c", self.c_in)
        loads: list[str] = []
        for i in range(n):
            for j in range(n):
                h, w = self.down * t.m + (i - root.pads[-2]), self.across * t.m + (j - root.pads[-1])
                element = trace_element(root.source, (self.image, c, *spots, h, w), self.plan)
                assert element is not None
                tests = [*deep_tests, *bounds_tests(h, root.source.shape[-2]), *bounds_tests(w, root.source.shape[-1])]
                load = numbers.load.format(f"{self.memory.pointer(element[0])} + {element[1].c()}")
                value = f"{conjunction(tests)} ? {load} : outside" if tests else load
                loads.append(f"const {numbers.data} d{i}_{j} = {value};")
        keep = [
            numbers.store.format(f"to + {(i * n + j) * self.block * self.depth}", f"f{i}_{j}")
            for i in range(n)
            for j in range(n)
        ]
        inner = [
            *loads,
            *_matrix(numbers.data, t.data, "d", "e", n, n, left=True),
            *_matrix(numbers.data, t.data, "e", "f", n, n, left=False),
            f"{self.element} *to = data + (p - first) * {self.depth} + {(flatten(taps, self.deep_taps) * self.c_in).c()} + c;",
            *(f"{each};" for each in keep),
        ]
        lines = [f"for (long c = 0; c < {self.c_in}; c += {numbers.lanes}) {{", *indent_lines(inner), "}"]
        return [
            "for (long p = first; p < last; p++) {",
            *indent_lines([KEEP_SCALAR, *nest_loops("t", self.deep_taps, lines)]),
            "}",
        ]

    def _multiply(self) -> list[str]:
        """A matrix product for every point."""
        depth, stored, block, lanes = self.depth, self.stored, self.block, self.target.lanes

        def product(vectors: int, _width: int) -> list[str]:
            """The next panel is fetched meanwhile: all of them together are larger than a second-level cache."""
            row_bytes, steps = vectors * lanes * self.operand.k_step * self.bytes, self.operand.steps(depth)
            return [
                f"const long tiles = (last - first + {self.rows - 1}) / {self.rows};",
                f"const long stride = ({row_bytes} + tiles - 1) / tiles;",
                f"const char *ahead = (const char *)(right + {depth * vectors * lanes});",
                f"for (long row = 0; row < last - first; row += {self.rows}, ahead += stride * {steps})",
                f"  {self._micro(vectors)}({steps}, data + (point * {block} + row) * {depth}, right,",
                f"    made + point * {block * stored} + panel * {block * self.wide} + row * {vectors * lanes}, ahead, stride);",
            ]

        return [
            f"for (long point = 0; point < {self.points}; point++)",
            f"  for (long panel = 0; panel < {self.columns}; panel++) {{",
            f"    const {self.element} *right = filters + point * {depth * stored} + panel * {depth * self.wide};",
            *indent_lines(self._by_panel(product, alike=self.last_vectors == 2), 2),
            "  }",
        ]

    def _finish(self) -> list[str]:
        """The output: Aᵀ m A and the epilogue."""
        return [
            "for (long p = first; p < last; p++)",
            f"  for (long panel = 0; panel < {self.columns}; panel++) {{",
            f"    {KEEP_SCALAR}",
            *indent_lines(self._by_panel(self._output, alike=self.last_width == self.wide), 2),
            "  }",
        ]

    def _by_panel(self, write: Callable[[int, int], list[str]], *, alike: bool) -> list[str]:
        """What `write` makes of the vectors and columns of a panel; only the last panel may be narrower."""
        last = write(self.last_vectors, self.last_width)
        if alike or self.columns == 1:
            return last
        full = write(2, self.wide)
        return [f"if (panel < {self.columns - 1}) {{", *indent_lines(full), "} else {", *indent_lines(last), "}"]

    def _output(self, vectors: int, width: int) -> list[str]:
        m, n, lanes, numbers = self.t.m, self.t.m + 2, self.target.lanes, self.numbers
        panel, j = variable("panel", self.columns), variable("j", width)
        read = [
            f"const {numbers.sums} g{a}_{b} = *(const {numbers.sums} *)"
            f"(made + {(a * n + b) * self.block * self.stored} + panel * {self.block * self.wide}"
            f" + (p - first) * {vectors * lanes} + v);"
            for a in range(n)
            for b in range(n)
        ]
        compute = [
            *read,
            *_matrix(numbers.sums, self.t.output, "g", "h", n, n, left=True),
            *_matrix(numbers.sums, self.t.output, "h", "o", m, n, left=False),
            *(
                f"*({numbers.tile_vector} *)(tile[{a * m + b}] + v) = {numbers.result(f'o{a}_{b}')};"
                for a in range(m)
                for b in range(m)
            ),
        ]
        out = [
            f"{numbers.tile} tile[{m * m}][{vectors * lanes}] __attribute__((aligned(64)));",
            f"for (long v = 0; v < {vectors * lanes}; v += {lanes}) {{",
            *indent_lines(compute),
            "}",
        ]
        for a in range(m):
            for b in range(m):
                y, x = self.down * m + a, self.across * m + b
                tests = [*bounds_tests(y, self.root.shape[-2]), *bounds_tests(x, self.root.shape[-1])]
                coords = (self.image, panel * self.wide + j, *self.deep, y, x)
                runs = ByteRuns(j, width, looks_up=self.target.isa.looks_up)
                finish = epilogue(self.kernel, self.plan, self.memory, coords, f"tile[{a * m + b}][j]", runs)
                self.helpers.update(runs.tables)
                loop = [VECTORISED, f"for (long j = 0; j < {width}; j++) {{", *indent_lines(finish), "}"]
                loop = runs.around(loop)
                out += [f"if ({conjunction(tests)}) {{", *indent_lines(loop), "}"] if tests else loop
        return out

    def _micro(self, vectors: int) -> str:
        name, text = self.operand.micro_kernel(
            MicroTile(self.rows, vectors, self.depth, self.target.lanes, prefetch=True, sets=self.sets)
        )
        self.helpers[name] = text
        return name


def _filters(weight: np.ndarray, t: Transform, deep: int) -> np.ndarray:
    """G g Gᵀ as [points, depth, outputs]."""
    exact = weight.astype(np.float64)
    n = t.m + 2
    moved = np.einsum("ai,...ij,bj->ab...", t.filter, exact, t.filter)  # [n, n, out, in, deep...]
    order = (0, 1, *range(4, 4 + deep), 3, 2)
    filters: np.ndarray = moved.transpose(order).reshape(n * n, -1, weight.shape[0]).astype(np.float32)
    return filters


def _matrix(kind: str, by: np.ndarray, of: str, made: str, rows: int, columns: int, *, left: bool) -> list[str]:
    """C of a product with a constant matrix: from the left, made[a][j] = Σ by[a][i] of[i][j]; from the right with its
    transpose, made[i][a] = Σ by[a][j] of[i][j]. `rows` and `columns` are those of `of`, a vector of which is a `kind`."""
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
                number = f"{size!r}f" if kind == "vec" else str(int(size))
                terms.append(f"{sign} {name}" if size == 1 else f"{sign} {number} * {name}")
            target = f"{made}{a}_{other}" if left else f"{made}{other}_{a}"
            lines.append(f"const {kind} {target} = {' '.join(terms)};")
    return lines


WINOGRAD = Algorithm("Winograd", _applies, _generate, _cost, product_parameters)
