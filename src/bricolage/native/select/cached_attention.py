"""Attention to rows of a cache: one pass over a key head's rows serves all query heads that share it.

Rows go by chunks of `CHUNK` positions. A chunk has scores, their largest, exponentials, their sum, and the sum of values by these;
it is then put together with what the chunks before it have, by the larger of both largest (Milakov & Gimelshein, "Online normalizer
calculation for softmax", 2018). Chunks begin at the row's own start and are put together one after another. So a row's bits depend
neither on other rows nor on the threads.

Rows of one sequence that follow one another form tiles, for which a chunk is read once.

Where there are fewer pairs of a tile and a key head than keep the threads busy, these share the chunks as well; what each chunk
found waits in memory until they have met (as Flash-Decoding does: Dao et al., 2023).
"""

from __future__ import annotations

from bricolage.native.cpu.emit import Body, epilogue, indent_lines, literal
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.nested_loops import nested_loops
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.ir.cache_nodes import CHUNK, SCALED, CachedAttention
from bricolage.native.ir.index_expressions import ZERO, Index, variable
from bricolage.native.ir.tensors import STORED_TYPES
from bricolage.native.select.algorithm import Algorithm, KernelRequest
from bricolage.native.select.attention_chunks import chunk_functions, count_part_floats, name_chunk_function
from bricolage.native.select.attention_tiles import LEAST_ROWS, count_tile_rows, count_work_floats, tile_function

_BUSY = 6
"""Pieces for each thread with which all are busy until the end."""
_SHARING_TILE = 16
"""Rows to which tiles shrink before threads share chunks."""
_MOST_PARTS = 32 << 20
"""Bytes of what waits in memory, at most."""
_TYPICAL = 256
"""Positions for which the work of a piece is estimated: how many there will be is not known."""


def _applies(request: KernelRequest) -> bool:
    return isinstance(request.root, CachedAttention)


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    root, target = request.root, request.target
    assert isinstance(root, CachedAttention)
    tile, split = _divide_work(root, target.isa, target.threads)
    if split == 1:
        return [_whole_phase(request, weights, tile)]
    return [_split_phase(request, weights, tile, split), _joining_phase(request, weights)]


