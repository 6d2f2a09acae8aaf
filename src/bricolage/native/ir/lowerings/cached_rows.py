"""Lowerings of operators on a cache of keys and values: what writes rows into it, and attention to rows of it.

A graph says so in standard operators, which every backend can run: ScatterND writes rows, Gather takes each query's rows, from one
on and as many as the longest sequence has, and Attention is told by `nonpad_kv_seqlen` how many of them count. Here nothing is
gathered, and the loops end where the rows that count do.
"""

from __future__ import annotations

import math

import numpy as np

from bricolage.native.ir.cache_nodes import SCALED, CachedAttention, RepeatedElements, ReplacedRows
from bricolage.native.ir.lowerings.elementwise import convert_node
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, lowering
from bricolage.native.ir.tensors import HALVES, Constant, Gather, Input, Node, Pointwise

_UNSUPPORTED = ("is_causal", "qk_matmul_output_mode", "softmax_precision")
"""Attributes of Attention that change what is computed, and that attention to a cache does not know."""
_LEFT, _RIGHT = "left_window_size", "right_window_size"


@lowering("ScatterND")
def scatter_rows(op: OpContext) -> Node:
    """ScatterND of whole rows into an input of the region.

    Raises:
        NoLowering: it is another one, which then is computed by comparing places.
    """
    (cache, narrowed), places, updates = _without_casts(op.tensor(0)), op.tensor(1), op.tensor(2)
    if (
        not isinstance(cache, Input)
        or narrowed
        or cache.dtype not in {"float32", "int8", *HALVES}
        or (len(cache.shape), len(places.shape), len(updates.shape), places.shape[-1]) != (2, 2, 2, 1)
        or op.get("reduction", "none") not in ("none", b"none")
    ):
        raise NoLowering("ScatterND of other things than rows")
    return ReplacedRows(cache.shape, cache.dtype, cache, places, convert_node(updates, cache.dtype))


@lowering("Attention")
def attend_to_cache(op: OpContext) -> Node:
    """Attention of one query for each sequence to gathered rows.

    Raises:
        NoLowering: it is another one, which then is the products that it is defined by.
    """
    queries, lengths = op.tensor(0), op.optional(6)
    if lengths is None or len(op.inputs) > 7 or any(op.optional(position) for position in (3, 4, 5)):
        raise NoLowering("Attention without a cache")
    if len(op.shapes) != 1 or len(queries.shape) != 3 or queries.shape[1] != 1 or not queries.elements:
        raise NoLowering("Attention of several queries in a sequence")
    if any(op.get(name) for name in _UNSUPPORTED) or op.get(_LEFT, -1) >= 0 or op.get(_RIGHT, -1) >= 0:
        raise NoLowering("Attention that hides other keys than those behind the last")
    (given_keys, key_scales), (given_values, value_scales) = (_without_scales(op.tensor(i)) for i in (1, 2))
    keys, starts, most = _gathered_rows(given_keys)
    values, value_starts, value_most = _gathered_rows(given_values)
    scales = _match_scales((keys, values), (key_scales, value_scales), starts, most)
    heads, key_heads = int(op.get("q_num_heads")), int(op.get("kv_num_heads"))
    width, size = queries.shape[-1], queries.shape[-1] // heads
    if starts is not value_starts or most != value_most or keys.shape != values.shape or keys.dtype != values.dtype:
        raise NoLowering("Attention to keys and values in different rows")
    if scales is not None and size % SCALED:
        raise NoLowering(f"Attention to heads of {size} bytes with scales for {SCALED}")
    if width != heads * size or keys.shape[-1] != key_heads * size or heads % key_heads or queries.dtype != "float32":
        raise NoLowering(f"Attention of {heads} heads to {key_heads} in rows of {width} and {keys.shape[-1]}")
    scale = op.get("scale")
    return CachedAttention(
        op.shape,
        "float32",
        queries=queries,
        keys=keys,
        values=values,
        starts=starts,
        lengths=lengths,
        heads=heads,
        key_heads=key_heads,
        scale=1 / math.sqrt(size) if scale is None else float(scale),
        most=most,
        scales=scales,
        softcap=max(0.0, float(op.get("softcap", 0.0))),
    )


def _without_scales(node: Node) -> tuple[Node, Node | None]:
    """Bytes that become numbers by scales in blocks of `SCALED`, and these; another node as it is."""
    if isinstance(node, Pointwise) and node.function == "dequantise":
        integers, zero, repeated = node.inputs
        whole = isinstance(zero, Constant) and not zero.array.any()
        if whole and isinstance(repeated, RepeatedElements) and repeated.times == SCALED:
            return integers, repeated.source
    return node, None


def _match_scales(
    caches: tuple[Node, Node], given: tuple[Node | None, Node | None], starts: Node, most: int
) -> tuple[Node, Node] | None:
    """Caches of the scales of caches of bytes, in the same rows; None where there are neither.

    Raises:
        NoLowering: bytes without scales, scales of other numbers, or scales in other rows.
    """
    matched: list[Node] = []
    for cache, scale in zip(caches, given, strict=True):
        if (cache.dtype == "int8") != (scale is not None):
            raise NoLowering("Attention to bytes that have no scales")
        if scale is not None:
            rows, scale_starts, scale_most = _gathered_rows(scale)
            fits = rows.shape == (cache.shape[0], cache.shape[1] // SCALED) and rows.dtype == "float16"
            if not fits or scale_starts is not starts or scale_most != most:
                raise NoLowering("Attention to bytes with scales in other rows")
            matched.append(rows)
    return (matched[0], matched[1]) if matched else None


def _gathered_rows(node: Node) -> tuple[Node, Node, int]:
    """A cache, the first row of each sequence [n, 1], and how many rows are gathered from there on.

    Raises:
        NoLowering: the node is something else.
    """
    gathered, narrowed = _without_casts(node)
    if isinstance(gathered, Gather) and gathered.axis == 0 and len(gathered.source.shape) == 2:
        cache, before = _without_casts(gathered.source)
        rows = gathered.indices
        # A type that the rows have already loses nothing of them.
        kept = narrowed | before <= {cache.dtype} and (cache.dtype in ("float32", "int8") or cache.dtype in HALVES)
        if kept and isinstance(cache, (Input, ReplacedRows)) and isinstance(rows, Pointwise) and rows.function == "add":
            starts, counted = sorted(rows.inputs, key=lambda each: isinstance(each, Constant))
            most = rows.shape[-1]
            if (
                isinstance(counted, Constant)
                and starts.shape == (rows.shape[0], 1)
                and np.array_equal(counted.array.reshape(-1), np.arange(most))
            ):
                return cache, starts, most
    raise NoLowering("Attention to something else than rows of a cache")


def _without_casts(node: Node) -> tuple[Node, set[str]]:
    """What a node was before it was widened and narrowed, and to which types it was narrowed."""
    narrowed = set[str]()
    while isinstance(node, Pointwise) and len(node.inputs) == 1:
        if node.function.startswith("narrow_"):
            narrowed.add(node.dtype)
        elif node.function != "cast" or node.dtype != "float32":
            break
        node = node.inputs[0]
    return node, narrowed
