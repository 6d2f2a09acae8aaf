"""C of attention of several rows of one sequence to a cache, chunk by chunk, with the bits that each row has alone.

Keys and values of a chunk become float32 once for all rows of a tile. Several keys are then multiplied by all query heads of a row
while their sums stay in registers. Each sum is added in the order of `attention_chunks.py`, so it does not depend on the tile.

Rows of a sliding window begin one after another, and so do their chunks: a row reads what is its own of one stretch of positions.
"""

from __future__ import annotations

from itertools import pairwise

from bricolage.native.cpu.block_format import emit_prefetches
from bricolage.native.cpu.emit import indent_lines
from bricolage.native.cpu.isa import Isa
from bricolage.native.ir.cache_nodes import CHUNK, SCALED, CachedAttention
from bricolage.native.ir.tensors import STORED_BYTES, STORED_TYPES
from bricolage.native.select.attention_chunks import (
    chunk_attributes,
    count_part_floats,
    emit_widened,
    name_chunk_function,
)
from bricolage.native.select.cache_vectors import fold_lanes

_MOST_ROWS, _MOST_QUERIES, _NEAR = 32, 16384, 4096
"""Rows of a tile, numbers of its queries, and numbers of keys that a first-level cache should hold half of."""
LEAST_ROWS = 8
"""Rows from which on a conversion of their own pays; fewer take each its own pass."""


