"""The heart of every matrix product: a tile of rows times a panel of two vectors, which stays in registers for all of k.

The right side is cut into panels, one after another in memory. How operands are stored and multiplied is a `ProductOperand`:
float32 one by one and bfloat16 in pairs of neighbours along k (`Vectors`), or bfloat16 by a matrix unit (`matrix_unit.Tiles`);
bytes in fours, by either (`byte_products`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from bricolage.native.c import read_header
from bricolage.native.cpu.implicit_gemm import Product
from bricolage.native.cpu.isa import Isa
from bricolage.native.ir.tensors import STORED_BYTES, STORED_TYPES

_NAMES = {1: "product", 2: "pairs", 4: "fours"}
START_BYTES = 64
"""Panels of two formats begin at multiples of this."""
_CHAINS = 8
"""Sums that are under way at a time: a multiply-add takes four or five cycles, of which two begin in each."""
_MOST_SUMS = 12
"""Vectors of sums, of 16 registers; others hold what is multiplied."""


@dataclass(frozen=True)
class MicroTile:
    """What a micro-kernel computes: `rows` rows that lie `lda` apart times a panel of `vectors` vectors of `lanes`."""

    rows: int
    vectors: int
    lda: int
    lanes: int
    part: int = 0
    """Elements from one part of a packed row to the next; an operand in vectors has one part."""
    prefetch: bool = False
    """It has two more parameters, an address and `stride`, and brings what lies there into the second-level cache, `stride` bytes
    for each step of its own."""
    adds: bool = False
    """A last parameter says whether the tile starts from zero; otherwise the products are added to it."""
    unroll: int = 1
    """Steps that are written out where the operand is in vectors."""
    sets: int = 1
    """Sums of an element that are under way, to which steps are added in turn. See `ProductOperand.sets`."""
    run: int = 0
    """Where the operand is in tiles: steps after which the rows go on elsewhere. The micro-kernel then counts runs, not steps, and
    a last parameter gives how many elements from `a` on each of them begins. 0: rows lie in one piece."""


@dataclass(frozen=True)
class ProductOperand(ABC):
    """How the operands of a product are stored and multiplied."""

    dtype: str
    k_pack: int
    """Neighbours along k that lie side by side in a panel."""
    k_step: int
    """Products along k that one step of the micro-kernel sums, a multiple of `k_pack`."""
    cost: float
    """Time of a product, that of a float32 being 1."""
    splits: int = 1
    """Numbers of `dtype` whose sum represents an element."""
    sums: str = "float"
    """C type of the sums in a tile."""
    sum_vector: str = "vec"
    """C type of a vector of them."""
    ordered: bool = False
    """Whether the steps of a panel have an order of its own: a micro-kernel has one more parameter for that, see `orders`."""
    scaled: bool = False
    """Whether rows and columns hold integers with scales, which lie behind them, see `byte_products`."""
    shifted: bool = False
    """Whether bytes of rows are shifted as they are read: what that takes off all of a panel's steps is where its sums start."""
    whole_rows: bool = False
    """Whether rows are packed by a function that is given all of a row (`pack_row`)."""
    panel_vectors: int = 2
    """Vectors of a panel; of the last one perhaps fewer."""
    row_group: int = 1
    """Packed rows that lie together: `k_pack` elements of each in turn. Tiles then begin at multiples of this."""

    @property
    def in_tiles(self) -> bool:
        """Whether a matrix unit multiplies: all tiles of a product then have one number of rows."""
        return False

    @property
    def element(self) -> str:
        """C type of an element."""
        return STORED_TYPES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of an element, of one part."""
        return STORED_BYTES[self.dtype]

    def sets(self, _row_counts: Collection[int], _vectors: int) -> int:
        """Sums of an element that are under way in each tile of a product, given rows of its tiles and vectors of its widest panel.
        All tiles have as many, so that equal rows and columns have the same bits wherever they lie."""
        return 1

    def turn(self, sets: int) -> int:
        """Steps after which the order of sums begins anew: leaving out that number of steps, if all are zeros, changes no bit."""
        return sets

    def steps(self, k: int) -> int:
        """Steps of the micro-kernel for `k` products; what is missing from the last one is zeros."""
        return -(-k // self.k_step)

    def depth(self, k: int) -> int:
        """Elements along k that are multiplied, of all parts."""
        return self.steps(k) * self.k_step * self.splits

    def row(self, k: int) -> int:
        """Elements of a packed row of `k` numbers: its parts, one after another, each filled up with zeros, and what lies behind
        them."""
        return self.depth(k)

    def pitch(self, k: int) -> int:
        """Elements from one packed row to the next."""
        return self.row(k)

    def row_at(self, row: str, lda: int) -> str:
        """C of how far packed row `row` begins behind the first one of a tile, in elements."""
        group = self.row_group
        return (
            f"{row} * {lda}" if group == 1 else f"({row} / {group} * {group * lda} + {row} % {group} * {self.k_pack})"
        )

    @property
    def row_step(self) -> int:
        """Elements of a packed row that a step of the micro-kernel reads."""
        return self.k_step

    @property
    def right_splits(self) -> int:
        """Numbers that represent an element of the right side."""
        return self.splits

    def column(self, k: int) -> int:
        """Elements of a column of a panel, and of what lies behind it."""
        return self.row(k)

    @property
    def formats(self) -> tuple[ProductOperand, ...]:
        """What panels are: all alike, or each one of two, which `panel_starts` tells."""
        return (self,)

    @property
    def uneven(self) -> bool:
        """Whether panels are of two formats."""
        return len(self.formats) > 1

    def panel_starts(self, _p: Product, _lanes: int) -> np.ndarray:
        """[batch, panels] int32 of an operand with two formats: where a panel begins, in units of `START_BYTES`, times two, and one
        more where it is of the second format."""
        raise NotImplementedError(f"{type(self).__name__} has panels of one format")

    @property
    def planes(self) -> int:
        """Sums of an element of the result, each of which has a tile of its own."""
        return 1

    def declare_column_scales(self, _k: int, _padded: int) -> list[str]:
        """C that declares what `sum_of` reads of the columns of a panel of that width: it lies behind `columns`."""
        return []

    def declare_row_scale(self, _row: str, _k: int) -> list[str]:
        """C that declares what `sum_of` reads of a packed row, given where that begins."""
        return []

    def sum_of(self, at: str, _plane: int) -> str:
        """C of an element of the result, given where its sum is in `tile`; planes lie `plane` sums apart."""
        return f"tile[{at}]"

    @abstractmethod
    def rows(self, isa: Isa) -> int:
        """Rows of the largest tile."""

    @abstractmethod
    def preamble(self, isa: Isa) -> Sequence[str]:
        """C that a file needs which multiplies such operands; it comes first."""

    @abstractmethod
    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """Name and C of a function `(steps, a, b, tile)`, with more parameters where the tile asks for them."""

    def helpers(self, _isa: Isa) -> dict[str, str]:
        """C by name that the functions of a product need."""
        return {}

    def pack_row(self, x: str, to: str, k: int, part: int, peak: str = "") -> str:
        """C that packs `k` float32 numbers, where rows are packed as a whole; with a `peak` of more rows than this one, their scale
        is one."""
        raise NotImplementedError(f"{type(self).__name__} has its rows packed number by number")

    def spread_row(self, x: str, to: str, k: int, part: int) -> str:
        """C that packs a row of `k` operands, where rows lie together; up to `part` follow zeros."""
        raise NotImplementedError(f"each row of {type(self).__name__} lies by itself")

    def row_peak(self, _x: str, _k: int) -> str:
        """C of the peak of `k` float32 numbers, an uint32_t that is larger where the peak is."""
        raise NotImplementedError(f"the rows of {type(self).__name__} have no peaks")

    def with_tile_config(self, _rows: int, lines: list[str]) -> list[str]:
        """`lines` between what must precede and follow a thread's calls of micro-kernels for that number of rows."""
        return lines

    def panels_of(self, p: Product, lanes: int) -> np.ndarray:
        """The constant right side of a product as `panels`."""
        assert callable(p.right)
        return self.panels(p.right(), lanes)

    def panels(self, right: np.ndarray, lanes: int) -> np.ndarray:
        """[batch, k, n] float32 as panels of two vectors, one after another, the last one of one or two.

        A panel holds, step by step and part by part, rows of `k_pack` neighbours along k, alternating.
        """
        batch, k, n = right.shape
        if self.dtype == "float32":
            return cut_panels(right, lanes)
        depth = self.steps(k) * self.k_step
        rest = right
        bf16_parts = np.zeros((batch, self.splits, depth, n), ml_dtypes.bfloat16)
        for part in range(self.splits):
            bf16_parts[:, part, :k] = rest
            rest = rest - bf16_parts[:, part, :k].astype(np.float32)
        apart = bf16_parts.view(np.uint16).reshape(batch, self.splits, -1, self.k_step // self.k_pack, self.k_pack, n)
        return cut_panels(apart.transpose(0, 2, 1, 3, 5, 4).reshape(batch, -1, self.k_pack * n), self.k_pack * lanes)

    def orders(self, right: np.ndarray, lanes: int) -> np.ndarray:
        """Of an operand that is ordered, for each batch and panel what the micro-kernel must know of its steps, int32."""
        raise NotImplementedError(f"{type(self).__name__} takes steps as they come")


@dataclass(frozen=True)
class Vectors(ProductOperand):
    """Operands in vectors: `k_pack` elements of the left side again and again, times a vector of the right side."""

    vector: str = ""
    """C type of a vector of operands."""
    broadcast: str = ""
    """C of a vector that holds `k_pack` elements of `a` again and again; {0} is where they are."""
    load: str = ""
    """C of a vector of `b`; {0} is where it is."""
    multiply: str = ""
    """C that adds to the vector {0} the products of {1} and {2}."""
    chains: int = _CHAINS
    """Sums that are under way at a time, where `most_sums` allows it. With 1 a row has the same bits however many there are."""
    most_sums: int = _MOST_SUMS
    """Vectors of sums that registers hold, where a row has several."""
    attributes: tuple[str, ...] = ()
    """More attributes of micro-kernels, in C."""

    @property
    def name(self) -> str:
        """Of micro-kernels."""
        return _NAMES[self.k_pack]

    def rows(self, isa: Isa) -> int:
        """As many as the instruction set has registers for."""
        return isa.rows

    def sets(self, row_counts: Collection[int], vectors: int) -> int:
        """See `ProductOperand.sets`: as many as the smallest tile needs, and the largest has registers for."""
        fewest, most = min(row_counts) * vectors, max(row_counts) * vectors
        return max(1, min(-(-self.chains // fewest), self.most_sums // most))

    def preamble(self, _isa: Isa) -> Sequence[str]:
        """Vectors of bfloat16 in memory, if there are any."""
        return (NARROW,) if self.dtype == "bfloat16" else ()

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`: each row has its sums in registers for all of k, so that it never `adds`."""
        assert not tile.adds, "vectors keep a tile in registers for all of k"
        rows, vectors, lda, lanes, prefetch = tile.rows, tile.vectors, tile.lda, tile.lanes, tile.prefetch
        unroll, sets = tile.unroll, tile.sets
        name = f"{self.name}_{rows}x{vectors}_{lda}{'_ahead' if prefetch else ''}"
        name += f"_in{sets}" if sets > 1 else f"_by{unroll}" if unroll > 1 else ""
        kind = self.element
        more = ", const char *ahead, long stride" if prefetch else ""
        lines = [
            # noipa: GCC 12 takes the tile for unwritten where it looks into this function from its caller (-fipa-modref).
            f"static __attribute__(({', '.join(['noinline', 'noipa', *self.attributes])})) void {name}"
            f"(long depth, const {kind} *a, const {kind} *b, {self.sums} *tile{more}) {{"
        ]
        lines += [
            f"  {self.sum_vector} {', '.join(f'c{s}_{r}_{v} = {{0}}' for r in range(rows) for v in range(vectors))};"
            for s in range(sets)
        ]
        if sets > 1:
            lines += ["  long k = 0;", f"  for (; k + {sets} <= depth; k += {sets}) {{"]
            for s in range(sets):
                lines += self._step(s, rows, vectors, lda, lanes, prefetch)
            lines += ["  }", "  for (; k < depth; k++) {", *self._step(0, rows, vectors, lda, lanes, prefetch), "  }"]
        else:
            lines += [f"#pragma GCC unroll {unroll}"] if unroll > 1 else []
            lines += [
                "  for (long k = 0; k < depth; k++) {",
                *self._step(0, rows, vectors, lda, lanes, prefetch),
                "  }",
            ]
        lines += [
            f"  *({self.sum_vector} *)(tile + {(r * vectors + v) * lanes}) = {' + '.join(f'c{s}_{r}_{v}' for s in range(sets))};"
            for r in range(rows)
            for v in range(vectors)
        ]
        return name, "\n".join([*lines, "}"])

    def _step(self, s: int, rows: int, vectors: int, lda: int, lanes: int, prefetch: bool) -> list[str]:
        """One step along k, added to the sums of set `s`."""
        wide = lanes * self.k_pack
        lines = ["    { __builtin_prefetch(ahead, 0, 2); ahead += stride;" if prefetch else "    {"]
        lines += [f"      const {self.vector} b{v} = {self.load.format(v * wide)};" for v in range(vectors)]
        for r in range(rows):
            lines += [f"      {{ const {self.vector} x = {self.broadcast.format(r * lda)};"]
            lines += [f"        {self.multiply.format(f'c{s}_{r}_{v}', 'x', f'b{v}')}" for v in range(vectors)]
            lines += ["      }"]
        return [*lines, f"      a += {self.k_pack}; b += {vectors * wide};", "    }"]


NARROW = read_header("narrow")
"""Vectors of bfloat16 in memory, where there are products of them. What is subnormal becomes zero, as the instruction has it."""

SPLIT_NARROW = read_header("split_narrow")
"""The same where vectors of 512 bits are split: to the nearest, ties to even; subnormals become zero, as the instruction has it."""

SINGLES = Vectors(
    "float32",
    1,
    1,
    1.0,
    vector="vec",
    broadcast="a[{0}] - (vec){{0}}",
    load="*(const vec *)(b + {0})",
    multiply="{0} += {1} * {2};",
)
PAIRS = Vectors(
    "bfloat16",
    2,
    2,
    0.5,
    vector="__m512bh",
    broadcast="(__m512bh)_mm512_set1_epi32(*(const int *)(a + {0}))",
    load="(__m512bh)_mm512_loadu_si512(b + {0})",
    multiply="{0} = (vec)_mm512_dpbf16_ps((__m512){0}, {1}, {2});",
)
"""For vectors of 512 bits."""


def cut_panels(right: np.ndarray, lanes: int) -> np.ndarray:
    """[batch, rows, columns] as panels of `2 * lanes` columns; a last one of up to `lanes` is half as wide."""
    batch, k, n = right.shape
    wide = 2 * lanes
    full = n // wide
    parts = [right[:, :, : full * wide].reshape(batch, k, full, wide).transpose(0, 2, 1, 3).reshape(batch, -1)]
    rest = n - full * wide
    if rest:
        padded = lanes if rest <= lanes else wide
        last = np.zeros((batch, k, padded), right.dtype)
        last[:, :, :rest] = right[:, :, full * wide :]
        parts.append(last.reshape(batch, -1))
    return np.ascontiguousarray(np.concatenate(parts, axis=1))
