"""In which arithmetic products are computed: the number format of their operands, and whether by Winograd's transformation."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.backends.native.cpu.isa import Isa
from bricolage.backends.native.cpu.matrix_unit import tiles
from bricolage.backends.native.cpu.panels import PAIRS, SINGLES, ProductOperand
from bricolage.backends.native.fuse.plan import StorageDtypePolicy


@dataclass(frozen=True)
class Arithmetic:
    """How matrix products and convolutions are computed."""

    tile: int = 0
    """3×3 convolutions may be done by Winograd's transformation with tiles of up to this number of outputs a side."""
    parts: int = 0
    """Operands are float32 (0), rounded to bfloat16 (1), or sums of two or three bfloat16; sums are float32."""
    stores: StorageDtypePolicy = "nothing"
    """What is stored in bfloat16."""

    def operand(self, isa: Isa) -> ProductOperand:
        """How the operands of products are stored and multiplied. More than one part takes a matrix unit."""
        if not self.parts:
            return SINGLES
        return tiles(self.parts) if isa.matrix_unit else PAIRS

    def flags(self, isa: Isa) -> tuple[str, ...]:
        """What the compiler must be told for these instructions."""
        return (*isa.flags, *isa.bfloat16_flags) if self.parts else isa.flags


FLOAT32 = Arithmetic()
