"""Products at float32's accuracy from slices of 8 bits, by a matrix unit: float32 in and out, exact integers in between.

A row of the left side is scaled to integers of 32 bits (24 bits with three slices), a column of constant weights to integers of 24
bits. An integer is written in balanced digits of base 256, from -128 to 127, the *slices*. Slice i of a row times slice j of a
column belongs to *level* i + j; levels are summed in int32 and are exact, so that the result has the same bits for every way to cut
a product up. Levels beyond the last one are left out. With L_l the sum of level l, and n and s slices and scale of a side,

    Σ a·w = 256^(n_a - 1) / s_a · 256^(n_w - 1) / s_w · Σ_l 256^-l · L_l

(Ootomo, Ozaki & Yokota, "DGEMM on integer matrix multiplication unit", 2024; Ozaki, Ogita, Oishi & Rump, "Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication and its applications", 2012).

The relative error with c the peak of a row (a column) over its root mean square: nine products leave 3.5e-8·c_w + 1.1e-10·c_a·c_w,
so that the weights decide, and columns with c_w > 8 take a fourth slice; six leave 2.8e-8·c_a·c_w and 3.5e-8·√(c_a² + c_w²), added
in squares (docs/design/native-engine.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from bricolage.native.c import read_header
from bricolage.native.cpu.implicit_gemm import Product, product
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.matrix_unit import EMULATED, ROW_BYTES, ROWS, SLICE_TILES, TILES, Tiles, with_tiles
from bricolage.native.cpu.panels import START_BYTES, MicroTile, ProductOperand
from bricolage.native.ir.tensors import Constant, Conv, MatMul, Node

SliceProducts = Literal[0, 6, 9]
"""None; three slices on both sides and three levels; four of the left side, three of the right one, and four levels."""
BASE = 256
LARGEST_INTEGER = {3: 127 * (BASE**2 + BASE + 1), 4: 127 * (BASE**3 + BASE**2 + BASE + 1)}
"""By slices: 127 in each digit."""
SHARP = 8.0
"""Peak of a column over its root mean square, beyond which three slices of it are less accurate than float32."""
LEAST_DEPTH = 64
"""Products along k that fill a row of a tile: with fewer, what comes behind a product takes longer than it saves."""
LARGEST_SUM, LARGEST_PRODUCT = 2**31 - 1, 2**14
_PEAKS = 2.0**-100, 2.0**100
"""Of columns that are scaled in float32 without coming near its ends."""
_SCALE_BYTES = 4
_LANES = 16
"""Of a vector of float32, and columns of a tile."""

PACK_SLICES = read_header("pack_slices")


@dataclass(frozen=True)
class SlicedTiles(Tiles):
    """Slices in tiles. `splits` is the number of slices of the left side."""

    right_slices: int = 3
    levels: int = 4
    """Slices i and j are multiplied where i + j is less than this."""
    mixed: bool = False
    """Whether some panels have four slices of the right side, and others three."""

    @property
    def right_splits(self) -> int:
        """See `ProductOperand.right_splits`."""
        return self.right_slices

    @property
    def planes(self) -> int:
        """See `ProductOperand.planes`: levels."""
        return self.levels

    @property
    def formats(self) -> tuple[ProductOperand, ...]:
        """See `ProductOperand.formats`."""
        if not self.mixed:
            return (self,)
        return replace(self, mixed=False), replace(self, mixed=False, right_slices=4)

    @property
    def longest(self) -> int:
        """Products along k whose sums fit into int32, in the level that has the most."""
        return longest_depth(self.splits, self.right_slices, self.levels)

    def row(self, k: int) -> int:
        """See `ProductOperand.row`: slices, and a scale."""
        return self.depth(k) + _SCALE_BYTES

    def column(self, k: int) -> int:
        """See `ProductOperand.column`: slices, and a scale."""
        return self._column_depth(k) + _SCALE_BYTES

    def _column_depth(self, k: int) -> int:
        return self.steps(k) * self.k_step * self.right_slices

    def rows(self, _isa: Isa) -> int:
        """Two tiles, one above the other, where there are registers for their levels."""
        return ROWS * (2 if self.levels == 3 else 1)

    def preamble(self, isa: Isa) -> Sequence[str]:
        """The unit's instructions, and what packs rows."""
        unit = (TILES, SLICE_TILES) if isa.matrix_unit == "amx" else (EMULATED,)
        return (*unit, PACK_SLICES)

    def pack_row(self, x: str, to: str, k: int, part: int, peak: str = "") -> str:
        """See `ProductOperand.pack_row`."""
        return f"pack_slices{self.splits}({x}, {to}, {k}, {part}, {peak or self.row_peak(x, k)});"

    def row_peak(self, x: str, k: int) -> str:
        """See `ProductOperand.row_peak`."""
        return f"slice_peak({x}, {k})"

    def declare_column_scales(self, k: int, padded: int) -> list[str]:
        """See `ProductOperand.declare_column_scales`."""
        return [f"const float *restrict scales = (const float *)(columns + {self._column_depth(k) * padded});"]

    def declare_row_scale(self, row: str, k: int) -> list[str]:
        """See `ProductOperand.declare_row_scale`."""
        return ["float scale;", f"__builtin_memcpy(&scale, {row} + {self.depth(k)}, 4);"]

    def sum_of(self, at: str, plane: int) -> str:
        """See `ProductOperand.sum_of`: levels from the least one, each rounded once. The column's scale comes first: it is far from
        the ends of float32, a row's may be anywhere."""
        total = f"(float)tile[{(self.levels - 1) * plane} + {at}]"
        for level in range(self.levels - 2, -1, -1):
            total = f"({total} * 0x1p-8f + (float)tile[{level * plane} + {at}])"
        return f"({total} * scales[j] * scale)"

    def panels(self, right: np.ndarray, lanes: int) -> np.ndarray:
        """[batch, k, n] as panels of a vector, one after another: for each step along k the slices side by side, in rows of four
        neighbours for each column; then the scales of all columns."""
        batch, k, n = right.shape
        depth, count = self.steps(k) * self.k_step, -(-n // lanes)
        parts: list[np.ndarray] = []
        for each, sharp in zip(right, self._sharp(right), strict=True):
            full = np.zeros((depth, count * lanes), np.float32)
            full[:k, :n] = each
            by_slices = {slices: sliced_columns(full, slices) for slices in self._numbers_of_slices}
            for number in range(count):
                columns = slice(number * lanes, (number + 1) * lanes)
                chosen = by_slices[4 if sharp[number] else self.right_slices]
                panel = chosen.slices[:, :, columns].reshape(len(chosen.slices), -1, self.k_step // 4, 4, lanes)
                parts.append(panel.transpose(1, 0, 2, 4, 3).reshape(-1).view(np.uint8))
                parts.append(np.ascontiguousarray(chosen.scales[columns]).view(np.uint8))
        return np.concatenate(parts).reshape(batch, -1) if not self.mixed else np.concatenate(parts)

    @property
    def _numbers_of_slices(self) -> tuple[int, ...]:
        return (3, 4) if self.mixed else (self.right_slices,)

    def _sharp(self, right: np.ndarray) -> np.ndarray:
        """[batch, panels]: which panels have a slice more than others."""
        sharp = _find_sharp_panels(right)
        assert sharp is not None
        return sharp if self.mixed else np.zeros_like(sharp)

    def panel_starts(self, p: Product, lanes: int) -> np.ndarray:
        """See `ProductOperand.panel_starts`."""
        assert callable(p.right)
        sharp = self._sharp(p.right())
        usual, more = (operand.column(p.k) * lanes // START_BYTES for operand in self.formats)
        sizes = np.where(sharp, more, usual).reshape(-1)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).reshape(sharp.shape)
        return np.ascontiguousarray(2 * starts + sharp, np.int32)

    def with_tile_config(self, rows: int, lines: list[str]) -> list[str]:
        """See `ProductOperand.with_tile_config`: tiles of sums and of the left side, then those of the right side."""
        halves, tile_rows = _halves(rows)
        left = halves * self.levels
        shapes = [(tile_rows, ROW_BYTES)] * (left + 1) + [(ROW_BYTES // self.k_pack, ROW_BYTES)] * (_TILES - left - 1)
        return with_tiles(shapes, lines)

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`: up to 16 or 32 rows times a vector. Two tiles have equally many rows, so that
        they may have one in common, of which both compute the same integers."""
        assert tile.vectors == 1, "the other registers hold levels"
        halves, tile_rows = _halves(tile.rows)
        below, plane, wide = tile.rows - tile_rows, tile.rows * tile.lanes, tile.lanes
        name = f"slices{self.splits}{self.right_slices}_{tile.rows}_{tile.lda}x{tile.part}"
        name += (
            f"{'_ahead' if tile.prefetch else ''}{'_adds' if tile.adds else ''}{f'_runs{tile.run}' if tile.run else ''}"
        )
        more = (", const char *ahead, long stride" if tile.prefetch else "") + (", long fresh" if tile.adds else "")
        more += ", const int *hops" if tile.run else ""
        lines = [
            f"static __attribute__((noinline, noipa)) void {name}"
            f"(long depth, const int8_t *{'left' if tile.run else 'a'}, const int8_t *b, int32_t *tile{more}) {{"
        ]
        sums = [
            (half * self.levels + level, f"tile + {level * plane + half * below * wide}, {4 * wide}")
            for half in range(halves)
            for level in range(self.levels)
        ]
        clear = [f"tile_zero({number});" for number, _ in sums]
        if tile.adds:
            again = [f"tile_load({number}, {spot});" for number, spot in sums]
            lines += [f"  if (fresh) {{ {' '.join(clear)} }}", f"  else {{ {' '.join(again)} }}"]
        else:
            lines += [f"  {line}" for line in clear]
        if tile.run:
            lines += ["  for (long run = 0; run < depth; run++) {", "  const int8_t *a = left + hops[run];"]
        lines += [f"  for (long k = 0; k < {tile.run or 'depth'}; k++) {{"]
        if tile.prefetch:
            lines += [
                "    for (long n = 0; n < stride; n += 64) __builtin_prefetch(ahead + n, 0, 2);",
                "    ahead += stride;",
            ]
        lines += [f"    {line}" for line in self._multiplications(halves, below, tile)]
        lines += [f"    a += {self.k_step}; b += {self.right_slices * self.k_step * wide};", "  }"]
        lines += [*(["  }"] if tile.run else []), *(f"  tile_store({number}, {spot});" for number, spot in sums)]
        return name, "\n".join([*lines, "}"])

    def _multiplications(self, halves: int, below: int, tile: MicroTile) -> list[str]:
        """A step along k: loads of slices and multiplications."""
        left, slice_bytes = halves * self.levels, self.k_step * tile.lanes
        held: dict[int, tuple[int, ...]] = {}
        lines: list[str] = []

        def load(number: int, which: tuple[int, ...], at: str) -> None:
            if held.get(number) != which:
                held[number] = which
                lines.append(f"tile_load({number}, {at});")

        for i, j in self._order(halves):
            right = left + 1 + min(j, _TILES - left - 2)
            load(right, (j,), f"b + {j * slice_bytes}, {self.k_pack * tile.lanes}")
            for half in range(halves):
                load(left, (i, half), f"a + {i * tile.part + half * below * tile.lda}, {tile.lda}")
                lines.append(f"tile_multiply_slices({half * self.levels + i + j}, {left}, {right});")
        return lines

    def _order(self, halves: int) -> Iterator[tuple[int, int]]:
        """Pairs of slices in an order in which few are loaded twice and a level rests between two multiplications: one takes 52
        cycles, and another one begins every 16."""
        if halves == 2:  # one tile for slices of each side
            for j in range(self.right_slices):
                yield from ((i, j) for i in range(min(self.splits, self.levels - j)))
            return
        for i in range(self.splits):
            count = min(self.right_slices, self.levels - i)
            # A fourth slice comes before the third, whose tile it takes.
            yield from ((i, j) for j in _ORDERS[i % 2][count])


_TILES = 8
"""Of the unit."""
_ORDERS: tuple[dict[int, tuple[int, ...]], ...] = (
    {1: (0,), 2: (1, 0), 3: (1, 2, 0), 4: (3, 1, 0, 2)},
    {1: (0,), 2: (1, 0), 3: (2, 0, 1)},
)
"""Slices of the right side, by their number, for even and odd slices of the left side."""


def _halves(rows: int) -> tuple[int, int]:
    """Tiles one above the other for that number of rows, and the rows of each."""
    halves = 2 if rows > ROWS else 1
    return halves, -(-rows // halves)


def longest_depth(left: int, right: int, levels: int) -> int:
    """Products along k for which the sums of all levels fit into int32, for these numbers of slices of both sides."""
    pairs = np.ndindex(left, right)
    counts = np.bincount([sum(pair) for pair in pairs])[:levels]
    return LARGEST_SUM // (int(counts.max()) * LARGEST_PRODUCT)


def slices_of(integers: np.ndarray, slices: int) -> np.ndarray:
    """Balanced digits in base 256 of integers of at most `LARGEST_INTEGER`, the most significant one first: int8 [slices, ...]."""
    offset = sum(BASE**digit for digit in range(slices - 1)) * 128
    shifted = integers.astype(np.int64) + offset
    digits = [(shifted >> 8 * digit) & 255 for digit in range(slices - 1)]
    return np.stack([shifted >> 8 * (slices - 1), *(digit - 128 for digit in reversed(digits))]).astype(np.int8)


@dataclass(frozen=True)
class SlicedColumns:
    """Columns of weights as slices."""

    slices: np.ndarray
    """int8 [slices, k, n]."""
    scales: np.ndarray
    """float32 [n]: what one unit of a column's most significant slice is worth."""


def sliced_columns(weights: np.ndarray, slices: int) -> SlicedColumns:
    """Finite float32 weights [k, n]: the largest of a column becomes the largest integer."""
    peaks = np.abs(weights).max(axis=0, initial=0.0).astype(np.float64)
    factors = np.divide(LARGEST_INTEGER[slices], peaks, out=np.zeros_like(peaks), where=peaks > 0)
    scales = np.divide(BASE ** (slices - 1), factors, out=np.ones_like(peaks), where=peaks > 0)
    integers = np.rint(weights.astype(np.float64) * factors).astype(np.int64)
    return SlicedColumns(slices_of(integers, slices), scales.astype(np.float32))


def sliced_operand(isa: Isa, root: Node | None, products: SliceProducts) -> SlicedTiles | None:
    """How a product is computed from slices; None of what is no product with constant weights, is too short or too long along k, or
    has weights that slices do not suit."""
    if not products or not isinstance(root, (MatMul, Conv)) or isa.byte_dot != "tdpbusd":
        return None
    weights = root.right if isinstance(root, MatMul) else root.weight
    if not isinstance(weights, Constant) or weights.dtype != "float32" or root.dtype == "int32":
        return None
    usual = sliced_tiles(products)
    if not LEAST_DEPTH <= root.depth <= usual.longest:
        return None
    sharp = _sharp_panels(root)
    if sharp is None or products == 6 or not sharp.any():
        return None if sharp is None else usual
    sharper = replace(usual, right_slices=4)
    if root.depth > sharper.longest:
        return None
    return sharper if sharp.all() else replace(usual, mixed=True)


def sliced_tiles(products: SliceProducts) -> SlicedTiles:
    """Six products of slices, or nine."""
    left, levels = (3, 3) if products == 6 else (4, 4)
    return SlicedTiles(
        "int8",
        4,
        ROW_BYTES,
        products / 32,
        left,
        "int32_t",
        whole_rows=True,
        panel_vectors=1,
        multiply="tile_multiply_slices",
        levels=levels,
    )


_LOOKED_AT: WeakKeyDictionary[Node, np.ndarray | None] = WeakKeyDictionary()
"""Panels of products whose weights have been looked at, see `_sharp_panels`."""


def _sharp_panels(root: MatMul | Conv) -> np.ndarray | None:
    """[batch, panels]: whether a column in it is sharp. None where weights are not finite, or too near the ends of float32."""
    if root not in _LOOKED_AT:
        right = product(root, _LANES).right
        assert callable(right)
        _LOOKED_AT[root] = _find_sharp_panels(right())
    return _LOOKED_AT[root]


def _find_sharp_panels(right: np.ndarray) -> np.ndarray | None:
    batch, k, n = right.shape
    peaks = np.abs(right).max(axis=1, initial=0.0)
    scaled = (peaks == 0) | ((peaks >= _PEAKS[0]) & (peaks <= _PEAKS[1]))
    if not scaled.all():  # NaN is neither
        return None
    # The squares of float32 in float64, without a copy of all weights.
    squares = np.einsum("bkn,bkn->bn", right, right, dtype=np.float64) / k
    sharp = np.zeros((batch, -(-n // _LANES) * _LANES), bool)
    sharp[:, :n] = peaks.astype(np.float64) ** 2 > SHARP**2 * squares
    return np.asarray(sharp.reshape(batch, -1, _LANES).any(axis=2))
