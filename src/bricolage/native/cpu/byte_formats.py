"""How bytes of both sides of a product lie in memory (`byte_products`)."""

from __future__ import annotations

import numpy as np

from bricolage.lowering.byte_columns import QuantisedColumns, quantised_columns
from bricolage.native.cpu.panels import ProductOperand

SCALE_BYTES = 8
"""Of a scale in float32 and an int32, behind a row or for each column of a panel."""


class BytesInFours(ProductOperand):
    """What operands of bytes have in common, in vectors or in tiles."""

    def row(self, k: int) -> int:
        """The bytes of a row; a scale and a zero point, where it was made of numbers."""
        return self.depth(k) + (SCALE_BYTES if self.scaled else 0)

    def column(self, k: int) -> int:
        """Bytes; behind them a scale and the sum of the integers, or what a row that is shifted lacks."""
        return self.row(k) + (4 if self.shifted else 0)

    def panels(self, right: np.ndarray, lanes: int) -> np.ndarray:
        """[batch, k, n] as panels of two vectors, one after another, the last one of one or two: rows of four neighbours along k
        for each column; of float32 then the scales of all columns, then the sums of their integers."""
        batch, k, n = right.shape
        if self.scaled:
            quantised = quantised_columns(right, pair_safe=self.pairs_saturate)
        else:
            quantised = QuantisedColumns(right, np.ones((batch, n), np.float32))
        padded = [2 * lanes] * (n // (2 * lanes))
        rest = n - sum(padded)
        padded += [lanes if rest <= lanes else 2 * lanes] if rest else []
        wide, depth = sum(padded), self.depth(k)
        integers = np.zeros((batch, depth, wide), np.int8)
        integers[:, :k, :n] = quantised.integers
        scales = np.ones((batch, wide), np.float32)
        scales[:, :n] = quantised.scales
        sums = integers.sum(axis=1, dtype=np.int32)
        in_fours = integers.reshape(batch, depth // self.k_pack, self.k_pack, wide).swapaxes(2, 3)
        orders = self.orders(right, lanes) if self.ordered else None
        parts: list[np.ndarray] = []
        start = 0
        for number, width in enumerate(padded):
            columns = slice(start, start + width)
            panel = in_fours[:, :, columns]
            if orders is not None:
                steps = orders[:, number, 1:]
                panel = np.take_along_axis(panel, steps[:, :, None, None].astype(np.intp), axis=1)
            parts.append(np.ascontiguousarray(panel).reshape(batch, -1).view(np.uint8))
            behind = (scales, sums) if self.scaled else (128 * sums,) if self.shifted else ()
            parts += [np.ascontiguousarray(each[:, columns]).view(np.uint8) for each in behind]
            start += width
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def pack_row(self, x: str, to: str, k: int, part: int, _peak: str = "") -> str:
        """See `ProductOperand.pack_row`."""
        return f"pack_bytes({x}, {to}, {k}, {part});"

    def declare_column_scales(self, k: int, padded: int) -> list[str]:
        """See `ProductOperand.declare_column_scales`: scales, and the sums of the integers of columns behind these."""
        part = self.depth(k)
        lines = [
            f"const float *restrict scales = (const float *)(columns + {part * padded});",
            f"const int32_t *restrict totals = (const int32_t *)(columns + {(part + 4) * padded});",
        ]
        return lines if self.scaled else []

    def declare_row_scale(self, row: str, k: int) -> list[str]:
        """See `ProductOperand.declare_row_scale`: a scale and a zero point."""
        behind = self.row_group * self.depth(k)
        lines = [
            "float scale;",
            "int32_t zero;",
            f"__builtin_memcpy(&scale, {row} + {behind}, 4);",
            f"__builtin_memcpy(&zero, {row} + {behind} + 4, 4);",
        ]
        return lines if self.scaled else []

    def sum_of(self, at: str, plane: int) -> str:
        """See `ProductOperand.sum_of`."""
        number = super().sum_of(at, plane)
        return f"((float)({number} - zero * totals[j]) * (scale * scales[j]))" if self.scaled else number

    @property
    def pairs_saturate(self) -> bool:
        """Whether two products are added in int16."""
        return False
