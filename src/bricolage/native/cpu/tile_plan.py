"""How a product is cut up into tiles: all that its code goes by, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.native.cpu.block_format import BlockOperand
from bricolage.native.cpu.gemm_blocks import (
    BYTES_IN_FOURS,
    FEW_TILES,
    UNPACKED_BYTES,
    ComputedRows,
    GemmBlocks,
    TileSharing,
)
from bricolage.native.cpu.implicit_gemm import Product, product
from bricolage.native.cpu.kernel_choice import MOST_BYTES, GemmConfig
from bricolage.native.cpu.matrix_unit import Tiles
from bricolage.native.cpu.packing import Packing, constant_identity
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.windowed_conv import Windows, windows
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.fuse.slice_pairs import FEW_ROWS
from bricolage.native.ir.tensors import Conv, MatMul

_STREAM_ROWS = 2
"""Of a product that multiplies no longer than it reads: a processor fetches one stream from its last-level cache by itself. Steps
of recurrences of 256 to 512 units took 4 to 12 % longer with instructions that fetch (AMD EPYC Zen 3)."""


@dataclass(frozen=True)
class TilePlan:
    """One product, how it is cut up, and what threads share of it."""

    kernel: PlannedKernel
    plan: FusionPlan
    target: CpuTarget
    p: Product
    operand: ProductOperand
    packing: Packing
    by_columns: bool
    """Whether threads share columns: each then reads its own weights only."""
    made: ComputedRows | None
    """Rows that are made where the product needs them."""
    windows: Windows | None
    """Where rows are pixels of images, which lie once in memory for all taps."""
    left: Packing
    """Of the rows."""
    m: int
    mr: int
    """Rows of a tile at most."""
    tiles: int
    """Of a batch."""
    tile_rows: int
    """Rows of the largest tile: all that there are, shared evenly."""
    sharing: TileSharing
    mc_bytes: int
    """Of packed rows that are multiplied before the next are packed."""
    mc_rows: int
    """Rows that are multiplied with all panels, before the next ones are, at most."""
    k_blocks: int
    """That k is cut into."""
    unpacked: int
    """Bytes of a step of a panel that is made ready for all rows first; 0 where it is read as it lies."""
    prefetch: bool
    """Whether the next panel is fetched while one is multiplied."""
    unroll: int
    """Steps along k that the micro-kernel writes out."""
    repeats_large: bool
    """Whether a thread's weights fill more than three quarters of its cache, if they are read again for the next step."""

    def first_row(self, tile: str) -> str:
        """C of the first row of a tile, given its number in C; of the number of tiles, that of all rows."""
        group = self.operand.row_group
        if group == 1:
            return f"{self.m}L * {tile} / {self.tiles}"
        start = f"{-(-self.m // group)}L * ({tile}) / {self.tiles} * {group}"
        return start if self.m % group == 0 else f"({start} < {self.m} ? {start} : {self.m})"

    @property
    def first_rows(self) -> tuple[int, ...]:
        """Those of all tiles, and the number of all rows."""
        group = self.operand.row_group
        groups = -(-self.m // group)
        return tuple(min(self.m, groups * tile // self.tiles * group) for tile in range(self.tiles + 1))

    @property
    def row_counts(self) -> set[int]:
        """Rows of tiles; a last group may be short of some, which are computed and not stored."""
        group = self.operand.row_group
        return (
            {self.tile_rows}
            if self.operand.in_tiles
            else {-(-self.m // group) // self.tiles * group, self.tile_rows} - {0}
        )

    @property
    def sets(self) -> int:
        """Sums of an element that are under way in each tile."""
        return self.operand.sets(self.row_counts, max(self.packing.vectors, default=1))

    @property
    def in_pieces(self) -> bool:
        """Whether sums are in memory between pieces of k."""
        return self.k_blocks > 1 or self.unpacked > 0

    @property
    def pieces(self) -> int:
        """What a micro-kernel counts along k: steps, or taps."""
        return len(self.windows.taps) if self.windows else self.packing.steps


def plan_tile(
    kernel: PlannedKernel,
    plan: FusionPlan,
    target: CpuTarget,
    operand: ProductOperand,
    config: GemmConfig,
    made: ComputedRows | None = None,
) -> TilePlan:
    """The plan of a matrix product or convolution: what `config` leaves open, rules of thumb decide."""
    root = kernel.root
    assert isinstance(root, (MatMul, Conv))
    p = product(root, target.lanes)
    packing = Packing(plan, target.isa, p, operand, bool(config.pack))
    by_columns = _is_shared_by_columns(packing, target, config)
    conv_windows = None if by_columns or made or config.pack is not None else windows(root, p, operand)
    m = conv_windows.m if conv_windows else p.m
    mr, group = _most_rows(operand, target, config, m), operand.row_group
    tiles = -(-m // mr)
    blocks, unit = GemmBlocks(target.l2_bytes), isinstance(operand, Tiles)
    of_bytes = unit and operand.k_pack == BYTES_IN_FOURS
    panel, windowed = packing.column * packing.wide * packing.bytes, conv_windows is not None
    levels = operand.planes > 1
    piece = blocks.piece(panel, in_windows=windowed, in_levels=levels) if of_bytes and tiles > 1 else MOST_BYTES
    k_blocks = -(-panel // (config.kc_bytes or piece)) if unit else 1
    unpacked = operand.unpacked_bytes(packing.wide) if isinstance(operand, BlockOperand) and m > FEW_ROWS else 0
    k_blocks = max(k_blocks, packing.steps * unpacked // UNPACKED_BYTES)
    usual = blocks.made_rows if made else blocks.unit_rows if unit else blocks.rows
    right_bytes = packing.column * packing.bytes * p.n
    limited = of_bytes and config.mc_bytes is None and not windowed
    waits = (of_bytes and tiles > 1) or not unit
    streamed = right_bytes > blocks.streamed and tiles <= FEW_TILES * target.threads and waits
    if streamed and callable(p.right) and m <= _STREAM_ROWS and right_bytes <= (target.caches.l3_bytes or 0) // 4:
        streamed = plan.products_of_weights[constant_identity(root)] == 1
    fetches = callable(p.right) and not isinstance(operand, BlockOperand)  # whose micro-kernels do
    return TilePlan(
        kernel,
        plan,
        target,
        p,
        operand,
        packing,
        by_columns,
        made=made,
        windows=conv_windows,
        left=_pack_images(plan, target, conv_windows, operand) if conv_windows else packing,
        m=m,
        mr=mr,
        tiles=tiles,
        tile_rows=-(-m // (group * tiles)) * group,
        sharing=TileSharing(p.batch, tiles, target.threads, m * packing.depth * p.n),
        mc_bytes=config.mc_bytes or usual,
        mc_rows=blocks.byte_rows(right_bytes, mr, packed=packing.direct is None) if limited else m,
        unpacked=unpacked,
        k_blocks=min(k_blocks, len(conv_windows.taps) if conv_windows else packing.steps),
        prefetch=fetches and (streamed if config.prefetch is None else config.prefetch),
        unroll=config.unroll or 1,
        repeats_large=tiles == 1 and right_bytes * 4 > target.threads * target.l2_bytes * 3,
    )


def _most_rows(operand: ProductOperand, target: CpuTarget, config: GemmConfig, m: int) -> int:
    """Rows of a tile: whole groups of those that lie together."""
    registers, group = operand.rows(target.isa), operand.row_group
    if isinstance(operand, BlockOperand) and m <= FEW_ROWS:
        registers = operand.few_rows(target.isa)
    rows = registers if operand.in_tiles else min(config.rows or registers, registers)
    return max(rows // group * group, group)


def _pack_images(plan: FusionPlan, target: CpuTarget, conv_windows: Windows, operand: ProductOperand) -> Packing:
    """Pixels that several windows read: where rows are packed as a whole, one scale is that of an image."""
    peak = f"image_peaks[m / {conv_windows.area}]" if operand.whole_rows else ""
    return Packing(plan, target.isa, conv_windows.images, operand, packs=True, peak=peak)


def _is_shared_by_columns(packing: Packing, target: CpuTarget, config: GemmConfig) -> bool:
    """Whether threads share columns of constants: where there are more of them than rows, or a matrix unit reads less so."""
    p = packing.p
    many = packing.reads_less_by_columns(target) if packing.operand.in_tiles else p.n > p.m
    many = many and len(packing.columns) >= 2 * target.threads
    wanted = many if config.parallel is None else config.parallel == "n"
    return callable(p.right) and p.batch == 1 and wanted