def count_tile_rows(root: CachedAttention, isa: Isa) -> int:
    """Most rows of a tile; 1 where heads are no whole vectors, whose last numbers are added one by one, and for steps."""
    rows = min(root.shape[0], _MOST_ROWS, _MOST_QUERIES // (root.heads // root.key_heads * root.size))
    return rows if root.shape[0] > LEAST_ROWS <= rows and root.size % isa.lanes == 0 else 1


def count_work_floats(root: CachedAttention, isa: Isa, rows: int) -> int:
    """Numbers of memory that a tile works in."""
    return rows * root.heads // root.key_heads * CHUNK + _stretch(isa, rows) * root.size if rows > 1 else 0


def tile_function(root: CachedAttention, isa: Isa, rows: int) -> dict[str, str]:
    """The function of a tile of at most `rows` rows, `<chunk function>_tile_<rows>`: (queries, first positions, first chunks, ends
    of chunks, lengths, rows, keys, values, [their scales], memory to work in, parts, numbers from a row's parts to the next one's,
    numbers from a chunk's part to the next one's, sums). Where there are sums, parts are put to them at once."""
    name = f"{name_chunk_function(root)}_tile_{rows}"
    shared = {f"{name}_chunk": _emit_tile_chunk(root, isa, rows)} if rows > 1 else {}
    return {**shared, name: _emit_tile(root, rows)}


def _stretch(isa: Isa, rows: int) -> int:
    """Positions that a chunk of all rows reads: windows begin one after another, and whole vectors of scores are computed."""
    return CHUNK + rows - 1 + isa.lanes


def _caches(root: CachedAttention) -> str:
    """C of the parameters of a cache."""
    kind = STORED_TYPES[root.keys.dtype]
    scales = ", const uint16_t *ks, const uint16_t *vs" if root.scales else ""
    return f"const {kind} *k, const {kind} *v{scales}"


def _emit_tile(root: CachedAttention, rows: int) -> str:
    """C of runs of rows that begin at one place or soon behind it, each chunk after chunk."""
    name, part = name_chunk_function(root), count_part_floats(root)
    width, group = root.key_heads * root.size, root.heads // root.key_heads * root.size

    def caches(position: str) -> str:
        scaled = f"({position}) * {width // SCALED}"
        scales = f", ks + {scaled}, vs + {scaled}" if root.scales else ""
        return f"k + ({position}) * {width}, v + ({position}) * {width}{scales}"

    together = [
        f"      if (until - at >= {LEAST_ROWS}) {{",
        f"        long shifts[{rows}], counts[{rows}];",
        "        for (long i = at; i < until; i++) {",
        "          shifts[i - at] = starts[i] - starts[at];",
        f"          counts[i - at] = begins[i] <= chunk && chunk < ends[i] ? lengths[i] - chunk * {CHUNK} : 0;",
        f"          if (counts[i - at] > {CHUNK}) counts[i - at] = {CHUNK};",
        "        }",
        f"        {name}_tile_{rows}_chunk(q + at * {group}, {caches(f'starts[at] + chunk * {CHUNK}')}, shifts, counts,"
        f" until - at, work, parts + at * row_step + chunk * chunk_step, row_step);",
        "      } else",
    ]
    return "\n".join(
        [
            f"static __attribute__((noinline)) void {name}_tile_{rows}(const float *q, const long *starts, const long *begins,"
            f" const long *ends, const long *lengths, long rows, {_caches(root)}, float *work, float *parts, long row_step,"
            " long chunk_step, float *sums) {",
            "  for (long at = 0, until; at < rows; at = until) {",
            "    long low = begins[at], high = ends[at];",
            "    for (until = at + 1; until < rows; until++) {",
            "      const long behind = starts[until] - starts[at];",
            f"      if (behind < 0 || behind >= {rows}) break;",
            "      low = begins[until] < low ? begins[until] : low;",
            "      high = ends[until] > high ? ends[until] : high;",
            "    }",
            "    for (long chunk = low; chunk < high; chunk++) {",
            *(together if rows > 1 else []),
            "      for (long i = at; i < until; i++) {",
            "        if (chunk < begins[i] || chunk >= ends[i]) continue;",
            f"        const long left = lengths[i] - chunk * {CHUNK}, count = left < {CHUNK} ? left : {CHUNK};",
            f"        {name}(q + i * {group}, {caches(f'starts[i] + chunk * {CHUNK}')}, count,"
            " parts + i * row_step + chunk * chunk_step);",
            "      }",
            "      if (!sums) continue;",
            "      for (long i = at; i < until; i++)",
            "        if (begins[i] <= chunk && chunk < ends[i])",
            f"          {name}_join(sums + i * {part}, parts + i * row_step + chunk * chunk_step);",
            "    }",
            "  }",
            "}",
        ]
    )


def _emit_tile_chunk(root: CachedAttention, isa: Isa, rows: int) -> str:
    """C of the same chunk of several rows: the part of each whose count of positions is not 0."""
    group, size = root.heads // root.key_heads, root.size
    each, together = group * CHUNK, _count_near_keys(root, isa)
    return "\n".join(
        [
            f"static __attribute__(({chunk_attributes(root, isa)})) void {name_chunk_function(root)}_tile_{rows}_chunk("
            f"const float *q, {_caches(root)}, const long *shifts, const long *counts, long rows, float *restrict work,"
            " float *restrict parts, long row_step) {",
            f"  float *restrict const block = work, *restrict const scores = work + {_stretch(isa, rows) * size};",
            "  long positions = 0, last;",
            "  for (long r = 0; r < rows; r++)",
            "    if (counts[r] > 0 && shifts[r] + counts[r] > positions) positions = shifts[r] + counts[r];",
            "  if (!positions) return;",
            f"  last = positions + {isa.lanes - 1};",
            *_widen_keys(root, isa),
            f"  for (long block_at = 0; block_at < {CHUNK}; block_at += {together})",
            "    for (long r = 0; r < rows; r++)",
            f"      for (long j = block_at; j < block_at + {together} && j < counts[r]; j += {isa.lanes}) {{",
            f"        const float *const query = q + r * {group * size}, *const keys = block + (shifts[r] + j) * {size};",
            f"        float *const row = scores + r * {each} + j;",
            *indent_lines(_multiply_keys(root, isa), 4),
            "      }",
            "  for (long r = 0; r < rows; r++)",
            f"    for (long h = 0; h < {group}; h++)",
            f"      for (long j = counts[r] > 0 ? counts[r] : 0; j < {CHUNK}; j++)",
            f"        scores[r * {each} + h * {CHUNK} + j] = -__builtin_inff();",
            f"  float tops[{rows * group}], totals[{rows * group}];",
            f"  nat_weigh_chunks(scores, rows * {group}, tops, totals);",
            "  for (long r = 0; r < rows; r++)",
            f"    for (long h = 0; h < {group} && counts[r] > 0; h++) {{",
            f"      parts[r * row_step + {group * size} + h] = tops[r * {group} + h];",
            f"      parts[r * row_step + {group * (size + 1)} + h] = totals[r * {group} + h];",
            "    }",
            *_add_values(root, isa, rows),
            "}",
        ]
    )


def _count_near_keys(root: CachedAttention, isa: Isa) -> int:
    """Positions whose keys stay near while all rows are multiplied by them: a power of two."""
    near = CHUNK
    while near > isa.lanes and near * root.size > _NEAR:
        near //= 2
    return near


def _widen_keys(root: CachedAttention, isa: Isa) -> list[str]:
    """C that makes float32 of a stretch of keys, the last one again for those behind it, and fetches the values."""
    width, bytes_ = root.key_heads * root.size, STORED_BYTES[root.keys.dtype]
    return [
        "  for (long j = 0; j < last; j++) {",
        f"    const long at = (j < positions ? j : positions - 1) * {width}L;",
        *indent_lines(emit_prefetches("(const char *)(v + at)", root.size * bytes_, 0), 2),
        f"    for (long i = 0; i < {root.size}; i += {isa.lanes})",
        f"      store(block + j * {root.size} + i, {emit_widened(root, 'k', 'at + i', f'ks[(at + i) / {SCALED}]')});",
        "  }",
    ]


def _multiply_keys(root: CachedAttention, isa: Isa) -> list[str]:
    """C of scores of all query heads of a row and as many keys as a vector has lanes, some of both at a time."""
    lines: list[str] = []
    for heads in _head_runs(root):
        wide = 1
        while 2 * wide * len(heads) <= 2 * isa.rows and 2 * wide <= isa.lanes:
            wide *= 2
        for first in range(0, isa.lanes, wide):
            sums = {h: [f"s_{h}_{i}" for i in range(first, first + wide)] for h in heads}
            lines += [f"vec {', '.join(f'{each} = {{0}}' for h in heads for each in sums[h])};"]
            lines += [f"for (long d = 0; d < {root.size}; d += {isa.lanes}) {{"]
            lines += [f"  const vec q_{h} = load(query + {h * root.size} + d);" for h in heads]
            for i in range(wide):
                added = " ".join(f"{sums[h][i]} += q_{h} * x;" for h in heads)
                lines += [f"  {{ const vec x = load(keys + {(first + i) * root.size} + d); {added} }}"]
            lines += ["}"]
            for h in heads:
                lines += fold_lanes(sums[h], isa.lanes, 0)
        for h in heads:
            folded = [f"s_{h}_{first}" for first in range(0, isa.lanes, wide)]
            lines += fold_lanes(folded, isa.lanes, wide.bit_length() - 1)
            lines += [f"store(row + {h * CHUNK}, s_{h}_0);"]
    return lines


def _head_runs(root: CachedAttention) -> list[range]:
    """Query heads of a key head in runs of at most four."""
    group = root.heads // root.key_heads
    runs = -(-group // 4)
    ends = [group * run // runs for run in range(runs + 1)]
    return [range(*pair) for pair in pairwise(ends)]


def _add_values(root: CachedAttention, isa: Isa, rows: int) -> list[str]:
    """C of the sums of values by exponentials. Some vectors of all values lie one behind another, as a loop of a row reads them."""
    width, bytes_, kind = root.key_heads * root.size, STORED_BYTES[root.keys.dtype], "(const char *)"
    vectors, lanes, group = root.size // isa.lanes, isa.lanes, root.heads // root.key_heads
    wide = max(1, 2 * isa.rows // max(map(len, _head_runs(root))))
    panels = [range(first, min(first + wide, vectors)) for first in range(0, vectors, wide)]
    places = [_stretch(isa, rows) * panel.start * lanes for panel in panels]
    lines = [
        "  for (long j = 0; j < positions; j++) {",
        f"    const long at = j * {width}L;",
        *indent_lines(emit_prefetches(f"{kind}(k + at + {CHUNK * width}L)", root.size * bytes_, 0), 2),
    ]
    for panel, place in zip(panels, places, strict=True):
        lines += [
            f"    store(block + {place + (i - panel.start) * lanes} + j * {len(panel) * lanes},"
            f" {emit_widened(root, 'v', f'at + {i * lanes}', f'vs[at / {SCALED} + {i * lanes // SCALED}]')});"
            for i in panel
        ]
    lines += ["  }"]
    for panel, place in zip(panels, places, strict=True):
        lines += [
            "  for (long r = 0; r < rows; r++) {",
            "    if (counts[r] <= 0) continue;",
            f"    const float *const values = block + {place} + shifts[r] * {len(panel) * lanes};",
            f"    const float *const row = scores + r * {group * CHUNK};",
            "    float *const part = parts + r * row_step;",
        ]
        for heads in _head_runs(root):
            lines += indent_lines(_add_panel(root, isa, heads, panel), 2)
        lines += ["  }"]
    return lines


def _add_panel(root: CachedAttention, isa: Isa, heads: range, panel: range) -> list[str]:
    """C of the sums of some vectors of values for some query heads of a row."""
    lanes, columns = isa.lanes, range(len(panel))
    return [
        "{",
        f"  vec {', '.join(f'a_{h}_{i} = {{0}}' for h in heads for i in columns)};",
        "  for (long j = 0; j < counts[r]; j++) {",
        *[f"    const vec w_{h} = row[{h * CHUNK} + j] - (vec){{0}};" for h in heads],
        *[
            f"    {{ const vec x = load(values + j * {len(panel) * lanes} + {i * lanes});"
            f" {' '.join(f'a_{h}_{i} += w_{h} * x;' for h in heads)} }}"
            for i in columns
        ],
        "  }",
        *[f"  store(part + {h * root.size + (panel.start + i) * lanes}, a_{h}_{i});" for h in heads for i in columns],
        "}",
    ]
