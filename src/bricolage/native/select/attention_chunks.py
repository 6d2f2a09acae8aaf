"""C of one chunk of attention to a cache, for all query heads of a row that share a key head, and of putting chunks together.

What a chunk found, its part, is `count_part_floats` numbers: sums of values [group, size] by exponentials, then the largest score
of each query head, then its sum of exponentials.
"""

from __future__ import annotations

from bricolage.native.cpu.block_format import emit_prefetches
from bricolage.native.cpu.emit import indent_lines
from bricolage.native.cpu.isa import Isa
from bricolage.native.ir.cache_nodes import CHUNK, SCALED, CachedAttention
from bricolage.native.ir.tensors import STORED_BYTES, STORED_TYPES
from bricolage.native.select.cache_vectors import sum_lanes, widen_stored
from bricolage.native.select.rows import reductions

_WIDENING = {"float16": "nat_half_vector", "bfloat16": "nat_wide_vector", "int8": "nat_signed_vector"}
"""What makes a vector of float32 of what is stored."""
_REGISTERS = 12
"""Vectors of sums that are under way."""


def count_part_floats(root: CachedAttention) -> int:
    """Numbers of what a chunk found."""
    return root.heads // root.key_heads * (root.size + 2)


def name_chunk_function(root: CachedAttention) -> str:
    """Of a chunk of one row: (queries, keys, values, [their scales], positions, part). With `_clear` behind it of no part
    (sums), with `_join` of putting one to those before it (sums, part)."""
    return f"attend_{root.heads // root.key_heads}_{root.size}_{root.key_heads}_{root.keys.dtype}"


def chunk_functions(root: CachedAttention, isa: Isa) -> dict[str, str]:
    """The functions of a chunk, each by itself in the library so that all that call it run the same instructions."""
    name = _WIDENING.get(root.keys.dtype)
    helpers = {**reductions(isa.lanes), "nat_lane_sums": sum_lanes(isa.lanes), "nat_weigh_chunks": _WEIGH_CHUNKS}
    if name is not None:
        helpers[name] = widen_stored(root.keys.dtype, isa)
    return {**helpers, name_chunk_function(root): _emit_chunk_functions(root, isa)}


def emit_widened(root: CachedAttention, row: str, at: str, scale: str) -> str:
    """C of a vector of what lies from a place in a cache's row on, as float32; `scale` is C of its scale, of bytes alone."""
    name = _WIDENING.get(root.keys.dtype, "load")
    return f"{name}({row} + {at})" + (f" * wide_from_half({scale})" if root.scales else "")


def chunk_attributes(root: CachedAttention, isa: Isa) -> str:
    """Of functions that read a cache."""
    halves = root.keys.dtype == "float16" and isa.lanes == 8 and isa.reads_halves
    return 'noinline, target("f16c")' if halves else "noinline"


_WEIGH_CHUNKS = f"""static __attribute__((noinline)) void nat_weigh_chunks(float *rows, long n, float *tops, float *totals) {{
  /* exponentials of scores less the largest of their row; what one step takes long for, others of its loop hide */
  for (long r = 0; r < n; r++) tops[r] = nat_top(rows + r * {CHUNK}, {CHUNK});
  for (long r = 0; r < n; r++) {{
    float *const row = rows + r * {CHUNK}, top = tops[r];
#pragma omp simd
    for (long j = 0; j < {CHUNK}; j++) row[j] = nat_exp_below(row[j] - top);
  }}
  for (long r = 0; r < n; r++) totals[r] = nat_total(rows + r * {CHUNK}, {CHUNK});
}}"""


def _emit_chunk_functions(root: CachedAttention, isa: Isa) -> str:
    """C of one chunk, and of putting chunks together."""
    name, group = name_chunk_function(root), root.heads // root.key_heads
    kind = STORED_TYPES[root.keys.dtype]
    tops, totals = group * root.size, group * (root.size + 1)
    return "\n".join(
        [
            f"static __attribute__(({chunk_attributes(root, isa)})) void {name}(const float *q, const {kind} *k, const {kind} *v,"
            f"{' const uint16_t *ks, const uint16_t *vs,' if root.scales else ''} long count, float *part) {{",
            f"  float scores[{group}][{CHUNK}] __attribute__((aligned(64)));",
            *_scores(root, isa),
            f"  nat_weigh_chunks(scores[0], {group}, part + {tops}, part + {totals});",
            *_weighted_values(root, isa),
            "}",
            *_joining(root),
        ]
    )


