"""The heart of every matrix product: a tile of rows times a panel of two vectors, which stays in registers for all of k.

The right side is cut into panels, one after another in memory. Its elements are multiplied one by one, or in bfloat16 as pairs of
neighbours along k.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from bricolage.backends.native.tensors import STORED_BYTES, STORED_TYPES


@dataclass(frozen=True)
class Operand:
    """How the operands of a product are stored and multiplied. Sums are float32."""

    dtype: str
    together: int
    """Neighbours along k that one step of the micro-kernel multiplies."""
    vector: str
    """C type of a vector of operands."""
    broadcast: str
    """C of a vector that holds `together` elements of `a` again and again; {0} is where they are."""
    load: str
    """C of a vector of `b`; {0} is where it is."""
    multiply: str
    """C that adds to the vector {0} the products of {1} and {2}."""

    @property
    def element(self) -> str:
        """C type of an element."""
        return STORED_TYPES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return STORED_BYTES[self.dtype]

    def steps(self, k: int) -> int:
        """Steps of the micro-kernel for `k` products; what is missing from the last one is zeros."""
        return -(-k // self.together)


SINGLES = Operand("float32", 1, "vec", "a[{0}] - (vec){{0}}", "*(const vec *)(b + {0})", "{0} += {1} * {2};")
PAIRS = Operand(
    "bfloat16",
    2,
    "__m512bh",
    "(__m512bh)_mm512_set1_epi32(*(const int *)(a + {0}))",
    "(__m512bh)_mm512_loadu_si512(b + {0})",
    "{0} = (vec)_mm512_dpbf16_ps((__m512){0}, {1}, {2});",
)
"""For vectors of 512 bits."""


def micro_kernel(
    operand: Operand, rows: int, vectors: int, lda: int, lanes: int, *, ahead: bool = False
) -> tuple[str, str]:
    """Name and C of a function for `rows` rows that lie `lda` apart, times a panel of `vectors` vectors, into a tile.

    With `ahead`, it brings what lies there into the second-level cache, `stride` bytes for each step of its own.
    """
    name = f"{'pairs' if operand is PAIRS else 'product'}_{rows}x{vectors}_{lda}{'_ahead' if ahead else ''}"
    kind = operand.element
    more = ", const char *ahead, long stride" if ahead else ""
    wide = lanes * operand.together
    lines = [
        # noipa: GCC 12 takes the tile for unwritten where it looks into this function from its caller (-fipa-modref).
        f"static __attribute__((noinline, noipa)) void {name}"
        f"(long depth, const {kind} *a, const {kind} *b, float *tile{more}) {{"
    ]
    lines += [f"  vec c{r}_{v} = {{0}};" for r in range(rows) for v in range(vectors)]
    lines += ["  for (long k = 0; k < depth; k++) {"]
    lines += ["    __builtin_prefetch(ahead, 0, 2); ahead += stride;"] if ahead else []
    lines += [f"    const {operand.vector} b{v} = {operand.load.format(v * wide)};" for v in range(vectors)]
    for r in range(rows):
        lines += [f"    {{ const {operand.vector} x = {operand.broadcast.format(r * lda)};"]
        lines += [f"      {operand.multiply.format(f'c{r}_{v}', 'x', f'b{v}')}" for v in range(vectors)]
        lines += ["    }"]
    lines += [f"    a += {operand.together}; b += {vectors * wide};", "  }"]
    lines += [
        f"  *(vec *)(tile + {(r * vectors + v) * lanes}) = c{r}_{v};" for r in range(rows) for v in range(vectors)
    ]
    return name, "\n".join([*lines, "}"])


def panels(operand: Operand, right: np.ndarray, lanes: int) -> np.ndarray:
    """[batch, k, n] float32 as panels of two vectors, one after another, the last one of one or two."""
    if operand is PAIRS:  # rows hold two neighbours along k, alternating
        batch, k, n = right.shape
        even = np.zeros((batch, k + k % 2, n), ml_dtypes.bfloat16)
        even[:, :k] = right
        pairs = even.view(np.uint16).reshape(batch, -1, 2, n).transpose(0, 1, 3, 2).reshape(batch, -1, 2 * n)
        return _cut(pairs, 2 * lanes)
    return _cut(right, lanes)


def _cut(right: np.ndarray, lanes: int) -> np.ndarray:
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
