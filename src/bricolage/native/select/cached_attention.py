"""Attention to rows of a cache: one pass over a key head's rows serves all query heads that share it.

Rows go by chunks of `CHUNK` positions. A chunk has scores, their largest, exponentials, their sum, and the sum of values by these;
it is then put together with what the chunks before it have, by the larger of both largest (Milakov & Gimelshein, "Online normalizer
calculation for softmax", 2018). Chunks begin at the row's own start and are put together one after another. So a row's bits depend
neither on other rows nor on the threads.

Where there are fewer pairs of a row and a key head than keep the threads busy, these share the chunks as well; what each chunk
found waits in memory until they have met (as Flash-Decoding does: Dao et al., 2023).
"""

from __future__ import annotations

import numpy as np

from bricolage.native.cpu.block_format import emit_prefetches
from bricolage.native.cpu.emit import Body, epilogue, indent_lines, literal
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.nested_loops import nested_loops
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.ir.cache_nodes import CHUNK, SCALED, CachedAttention
from bricolage.native.ir.index_expressions import ZERO, Index, variable
from bricolage.native.ir.tensors import STORED_BYTES, STORED_TYPES
from bricolage.native.select.algorithm import Algorithm, KernelRequest
from bricolage.native.select.cache_vectors import sum_lanes, widen_stored
from bricolage.native.select.rows import reductions

_BUSY = 6
"""Pieces for each thread with which all are busy until the end."""
_MOST_PARTS = 32 << 20
"""Bytes of what waits in memory, at most."""
_REGISTERS = 12
"""Vectors of sums that are under way."""
_TYPICAL = 256
"""Positions for which the work of a piece is estimated: how many there will be is not known."""