def _scores(root: CachedAttention, isa: Isa) -> list[str]:
    """C of the products of all query heads with the keys of a chunk; -infinity behind them. As many positions at a time as a vector
    has lanes; behind the last one, it stands in for those that are missing."""
    size, group, lanes = root.size, root.heads // root.key_heads, isa.lanes
    kind = STORED_TYPES[root.keys.dtype]
    whole = size // lanes * lanes
    lines = [
        f"  for (long j = 0; j < count; j += {lanes}) {{",
        f"    vec s[{group}][{lanes}] __attribute__((aligned(64)));",
        f"    float rest[{group}][{lanes}];" if size % lanes else "",
        f"    for (long i = 0; i < {lanes}; i++) {{",
        f"      const long at = (j + i < count ? j + i : count - 1) * {root.key_heads * size}L;",
        f"      const {kind} *const row = k + at;",
        *([f"      const uint16_t *const scale = ks + at / {SCALED};"] if root.scales else []),
        *indent_lines(emit_prefetches("(const char *)(v + at)", size * STORED_BYTES[root.keys.dtype], 0), 3),
        f"      vec {', '.join(f's_{h} = {{0}}' for h in range(group))};",
    ]
    for at in range(0, whole, lanes):
        lines += [f"      {{ const vec x = {_widened(root, at)};"]
        lines += [f"        s_{h} += load(q + {h * size + at}) * x;" for h in range(group)]
        lines += ["      }"]
    for h in range(group):
        lines += [f"      s[{h}][i] = s_{h};"]
        more = " + ".join(f"q[{h * size + at}] * {_number(root, f'row[{at}]')}" for at in range(whole, size))
        lines += [f"      rest[{h}][i] = {more};"] if more else []
    lines += ["    }"]
    for h in range(group):
        more = f" + load(rest[{h}])" if size % lanes else ""
        lines += [f"    store(scores[{h}] + j, nat_lane_sums(s[{h}]){more});"]
    return [
        *filter(None, lines),
        "  }",
        f"  for (long h = 0; h < {group}; h++)",
        f"    for (long j = count; j < {CHUNK}; j++) scores[h][j] = -__builtin_inff();",
    ]


def _weighted_values(root: CachedAttention, isa: Isa) -> list[str]:
    """C of the sums of a chunk's values by their exponentials; as many numbers of a head at a time as registers hold sums of."""
    size, group, lanes = root.size, root.heads // root.key_heads, isa.lanes
    kind, pitch = STORED_TYPES[root.keys.dtype], root.key_heads * root.size
    vectors, wide = size // lanes, max(1, _REGISTERS // group)
    lines: list[str] = []
    for first in range(0, vectors, wide):
        columns = range(first, min(first + wide, vectors))
        lines += ["  {", f"    vec {', '.join(f'a_{h}_{i} = {{0}}' for h in range(group) for i in columns)};"]
        lines += ["    for (long j = 0; j < count; j++) {", f"      const {kind} *const row = v + j * {pitch}L;"]
        lines += [f"      const uint16_t *const scale = vs + j * {pitch // SCALED}L;"] if root.scales else []
        if not first:  # what is read a chunk later: one key head's rows lie apart, which no processor fetches by itself
            following = f"(const char *)(k + (j + {CHUNK}) * {pitch}L)"
            lines += indent_lines(emit_prefetches(following, size * STORED_BYTES[root.keys.dtype], 0), 3)
        lines += [f"      const vec w_{h} = scores[{h}][j] - (vec){{0}};" for h in range(group)]
        for i in columns:  # one after another: all of them at once, with the weights, are more than there are registers
            lines += [f"      {{ const vec x = {_widened(root, i * lanes)};"]
            lines += [f"        a_{h}_{i} += w_{h} * x;" for h in range(group)]
            lines += ["      }"]
        lines += ["    }"]
        lines += [f"    store(part + {h * size + i * lanes}, a_{h}_{i});" for h in range(group) for i in columns]
        lines += ["  }"]
    if size % lanes:
        lines += [
            f"  for (long h = 0; h < {group}; h++)",
            f"    for (long i = {vectors * lanes}; i < {size}; i++) {{",
            "      float a = 0.0f;",
            f"      for (long j = 0; j < count; j++) a += scores[h][j] * {_number(root, f'v[j * {pitch}L + i]')};",
            f"      part[h * {size} + i] = a;",
            "    }",
        ]
    return lines


def _widened(root: CachedAttention, at: int) -> str:
    """C of a vector of the row that a loop is at."""
    return emit_widened(root, "row", str(at), f"scale[{at // SCALED}]")


def _number(root: CachedAttention, stored: str) -> str:
    """C of one number of a cache."""
    return {"float16": "wide_from_half({})", "bfloat16": "nat_widen({})"}.get(root.keys.dtype, "{}").format(stored)


def _joining(root: CachedAttention) -> list[str]:
    """C that begins with no chunk, and puts one to those before it."""
    name, size, group = name_chunk_function(root), root.size, root.heads // root.key_heads
    tops, totals = group * size, group * (size + 1)
    joined = f"a * sums[h * {size} + i] + b * part[h * {size} + i]"
    return [
        f"static __attribute__((noinline)) void {name}_clear(float *sums) {{",
        f"  for (long i = 0; i < {group * (size + 2)}; i++) sums[i] = 0.0f;",
        f"  for (long h = 0; h < {group}; h++) sums[{tops} + h] = -__builtin_inff();",
        "}",
        f"static __attribute__((noinline)) void {name}_join(float *restrict sums, const float *restrict part) {{",
        f"  for (long h = 0; h < {group}; h++) {{",
        f"    const float before = sums[{tops} + h], here = part[{tops} + h], top = before > here ? before : here;",
        "    const float a = nat_exp_below(before - top), b = nat_exp_below(here - top);",
        f"    sums[{tops} + h] = top;",
        f"    sums[{totals} + h] = a * sums[{totals} + h] + b * part[{totals} + h];",
        f"    for (long i = 0; i < {size}; i++) sums[h * {size} + i] = {joined};",
        "  }",
        "}",
    ]
