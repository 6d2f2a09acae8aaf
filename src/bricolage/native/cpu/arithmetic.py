"""In which arithmetic products are computed: the number format of their operands, and whether by Winograd's transformation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bricolage.native.cpu.block_products import block_operand, multiplies_blocks
from bricolage.native.cpu.block_tiles import block_tiles
from bricolage.native.cpu.by_lane import SINGLES_BY_LANE
from bricolage.native.cpu.by_pair import BFLOAT16_PAIRS
from bricolage.native.cpu.byte_products import LONGEST, byte_operand, given_bytes
from bricolage.native.cpu.int8_slices import SliceProducts, sliced_operand, sliced_tiles
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.matrix_unit import tiles
from bricolage.native.cpu.panels import PAIRS, SINGLES, ProductOperand
from bricolage.native.fuse.kernel_plan import StorageDtypePolicy
from bricolage.native.ir.tensors import Constant, Conv, MatMul, Node


@dataclass(frozen=True)
class Arithmetic:
    """How matrix products and convolutions are computed."""

    tile: int = 0
    """3×3 convolutions may be done by Winograd's transformation with tiles of up to this number of outputs a side."""
    parts: int = 0
    """Operands are float32 (0), rounded to bfloat16 (1), or sums of two or three bfloat16; sums are float32."""
    stores: StorageDtypePolicy = "nothing"
    """What is stored in bfloat16."""
    in_bytes: bool = False
    """Whether products with constant weights multiply bytes (`byte_products`); all others are as the other fields say."""
    slice_products: SliceProducts = 0
    """Products of slices of 8 bits that make one of float32, where weights are constant (`int8_slices`); all others are as the
    other fields say."""
    alike: bool = False
    """Whether a row has the same bits however many rows are multiplied with it: what language models are run in."""

    def operand_of(self, isa: Isa, root: Node | None) -> ProductOperand:
        """How the operands of the product `root` are stored and multiplied: those of bytes that a graph gives always as such."""
        if isinstance(root, (MatMul, Conv)) and root.dtype == "int32":
            return given_bytes(isa, root)
        right = multiplies_blocks(root)
        if right is not None:
            in_bytes = self.in_bytes or right.in_bytes
            assert root is not None
            # A matrix unit's tiles sum the blocks of many rows in another order than vectors those of a few.
            tiled = in_bytes and not self.alike
            many = block_tiles(isa, right.blocks, root.shape[-2]) if tiled else None
            return many or block_operand(isa, right.blocks, in_bytes=in_bytes)
        if self.in_bytes and multiplies_bytes(root):
            return byte_operand(isa)
        return sliced_operand(isa, root, self.slice_products) or self.operand(isa)

    def operands(self, isa: Isa) -> tuple[ProductOperand, ...]:
        """All that products may have."""
        if self.slice_products:
            return (self.operand(isa), sliced_tiles(self.slice_products))
        return (self.operand(isa), byte_operand(isa)) if self.in_bytes else (self.operand(isa),)

    def operand(self, isa: Isa) -> ProductOperand:
        """How the operands of products are stored and multiplied. More than one part takes a matrix unit."""
        if not self.parts:
            operand = SINGLES_BY_LANE if isa.by_lane else SINGLES
            return replace(operand, chains=1) if self.alike else operand
        if isa.matrix_unit:
            return tiles(self.parts)
        return BFLOAT16_PAIRS if isa.by_lane else PAIRS

    def flags(self, isa: Isa, *, of_bytes: bool = False) -> tuple[str, ...]:
        """What the compiler must be told for these instructions, and for products of given bytes where there are any: older ones
        do not know all of them."""
        bfloat16 = isa.bfloat16_flags if self.parts else ()
        of_bytes = of_bytes or self.in_bytes or bool(self.slice_products)
        return tuple(dict.fromkeys((*isa.flags, *bfloat16, *(isa.byte_flags if of_bytes else ()))))


def multiplies_bytes(root: Node | None) -> bool:
    """Whether a product may be one of bytes: its weights are constant float32, and so few along k that int32 holds every sum."""
    weights = root.right if isinstance(root, MatMul) else root.weight if isinstance(root, Conv) else None
    if not isinstance(weights, Constant) or weights.dtype != "float32":
        return False
    assert isinstance(root, (MatMul, Conv))
    return 0 < root.depth <= LONGEST


FLOAT32 = Arithmetic()