def _divide_work(root: CachedAttention, isa: Isa, threads: int) -> tuple[int, int]:
    """Rows of a tile, and into how many runs of chunks threads share each; tiles shrink first."""
    tile, busy = count_tile_rows(root, isa), _BUSY * threads if threads > 1 else 1
    waits = _shared_bytes(root) <= _MOST_PARTS
    while tile >= 2 * (_SHARING_TILE if waits else LEAST_ROWS) and _count_tiles(root, tile) < busy:
        tile //= 2
    return tile, -(-busy // _count_tiles(root, tile)) if waits else 1


def _count_tiles(root: CachedAttention, tile: int) -> int:
    """Pairs of a tile and a key head."""
    return -(-root.shape[0] // tile) * root.key_heads


def _whole_phase(request: KernelRequest, weights: ConstantBlock, tile: int) -> Phase:
    """All chunks of a tile and key head by one thread."""
    root, isa = request.root, request.target.isa
    assert isinstance(root, CachedAttention)
    memory = FunctionMemory(weights)
    part = count_part_floats(root)
    floats = tile * part
    work = [
        *_rows(request, memory, tile),
        f"float *const parts = work + {count_work_floats(root, isa, tile)}, *const sums = parts + {floats};",
        f"for (long i = 0; i < rows; i++) {name_chunk_function(root)}_clear(sums + i * {part});",
        _tile_call(root, tile, f"parts, {part}, 0, sums"),
        "for (long i = 0; i < rows; i++) {",
        *indent_lines(["const long r = first + i;", *_results(request, memory, f"sums + i * {part}", "lengths[i]")]),
        "}",
    ]
    share = ParallelRange(_count_tiles(root, tile), tile * _work(root))
    scratch = 4 * (_own_floats(root, isa, tile) + 2 * floats)
    helpers = _helpers(root, isa, tile)
    return Phase(_over_tiles(root, work, tile), share, memory.operands, thread_scratch=scratch, helpers=helpers)


def _split_phase(request: KernelRequest, weights: ConstantBlock, tile: int, split: int) -> Phase:
    """Chunks of a tile and key head in `split` runs."""
    root, isa = request.root, request.target.isa
    assert isinstance(root, CachedAttention)
    memory = FunctionMemory(weights)
    part, most = count_part_floats(root), -(-root.most // CHUNK)
    work = [
        *_rows(request, memory, tile, split),
        f"float *const parts = {_shared_parts(root, 'first')};",
        _tile_call(root, tile, f"parts, {root.key_heads * most * part}L, {part}, 0"),
    ]
    pieces = _count_tiles(root, tile) * split
    share = ParallelRange(pieces, tile * _work(root) // split, most=-(-pieces // request.target.threads))
    return Phase(
        _over_tiles(root, work, tile, split),
        share,
        memory.operands,
        thread_scratch=4 * _own_floats(root, isa, tile),
        shared_scratch=_shared_bytes(root),
        helpers=_helpers(root, isa, tile),
    )


def _joining_phase(request: KernelRequest, weights: ConstantBlock) -> Phase:
    """What runs of chunks have found, put together for each row and key head."""
    root = request.root
    assert isinstance(root, CachedAttention)
    memory = FunctionMemory(weights)
    part, name = count_part_floats(root), name_chunk_function(root)
    work = [
        f"const long r = o / {root.key_heads}, g = o % {root.key_heads};",
        "long length;",
        *_length(request, memory),
        f"const long chunks = (length + {CHUNK - 1}) / {CHUNK};",
        f"float *const parts = {_shared_parts(root, 'r')};",
        f"float sums[{part}];",
        f"{name}_clear(sums);",
        f"for (long chunk = 0; chunk < chunks; chunk++) {name}_join(sums, parts + chunk * {part});",
        *_results(request, memory, "sums", "length"),
    ]
    share = ParallelRange(root.shape[0] * root.key_heads, 64 * part)
    lines = ["for (long o = begin; o < end; o++) {", *indent_lines(work), "}"]
    helpers = chunk_functions(root, request.target.isa)
    return Phase(lines, share, memory.operands, shared_scratch=_shared_bytes(root), helpers=helpers)


def _shared_parts(root: CachedAttention, row: str) -> str:
    """C of where the parts of a row and key head wait."""
    return f"(float *)shared + ({row} * {root.key_heads} + g) * {-(-root.most // CHUNK) * count_part_floats(root)}L"


def _shared_bytes(root: CachedAttention) -> int:
    """Of the parts of all rows and key heads."""
    return root.shape[0] * root.key_heads * -(-root.most // CHUNK) * count_part_floats(root) * 4


def _own_floats(root: CachedAttention, isa: Isa, tile: int) -> int:
    """Numbers of a thread's own memory: a tile's queries, and what it works in."""
    return tile * root.heads // root.key_heads * root.size + count_work_floats(root, isa, tile)


def _helpers(root: CachedAttention, isa: Isa, tile: int) -> dict[str, str]:
    return {**chunk_functions(root, isa), **tile_function(root, isa, tile)}


def _work(root: CachedAttention) -> int:
    return 2 * min(root.most, _TYPICAL) * root.size * root.heads // root.key_heads


def _over_tiles(root: CachedAttention, work: list[str], tile: int, split: int = 1) -> list[str]:
    """C of a loop over tiles and key heads, each `split` times."""
    at = f"o / {split}" if split > 1 else "o"
    rows = root.shape[0]
    head = [
        f"const long first = {at} / {root.key_heads} * {tile}, g = {at} % {root.key_heads};",
        f"const long rows = {rows} - first < {tile} ? {rows} - first : {tile};",
    ]
    return ["for (long o = begin; o < end; o++) {", *indent_lines([*head, *work]), "}"]


def _length(request: KernelRequest, memory: FunctionMemory) -> list[str]:
    """C that sets how many positions row r sees."""
    root = request.root
    assert isinstance(root, CachedAttention)
    body = Body(request.plan, memory, request.kernel.targets)
    length = body.value(root.lengths, (variable("r", root.shape[0]),))
    return ["{", *indent_lines([*body.lines, f"length = {length} < {root.most} ? {length} : {root.most};"]), "}"]


def _rows(request: KernelRequest, memory: FunctionMemory, tile: int, split: int = 1) -> list[str]:
    """C that declares what a tile's rows see, which chunks of it are computed here, their scaled queries for key head g, and where
    its rows of the cache are."""
    root, plan = request.root, request.plan
    assert isinstance(root, CachedAttention)
    group = root.heads // root.key_heads * root.size
    r, g = variable("r", root.shape[0]), variable("g", root.key_heads)
    begin = Body(plan, memory, request.kernel.targets)
    start = begin.value(root.starts, (r, ZERO))

    def scale_query(body: Body, i: Index) -> str:
        query = body.value(root.queries, (r, ZERO, g * group + i))
        return f"queries[i * {group} + {i.c()}] = {query} * {literal(root.scale, 'float32')};"

    lines = [f"float *const queries = (float *)own, *const work = queries + {tile * group};"]
    for name, node in (("keys", root.keys), ("values", root.values)):
        base = memory.pointer(plan.buffers[node])
        lines.append(f"const {STORED_TYPES[root.keys.dtype]} *const {name} = {base} + g * {root.size};")
    for name, node in zip(("key_scales", "value_scales"), root.scales or (), strict=False):
        lines.append(
            f"const uint16_t *const {name} = {memory.pointer(plan.buffers[node])} + g * {root.size // SCALED};"
        )
    each = [
        "const long r = first + i;",
        "long length;",
        *_length(request, memory),
        "{",
        *indent_lines([*begin.lines, f"starts[i] = {start};"]),
        "}",
        f"const long chunks = (length + {CHUNK - 1}) / {CHUNK};",
        "lengths[i] = length;",
        f"begins[i] = chunks * (o % {split}) / {split};",
        f"ends[i] = chunks * (o % {split} + 1) / {split};",
        "if (begins[i] == ends[i]) continue;",
        *nested_loops("n", group, lambda: Body(plan, memory, request.kernel.targets), scale_query),
    ]
    return [
        *lines,
        f"long starts[{tile}], begins[{tile}], ends[{tile}], lengths[{tile}];",
        "for (long i = 0; i < rows; i++) {",
        *indent_lines(each),
        "}",
    ]


def _tile_call(root: CachedAttention, tile: int, results: str) -> str:
    """C that computes the chunks of a tile."""
    scales = ", key_scales, value_scales" if root.scales else ""
    name = f"{name_chunk_function(root)}_tile_{tile}"
    return f"{name}(queries, starts, begins, ends, lengths, rows, keys, values{scales}, work, {results});"


def _results(request: KernelRequest, memory: FunctionMemory, sums: str, length: str) -> list[str]:
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
                f"const float *const row = {sums} + h * {root.size}, total = ({sums})[{group * (root.size + 1)} + h];",
                f"const float scale = {length} > 0 ? 1.0f / total : 0.0f;",
                "#pragma GCC ivdep",
                f"for (long i = 0; i < {root.size}; i++) {{",
                *indent_lines(epilogue(request.kernel, request.plan, memory, coords, value)),
                "}",
            ]
        ),
        "}",
    ]


CACHED_ATTENTION = Algorithm("cached attention", _applies, _generate)
