"""Products by a processor's matrix unit (AMX): tiles of up to 16 rows of 64 bytes, multiplied in bfloat16 and summed in float32, or
multiplied as bytes and summed in int32.

A micro-kernel holds 32 rows times two vectors in four tiles; two more hold rows of the left side, and two the panel. A float32 is
the sum of up to three bfloat16 numbers (8 bits of the mantissa each), so a product of float32 is a few of bfloat16: three of them
leave an error of some 2^-17, six one below that of float32 (Henry, Tang & Heinecke, "Leveraging the bfloat16 Artificial
Intelligence Datatype For Higher-Precision Computations", ARITH 2019). Each operand that a tile holds is used for as many of them
as possible.

Where there is no such unit, `EMULATED` computes what it would in plain C, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import NARROW, SPLIT_NARROW, MicroTile, ProductOperand

ROWS = 16
"""Of a tile."""
TILE_ROWS = 2 * ROWS
"""Of the largest tile of a product: two of the unit's tiles."""
ROW_BYTES = 64
"""Of a tile."""

_ORDERS = {1: ((0, 0),), 2: ((1, 0), (0, 0), (0, 1)), 3: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0))}
"""Products of parts (left, right) that are summed for each number of parts, in an order in which one of the two mostly stays."""


@dataclass(frozen=True)
class Tiles(ProductOperand):
    """Operands in tiles, as many elements a step as a row of a tile holds; all of them for 16 lanes of float32."""

    multiply: str = "tile_multiply"
    """Name of the unit's multiplication."""

    @property
    def in_tiles(self) -> bool:
        """Always."""
        return True

    def pitch(self, k: int) -> int:
        """An odd number of cache lines, so that the rows of a tile fall into different sets of the first-level cache: up to 1.3
        times as fast (products of 128 × 768 × 768 in three parts; Xeon with AMX)."""
        lines = -(-self.row(k) * self.bytes // ROW_BYTES)
        return (lines if lines % 2 else lines + 1) * ROW_BYTES // self.bytes

    def rows(self, _isa: Isa) -> int:
        """Two tiles, one above the other."""
        return TILE_ROWS

    def preamble(self, isa: Isa) -> Sequence[str]:
        """The unit's instructions, or plain C that does the same."""
        return NARROW if isa.bfloat16_flags else SPLIT_NARROW, TILES if isa.matrix_unit == "amx" else EMULATED

    def with_tile_config(self, rows: int, lines: list[str]) -> list[str]:
        """`lines` between configuring the unit for that number of rows and releasing it: multiplications must lie in between."""
        return with_shapes(rows, ROW_BYTES, lines)

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`: up to 32 rows times two vectors in four tiles, and two tiles each of both sides."""
        rows, vectors, lda, lanes, prefetch = tile.rows, tile.vectors, tile.lda, tile.lanes, tile.prefetch
        part, adds = tile.part, tile.adds
        kind, in_row, pack = self.element, ROW_BYTES // self.bytes, self.k_pack
        name = f"{'byte_' if pack == 4 else ''}tiles_{rows}x{vectors}_{lda}_{self.splits}x{part}"
        name += f"{'_ahead' if prefetch else ''}{'_adds' if adds else ''}{f'_runs{tile.run}' if tile.run else ''}"
        more = (", const char *ahead, long stride" if prefetch else "") + (", long fresh" if adds else "")
        more += ", const int *hops" if tile.run else ""
        halves = range(2 if rows > ROWS else 1)
        wide = vectors * lanes
        sums = [(h, v, 2 * h + v) for h in halves for v in range(vectors)]
        lines = [
            f"static __attribute__((noinline, noipa)) void {name}"
            f"(long depth, const {kind} *{'left' if tile.run else 'a'}, const {kind} *b, {self.sums} *tile{more}) {{"
        ]
        at = [f"tile + {ROWS * h * wide + v * lanes}, {4 * wide}" for h, v, _ in sums]
        clear = [f"tile_zero({t});" for *_, t in sums]
        if adds:
            again = [f"tile_load({t}, {spot});" for (*_, t), spot in zip(sums, at, strict=True)]
            lines += [f"  if (fresh) {{ {' '.join(clear)} }}", f"  else {{ {' '.join(again)} }}"]
        else:
            lines += [f"  {line}" for line in clear]
        if tile.run:
            lines += ["  for (long run = 0; run < depth; run++) {", f"  const {kind} *a = left + hops[run];"]
        lines += [f"  for (long k = 0; k < {tile.run or 'depth'}; k++) {{"]
        if prefetch:
            lines += [
                "    for (long n = 0; n < stride; n += 64) __builtin_prefetch(ahead + n, 0, 2);",
                "    ahead += stride;",
            ]
        held: tuple[int, int] = (-1, -1)
        for left, right in _ORDERS[self.splits]:
            if left != held[0]:
                start = left * part
                lines += [f"    tile_load({4 + h}, a + {start + ROWS * h * lda}, {self.bytes * lda});" for h in halves]
            if right != held[1]:
                start = right * ROWS * pack * wide
                lines += [
                    f"    tile_load({6 + v}, b + {start + pack * v * lanes}, {4 * wide});" for v in range(vectors)
                ]
            lines += [f"    {self.multiply}({t}, {4 + h}, {6 + v});" for h, v, t in sums]
            held = left, right
        lines += [
            f"    a += {in_row}; b += {self.splits * ROWS * pack * wide};",
            "  }",
            *(["  }"] if tile.run else []),
        ]
        lines += [f"  tile_store({t}, {spot});" for (*_, t), spot in zip(sums, at, strict=True)]
        return name, "\n".join([*lines, "}"])


def tiles(parts: int) -> Tiles:
    """bfloat16 (1), or float32 as the sum of two or three of them."""
    return Tiles("bfloat16", 2, ROW_BYTES // 2, len(_ORDERS[parts]) / 16, parts)


def with_shapes(rows: int, row_bytes: int, lines: list[str]) -> list[str]:
    """`lines` between configuring the unit and releasing it: for a number of rows of the left side, and their bytes."""
    upper, lower = min(rows, ROWS), max(0, rows - ROWS)
    # Tiles 0 and 1, 2 and 3 hold sums; 4 and 5 the left side; 6 and 7 the panel.
    counts = (upper, upper, lower, lower, upper, lower, row_bytes // 4, row_bytes // 4)
    sizes = (*[ROW_BYTES] * 4, row_bytes, row_bytes, ROW_BYTES, ROW_BYTES)
    return with_tiles(list(zip(counts, sizes, strict=True)), lines)


def with_tiles(shapes: Sequence[tuple[int, int]], lines: list[str]) -> list[str]:
    """`lines` between configuring the unit, with rows and bytes of a row for each tile, and releasing it."""
    shape = ", ".join(f".rows[{i}] = {n}, .bytes[{i}] = {size}" for i, (n, size) in enumerate(shapes) if n)
    return [
        f"static const struct tile_shapes shapes __attribute__((aligned(64))) = {{ .palette = 1, {shape} }};",
        "tiles_configure(&shapes);",
        *lines,
        "tiles_release();",
    ]


_SHAPES = r"""
#include <stdint.h>
#ifndef TILE_UNIT
#define TILE_UNIT
struct tile_shapes { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; };
"""

TILES = (
    _SHAPES
    + r"""
#include <immintrin.h>
#define OF_TILES static __attribute__((noinline, target("amx-tile"))) void
OF_TILES tiles_configure(const struct tile_shapes *shapes) { _tile_loadconfig(shapes); }
OF_TILES tiles_release(void) { _tile_release(); }
#define tile_zero(t) _tile_zero(t)
#define tile_load(t, from, stride) _tile_loadd(t, from, stride)
#define tile_store(t, to, stride) _tile_stored(t, to, stride)
#define tile_multiply(c, a, b) _tile_dpbf16ps(c, a, b)
#endif
"""
).strip()
"""The matrix unit's instructions."""

BYTE_TILES = "#define tile_multiply_bytes(c, a, b) _tile_dpbusd(c, a, b)"
"""The one for bytes."""
SIGNED_TILES = "#define tile_multiply_signed(c, a, b) _tile_dpbsud(c, a, b)"
"""The same with the sign on the other side."""
SLICE_TILES = "#define tile_multiply_slices(c, a, b) _tile_dpbssd(c, a, b)"
"""The same with signs on both sides."""

EMULATED = (
    _SHAPES
    + r"""
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
/* A unit for each thread that has configured one (no thread-local variables: a process may load a thousand such libraries, for
   which the loader is not made). */
struct tile_unit { _Atomic unsigned long owner; struct tile_shapes shapes; unsigned char data[8][1024]; };
static struct tile_unit tile_units[64];
static struct tile_unit *tile_unit(void) {
  const unsigned long self = (unsigned long)pthread_self();
  for (long i = 0;; i = (i + 1) % 64) if (atomic_load(&tile_units[i].owner) == self) return &tile_units[i];
}
static void tiles_configure(const struct tile_shapes *shapes) {
  struct tile_unit *unit = tile_units;
  for (unsigned long none = 0; !atomic_compare_exchange_strong(&unit->owner, &none, (unsigned long)pthread_self()); none = 0)
    unit = unit + 1 < tile_units + 64 ? unit + 1 : tile_units;
  unit->shapes = *shapes;
  memset(unit->data, 0, sizeof unit->data);
}
static void tiles_release(void) { atomic_store(&tile_unit()->owner, 0); }
static void tile_zero(int t) { memset(tile_unit()->data[t], 0, 1024); }
static void tile_load(int t, const void *from, long stride) {
  struct tile_unit *unit = tile_unit();
  for (int r = 0; r < unit->shapes.rows[t]; r++)
    memcpy(unit->data[t] + 64 * r, (const char *)from + r * stride, unit->shapes.bytes[t]);
}
static void tile_store(int t, void *to, long stride) {
  const struct tile_unit *unit = tile_unit();
  for (int r = 0; r < unit->shapes.rows[t]; r++)
    memcpy((char *)to + r * stride, unit->data[t] + 64 * r, unit->shapes.bytes[t]);
}
/* As the instruction works: subnormals are zero, even and odd products are summed apart, in single precision. */
static float tile_number(uint16_t h) {
  union { uint32_t i; float f; } u = { .i = (uint32_t)h << 16 };
  if (!(u.i & 0x7f800000)) u.i &= 0x80000000;
  return u.f;
}
static void tile_multiply(int c, int a, int b) {
  struct tile_unit *unit = tile_unit();
  for (int m = 0; m < unit->shapes.rows[c]; m++) {
    float sums[16][2] = {{0}}, *to = (float *)(unit->data[c] + 64 * m);
    const uint16_t *left = (const uint16_t *)(unit->data[a] + 64 * m);
    for (int k = 0; k < 16; k++) {
      const uint16_t *right = (const uint16_t *)(unit->data[b] + 64 * k);
      for (int n = 0; n < 16; n++)
        for (int i = 0; i < 2; i++)
          sums[n][i] = __builtin_fmaf(tile_number(left[2 * k + i]), tile_number(right[2 * n + i]), sums[n][i]);
    }
    for (int n = 0; n < 16; n++) to[n] += sums[n][0] + sums[n][1];
  }
}
#define TILE_BYTES(name, left_type, right_type) \
  static void name(int c, int a, int b) { \
    struct tile_unit *unit = tile_unit(); \
    for (int m = 0; m < unit->shapes.rows[c]; m++) { \
      int32_t *to = (int32_t *)(unit->data[c] + 64 * m); \
      const left_type *left = (const left_type *)(unit->data[a] + 64 * m); \
      for (int k = 0; k < unit->shapes.bytes[a] / 4; k++) { \
        const right_type *right = (const right_type *)(unit->data[b] + 64 * k); \
        for (int n = 0; n < 16; n++) \
          for (int i = 0; i < 4; i++) to[n] += left[4 * k + i] * right[4 * n + i]; \
      } \
    } \
  }
TILE_BYTES(tile_multiply_bytes, uint8_t, int8_t)
TILE_BYTES(tile_multiply_signed, int8_t, uint8_t)
TILE_BYTES(tile_multiply_slices, int8_t, int8_t)
#endif
"""
).strip()
"""What they do, in plain C. A thread that does not configure the tiles waits for ever."""