def _applies(request: KernelRequest) -> bool:
    return isinstance(request.root, CachedAttention)


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    root, threads = request.root, request.target.threads
    assert isinstance(root, CachedAttention)
    heads = root.shape[0] * root.key_heads
    chunks = -(-root.most // CHUNK)
    waiting = heads * chunks * _part_floats(root) * 4
    split = -(-_BUSY * threads // heads) if threads > 1 and heads < _BUSY * threads and waiting <= _MOST_PARTS else 1
    return _split_phases(request, weights, split) if split > 1 else [_whole_phase(request, weights)]


def _part_floats(root: CachedAttention) -> int:
    """Numbers of what a chunk found: sums of values, the largest score and the sum of exponentials of each query head."""
    return root.heads // root.key_heads * (root.size + 2)


def _whole_phase(request: KernelRequest, weights: ConstantBlock) -> Phase:
    """All chunks of a row and key head by one thread."""
    root = request.root
    assert isinstance(root, CachedAttention)
    memory = FunctionMemory(weights)
    part = _part_floats(root)
    work = [
        *_length(request, memory),
        *_queries(request, memory),
        f"float sums[{part}], part[{part}];",
        f"{_name(root)}_clear(sums);",
        "for (long chunk = 0; chunk < chunks; chunk++) {",
        f"  {_chunk_call(root, 'part')}",
        f"  {_name(root)}_join(sums, part);",
        "}",
        *_results(request, memory),
    ]
    share = ParallelRange(root.shape[0] * root.key_heads, _work(root))
    return Phase(_over_heads(root, work), share, memory.operands, helpers=_helpers(root, request.target.isa))


def _split_phases(request: KernelRequest, weights: ConstantBlock, split: int) -> list[Phase]:
    """Chunks of a row and key head in `split` runs, then their sums."""
    root = request.root
    assert isinstance(root, CachedAttention)
    part, most = _part_floats(root), -(-root.most // CHUNK)
    heads = root.shape[0] * root.key_heads
    memory = FunctionMemory(weights)
    parts = f"float *const parts = (float *)shared + (r * {root.key_heads} + g) * {most * part}L;"
    work = [
        *_length(request, memory),
        f"const long first = chunks * (o % {split}) / {split}, last = chunks * (o % {split} + 1) / {split};",
        "if (first == last) continue;",
        *_queries(request, memory),
        parts,
        "for (long chunk = first; chunk < last; chunk++) {",
        f"  {_chunk_call(root, f'parts + chunk * {part}')}",
        "}",
    ]
    share = ParallelRange(heads * split, _work(root) // split, most=-(-heads * split // request.target.threads))
    bytes_, helpers = heads * most * part * 4, _helpers(root, request.target.isa)
    first = Phase(_over_heads(root, work, split), share, memory.operands, shared_scratch=bytes_, helpers=helpers)
    memory = FunctionMemory(weights)
    work = [
        *_length(request, memory),
        parts,
        f"float sums[{part}];",
        f"{_name(root)}_clear(sums);",
        f"for (long chunk = 0; chunk < chunks; chunk++) {_name(root)}_join(sums, parts + chunk * {part});",
        *_results(request, memory),
    ]
    share = ParallelRange(heads, 64 * part)
    return [
        first,
        Phase(_over_heads(root, work), share, memory.operands, shared_scratch=bytes_, helpers=helpers),
    ]


def _work(root: CachedAttention) -> int:
    return 2 * min(root.most, _TYPICAL) * root.size * root.heads // root.key_heads


def _over_heads(root: CachedAttention, work: list[str], split: int = 1) -> list[str]:
    """C of a loop over rows and key heads, each `split` times."""
    at = f"o / {split}" if split > 1 else "o"
    head = f"const long r = {at} / {root.key_heads}, g = {at} % {root.key_heads};"
    return ["for (long o = begin; o < end; o++) {", *indent_lines([head, *work]), "}"]


def _length(request: KernelRequest, memory: FunctionMemory) -> list[str]:
    """C that declares how many positions row r sees, and how many chunks these are."""
    root = request.root
    assert isinstance(root, CachedAttention)
    body = Body(request.plan, memory, request.kernel.targets)
    length = body.value(root.lengths, (variable("r", root.shape[0]),))
    return [
        "long length;",
        "{",
        *indent_lines([*body.lines, f"length = {length} < {root.most} ? {length} : {root.most};"]),
        "}",
        f"const long chunks = (length + {CHUNK - 1}) / {CHUNK};",
    ]


def _queries(request: KernelRequest, memory: FunctionMemory) -> list[str]:
    """C that declares the scaled queries of row r for key head g, and where its rows of the cache are."""
    root, plan = request.root, request.plan
    assert isinstance(root, CachedAttention)
    group = root.heads // root.key_heads * root.size
    r, g = variable("r", root.shape[0]), variable("g", root.key_heads)
    begin = Body(plan, memory, request.kernel.targets)
    start = begin.value(root.starts, (r, ZERO))

    def scale_query(body: Body, i: Index) -> str:
        query = body.value(root.queries, (r, ZERO, g * group + i))
        return f"queries[{i.c()}] = {query} * {literal(root.scale, 'float32')};"

    width = root.key_heads * root.size
    kind = STORED_TYPES[root.keys.dtype]
    lines = [
        "long start;",
        "{",
        *indent_lines([*begin.lines, f"start = {start};"]),
        "}",
    ]
    for name, node in (("keys", root.keys), ("values", root.values)):
        base = memory.pointer(plan.buffers[node])
        lines.append(f"const {kind} *const {name} = {base} + start * {width} + g * {root.size};")
    for name, node in zip(("key_scales", "value_scales"), root.scales or (), strict=False):
        base = memory.pointer(plan.buffers[node])
        at = f"start * {width // SCALED} + g * {root.size // SCALED}"
        lines.append(f"const uint16_t *const {name} = {base} + {at};")
    return [
        *lines,
        f"float queries[{group}];",
        *nested_loops("i", group, lambda: Body(plan, memory, request.kernel.targets), scale_query),
    ]


def _chunk_call(root: CachedAttention, part: str) -> str:
    """C that computes one chunk."""
    at = f"chunk * {CHUNK * root.key_heads * root.size}L"
    left = f"length - chunk * {CHUNK}"
    count = f"{left} < {CHUNK} ? {left} : {CHUNK}"
    scales = ""
    if root.scales is not None:
        scaled = f"chunk * {CHUNK * root.key_heads * root.size // SCALED}L"
        scales = f"key_scales + {scaled}, value_scales + {scaled}, "
    return f"{_name(root)}(queries, keys + {at}, values + {at}, {scales}{count}, {part});"


def _results(request: KernelRequest, memory: FunctionMemory) -> list[str]:
    """C that stores the results of row r and key head g."""
    root = request.root
    assert isinstance(root, CachedAttention)
    group = root.heads // root.key_heads
    r, g, h, i = (
        variable(name, extent)
        for name, extent in (("r", root.shape[0]), ("g", root.key_heads), ("h", group), ("i", root.size))
    )
    coords = (r, ZERO, (g * group + h) * root.size + i)
    value = "(row[i] * scale)"
    return [
        f"for (long h = 0; h < {group}; h++) {{",
        *indent_lines(
            [
                f"const float *const row = sums + h * {root.size}, total = sums[{group * (root.size + 1)} + h];",
                "const float scale = length > 0 ? 1.0f / total : 0.0f;",
                "#pragma GCC ivdep",
                f"for (long i = 0; i < {root.size}; i++) {{",
                *indent_lines(epilogue(request.kernel, request.plan, memory, coords, value)),
                "}",
            ]
        ),
        "}",
    ]


def _name(root: CachedAttention) -> str:
    capped = f"_capped_{np.float32(root.softcap).view(np.uint32):x}" if root.softcap else ""
    return f"attend_{root.heads // root.key_heads}_{root.size}_{root.key_heads}_{root.keys.dtype}{capped}"


def _helpers(root: CachedAttention, isa: Isa) -> dict[str, str]:
    """The functions of a chunk, each by itself in the library so that all that call it run the same instructions."""
    widening = {"float16": "nat_half_vector", "bfloat16": "nat_wide_vector", "int8": "nat_signed_vector"}
    name = widening.get(root.keys.dtype)
    helpers = {**reductions(isa.lanes), "nat_lane_sums": sum_lanes(isa.lanes)}
    if name is not None:
        helpers[name] = widen_stored(root.keys.dtype, isa)
    return {**helpers, _name(root): _functions(root, isa, f"{name}({{}})" if name else "load({})")}


def _functions(root: CachedAttention, isa: Isa, read: str) -> str:
    """C of one chunk, and of putting chunks together. `read` makes a vector of what lies at an address."""
    name, group = _name(root), root.heads // root.key_heads
    kind = STORED_TYPES[root.keys.dtype]
    tops, totals = group * root.size, group * (root.size + 1)
    halves = root.keys.dtype == "float16" and isa.lanes == 8 and isa.reads_halves
    attributes = 'noinline, target("f16c")' if halves else "noinline"
    return "\n".join(
        [
            f"static __attribute__(({attributes})) void {name}(const float *q, const {kind} *k, const {kind} *v,"
            f"{' const uint16_t *ks, const uint16_t *vs,' if root.scales else ''} long count, float *part) {{",
            f"  float scores[{group}][{CHUNK}] __attribute__((aligned(64)));",
            *_scores(root, isa, read),
            f"  for (long h = 0; h < {group}; h++) {{",
            "    float *const row = scores[h];",
            *_cap(root),
            f"    const float top = nat_top(row, {CHUNK});",
            "#pragma omp simd",
            f"    for (long j = 0; j < {CHUNK}; j++) row[j] = nat_exp_below(row[j] - top);",
            f"    part[{tops} + h] = top;",
            f"    part[{totals} + h] = nat_total(row, {CHUNK});",
            "  }",
            *_weighted_values(root, isa, read),
            "}",
            *_joining(root),
        ]
    )


def _scores(root: CachedAttention, isa: Isa, read: str) -> list[str]:
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
        lines += [f"      {{ const vec x = {read.format(f'row + {at}')}{_scale(root, at)};"]
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


def _cap(root: CachedAttention) -> list[str]:
    """C that caps the scores of a head. All places of a chunk are computed alike: those behind the keys stay -infinity."""
    if not root.softcap:
        return []
    cap, inverse = literal(root.softcap, "float32"), literal(1 / root.softcap, "float32")
    return [
        "#pragma omp simd",
        f"    for (long j = 0; j < {CHUNK}; j++) {{",
        f"      const float capped = {cap} * nat_tanh(row[j] * {inverse});",
        "      row[j] = j < count ? capped : -__builtin_inff();",
        "    }",
    ]


def _weighted_values(root: CachedAttention, isa: Isa, read: str) -> list[str]:
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
            lines += [f"      {{ const vec x = {read.format(f'row + {i * lanes}')}{_scale(root, i * lanes)};"]
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


def _scale(root: CachedAttention, at: int) -> str:
    """C that multiplies bytes from a place in a head on by their scale; nothing of a cache of floats."""
    return f" * wide_from_half(scale[{at // SCALED}])" if root.scales else ""


def _number(root: CachedAttention, stored: str) -> str:
    """C of one number of a cache."""
    return {"float16": "wide_from_half({})", "bfloat16": "nat_widen({})"}.get(root.keys.dtype, "{}").format(stored)


def _joining(root: CachedAttention) -> list[str]:
    """C that begins with no chunk, and puts one to those before it."""
    name, size, group = _name(root), root.size, root.heads // root.key_heads
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


CACHED_ATTENTION = Algorithm("cached attention", _applies, _generate)
