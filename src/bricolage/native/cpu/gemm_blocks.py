"""Blocks of a matrix product: how many bytes and rows are packed and multiplied at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bricolage.native.cpu.emit import indent_lines
from bricolage.native.cpu.implicit_gemm import Product
from bricolage.native.cpu.kernel_choice import MOST_BYTES
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.fuse.kernel_plan import Buffer

FEW_TILES = 64
"""Tiles of a thread up to which waiting for a panel shows (3 % of ResNet-50)."""
CHEAP_PANEL_TILES = 24
"""Tiles for which reading a panel costs next to nothing, compared with multiplying by it."""
MOST_STEPS_LEFT = 0.98
"""Of the steps of all tiles, how many are left at most where tiles leave out what falls into the padding: a table says which."""
PACKING_COST = 8
"""Multiply-adds that take as long as packing an element."""
PANEL_BYTES = 32 * 1024
"""Of a panel, what fits into the first-level cache of every processor that has a matrix unit: this much is read before the next
rows where k is cut."""
UNPACKED_BYTES = PANEL_BYTES // 2
"""Of a panel whose integers are made float32 for all rows: half of a first-level cache of 32 KiB, the other half is for rows and
sums."""
BYTES_IN_FOURS = 4
"""Neighbours along k of products of bytes."""
_BYTE_ROWS = 256
"""Rows of a product of bytes by a matrix unit that are multiplied with all panels before the next, where these stay near."""
_PIECE = PANEL_BYTES * 3 // 4
_LEVELLED_PANEL_BYTES = PANEL_BYTES * 5 // 4
"""Of a panel of slices of 8 bits, 768 along k and a little more."""
_UNIT_L2_BYTES = 2 << 20
"""The second-level cache of processors that have a matrix unit, at least; for the emulated one it is taken for granted."""


@dataclass(frozen=True)
class GemmBlocks:
    """The rules of thumb by which a product is cut up, as parts of a second-level cache. Found on an AMD EPYC Zen 5 with 1 MiB."""

    l2_bytes: int

    @property
    def streamed(self) -> int:
        """Weights from this size on are fetched ahead: those of a whole network do not stay in that cache."""
        return self.l2_bytes // 16

    @property
    def rows(self) -> int:
        """Packed rows that are multiplied before the next are packed."""
        return self.l2_bytes * 3 // 16

    @property
    def made_rows(self) -> int:
        """The same for rows that are made here: less, since what they are made of lies in that cache, too."""
        return self.l2_bytes * 3 // 32

    @property
    def unit_rows(self) -> int:
        """The same for a matrix unit, which needs its panel for more rows."""
        return max(self.l2_bytes, _UNIT_L2_BYTES) * 5 // 8

    def byte_rows(self, right_bytes: int, tile_rows: int, *, packed: bool) -> int:
        """Rows of a product of bytes by a matrix unit that are multiplied with all panels before the next ones are. A panel stores
        half a cache line of each row of the result: few rows at a time keep the others, and the residual stream that is added, in
        the first-level cache until the next panel. Where panels are large, more rows must share what is read of them."""
        if right_bytes <= (PANEL_BYTES if packed else self.streamed):
            return tile_rows
        return _BYTE_ROWS if right_bytes <= max(self.l2_bytes, _UNIT_L2_BYTES) // 4 else MOST_BYTES

    def piece(self, panel: int, *, in_windows: bool, in_levels: bool) -> int:
        """Bytes that are read of such a panel before the next rows. A panel is cut where it leaves no room for rows in the
        first-level cache, since the second-level cache brings what a tile reads no faster than that is multiplied. Windows
        take less room than rows: layers of ResNet-50 with 256 channels took 66 µs cut and 83 whole, those with 128 channels, whose
        panels have 36 KiB, 70 and 62. Sums in levels, which are four times as many, leave a panel whole a little longer."""
        least = PANEL_BYTES * 2 if in_windows else _LEVELLED_PANEL_BYTES if in_levels else PANEL_BYTES
        return _PIECE if panel >= least else MOST_BYTES

    @property
    def sums(self) -> int:
        """Sums of a block of rows in memory, where k is cut into pieces."""
        return self.l2_bytes // 8


def block_sizes(l2_bytes: int, *, matrix_unit: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that a block of rows (MC) and of depth (KC) may take instead of the rules of thumb: half, twice and four times
    as many rows; with a matrix unit half and twice the rows, and for the depth, which is not cut, half and twice what of a panel
    fits into a first-level cache."""
    blocks = GemmBlocks(l2_bytes)
    if matrix_unit:
        return (blocks.unit_rows // 2, blocks.unit_rows * 2), (PANEL_BYTES // 2, PANEL_BYTES * 2, MOST_BYTES)
    return (blocks.rows // 2, blocks.rows * 2, blocks.rows * 4), ()


@dataclass(frozen=True)
class ComputedRows:
    """Rows of A that are made where a product needs them, a block at a time."""

    buffer: Buffer
    """Where they lie as a whole: a pointer to it is declared for each block."""
    pitch: int
    """Elements from one row to the next."""
    around: int
    """Rows before and behind a block that may be made as well."""
    lines: list[str]
    """Statements that make rows `start` to `stop`."""


@dataclass(frozen=True)
class TileRows:
    """The tiles from `first` to `last`. Their rows in `left` lie `lda` apart; its first is row `origin`."""

    first: str
    last: str
    left: str
    lda: int
    origin: str

    @property
    def address(self) -> str:
        """C of where row `row` begins."""
        offset = f"(row - {self.origin})" if self.origin != "0" else "row"
        return f"{self.left} + {offset} * {self.lda}"

    @property
    def loop(self) -> str:
        """The head of a loop over the tiles."""
        return f"for (long t = {self.first}; t < {self.last}; t++) {{"

    def fetch(self, step_bytes: int, behind: str, steps: str) -> list[str]:
        """Declares what each of a number of steps brings near of what is `behind` in memory: all tiles fetch it together."""
        count = f"({self.last} - {self.first})"
        return [
            f"const long stride = ({step_bytes} + {self.last} - {self.first} - 1) / {count};",
            f"const char *ahead = (const char *)({behind}) + (t - {self.first}) * stride * {steps};",
        ]


def own_steps(p: Product, first_rows: Sequence[int], steps: int, step: int, turn: int) -> list[tuple[int, int]]:
    """Each tile's first of all `steps` of `step` products and their number, without those that meet padding alone; empty where that
    spares next to nothing. `first_rows` are those of the tiles, and behind the last one. Left out are multiples of `turn` steps."""
    if p.inside is None:
        return []
    table: list[tuple[int, int]] = []
    for start, stop in pairwise(first_rows):
        k_range = p.inside(start, stop)
        since = k_range.start // (step * turn) * turn
        until = min(steps, -(-k_range.stop // (step * turn)) * turn)
        table.append((since, max(1, until - since)))
    return table if sum(count for _, count in table) <= MOST_STEPS_LEFT * steps * len(table) else []


@dataclass(frozen=True)
class TileSharing:
    """How threads share the batches and tiles of a product."""

    batches: int
    tiles: int
    """Of a batch."""
    threads: int
    products: int
    """Multiply-adds of a batch."""

    @property
    def by_batches(self) -> bool:
        """Whether threads share batches, or the tiles of each, where there are fewer batches than threads."""
        return self.batches >= self.threads and self.batches > 1

    def range(self, block: int) -> ParallelRange:
        """What threads share. Of each batch, `block` tiles are done together."""
        if self.by_batches:
            return ParallelRange(self.batches, self.products)
        return ParallelRange(self.tiles, self.batches * self.products // self.tiles, block)

    def over_batches(self, packing: list[str], work: list[str]) -> list[str]:
        """Goes through the batches from `begin` to `end`, or those tiles of each: the tiles from `low` to `high`."""
        if self.by_batches:
            head = "for (long b = begin; b < end; b++) {"
            bounds = f"const long low = 0, high = {self.tiles};"
        else:
            head = f"for (long b = 0; b < {self.batches}; b++) {{"
            bounds = "const long low = begin, high = end;"
        return [head, *indent_lines([*packing, bounds, *work]), "}"]
