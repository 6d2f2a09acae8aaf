"""Convolutions by a matrix unit that read their windows where these lie.

Where a stride is 1, the pixels of an image with its padding, `width` of them in a line, are the rows of A for every tap: row m of
the product meets pixel m + y · width + x of it under the tap (y, x). So the image is copied once, with its padding, instead of
once for each tap, and what a tile of rows reads for all of its taps is a few lines of the image, which stay in the first-level
cache. The price is that the product has rows for the places behind the end of each line, which are not stored (Anderson, Vasudevan,
Keane & Gregg, "Low-memory GEMM-based convolution algorithms for deep neural networks", 2017).
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

from bricolage.native.cpu.implicit_gemm import Product
from bricolage.native.cpu.matrix_unit import TILE_ROWS, Tiles
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.ir.index_expressions import Index, unflatten
from bricolage.native.ir.tensors import Conv, Coords, MatMul, Node

_MOST_ROWS = 1.15
"""Rows of such a product over those that are stored, at most, where they are more tiles."""


@dataclass(frozen=True)
class Windows:
    """The rows of a convolution as pixels of its images with their padding."""

    images: Product
    """Pixels as rows of channels: the left side of it is what is copied."""
    sizes: tuple[int, int]
    """Of an image of the result."""
    lines: tuple[int, int]
    """Of an image with its padding."""
    taps: tuple[int, ...]
    """Pixels from the one that a row begins with to each of its taps."""
    run: int
    """Steps of a tap."""

    @property
    def area(self) -> int:
        """Pixels of an image with its padding."""
        return self.lines[0] * self.lines[1]

    @property
    def m(self) -> int:
        """Rows of the product, those included that are not stored."""
        return self.images.m - self.beyond

    @property
    def beyond(self) -> int:
        """Pixels behind the one that a row begins with, of which it reads the last."""
        return self.taps[-1]

    def row(self, at: str) -> list[str]:
        """Declares `m`, the row that is stored, of row `at`; goes on with the next one where there is none."""
        (height, width), (tall, wide) = self.sizes, self.lines
        lines = [f"const long at = {at}, line = at / {wide}, spot = at % {wide};"]
        if self.images.m == tall * wide:  # of one image the last line is the result's last
            return [*lines, f"if (spot >= {width}) continue;", f"const long m = line * {width} + spot;"]
        return [
            *lines,
            f"if (spot >= {width} || line % {tall} >= {height}) continue;",
            f"const long m = (line / {tall} * {height} + line % {tall}) * {width} + spot;",
        ]

    def hops(self, pitch: int) -> tuple[str, str]:
        """Name and C of a table of how far ahead each tap is, in elements, where pixels lie `pitch` apart."""
        text = ", ".join(str(tap * pitch) for tap in self.taps)
        name = f"hops_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        return name, f"static const int {name}[{len(self.taps)}] = {{{text}}};"


def windows(root: MatMul | Conv, p: Product, operand: ProductOperand) -> Windows | None:
    """The windows of a convolution of bytes, where they may be read so; None elsewhere, and where too much would be computed for
    nothing."""
    if not isinstance(root, Conv) or not isinstance(operand, Tiles) or operand.k_pack != 4 or operand.scaled:
        return None
    taps, channels = root.weight.shape[2:], root.source.shape[1]
    whole = channels % operand.k_step == 0
    if len(taps) != 2 or math.prod(taps) == 1 or set(root.strides) != {1} or p.batch != 1 or not whole:
        return None
    images, _, height, width = root.shape
    spans = [(extent - 1) * apart for extent, apart in zip(taps, root.dilations, strict=True)]
    tall, wide = height + spans[0], width + spans[1]
    offsets = tuple(
        y * root.dilations[0] * wide + x * root.dilations[1] for y, x in itertools.product(*map(range, taps))
    )

    def left(_b: Index, i: Index, kk: Index) -> tuple[Node, Coords, list[tuple[Index, int]]]:
        image, *spots = unflatten(i, (images, tall, wide))
        read = [spot + (-pad) for spot, pad in zip(spots, root.pads, strict=False)]
        return root.source, (image, kk, *read), list(zip(read, root.source.shape[2:], strict=True))

    rows = Product(
        1,
        images * tall * wide,
        n=p.n,
        k=channels,
        root_coords=p.root_coords,
        left=left,
        runs=(channels,),
        right=p.right,
        fill=p.fill,
    )
    conv_windows = Windows(rows, (height, width), (tall, wide), offsets, channels // operand.k_step)
    tiles, usual = (-(-m // TILE_ROWS) for m in (conv_windows.m, p.m))
    return conv_windows if conv_windows.m <= _MOST_ROWS * p.m or tiles == usual else None
