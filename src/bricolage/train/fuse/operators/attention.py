"""Dropout and attention. Masks come from each lane's own random stream, in the order in which training alone draws them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import TABLE, Call, Joined, Mask, Operand, align_tensor, only

if TYPE_CHECKING:
    import torch


@TABLE.rule("aten::dropout", "aten::feature_dropout")
def dropout(call: Call) -> Joined:
    """Each lane's own mask and rate: an element (a whole channel for `feature_dropout`) is 0, or divided by 1 - rate."""
    x, rate, training = call.args
    rates = tuple(number[0] for number in call.numbers) if call.numbers else (rate,) * call.lanes
    lanes, shape, order = call.lanes, x.shape, x.order
    if not training or not any(rates):
        return only("nothing", (lambda v: v) if x.stacked else (lambda v: v.expand(lanes, *v.shape)))
    if call.name == "aten::feature_dropout":
        shape, order = (*x.shape[:2], *[1] * (x.rank - 2)), ()
    return only("masks of each lane", lambda value, mask: value * mask, Mask(shape, rates, order, x.dtype))


@TABLE.rule("aten::scaled_dot_product_attention")
def attention(call: Call) -> Joined | None:
    """[lanes, batch, heads, length, width]: lanes and batch become one dimension of the same operator; with dropout it is written
    out, since its mask is each lane's own."""
    import torch

    q, k, v, mask, rate, causal = call.args[:6]
    scale = call.keywords.get("scale")
    if call.keywords.get("enable_gqa") or not (q.stacked and k.stacked and v.stacked) or q.rank < 3:
        return None
    if mask is not None and not isinstance(mask, Operand):
        return None
    rates = tuple(number[0] for number in call.numbers) if call.numbers else (rate,) * call.lanes
    kernel = torch.nn.functional.scaled_dot_product_attention
    length, source = q.shape[-2], k.shape[-2]
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    lanes = call.lanes

    def folding(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, given: torch.Tensor | None = None
    ) -> torch.Tensor:
        if given is not None and mask is not None and mask.stacked:
            given = align_tensor(given, mask, q.rank).expand(lanes, *q.shape[:-1], source).flatten(0, 1)
        elif given is not None and given.ndim == q.rank:
            given = given.expand(*q.shape[:-1], source).repeat(lanes, *[1] * (q.rank - 1))
        query, key, value = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        output = kernel(query, key, value, attn_mask=given, is_causal=causal, scale=scale)
        return output.view(lanes, *q.shape[:-1], v.shape[-1])

    def written(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(query * factor, key.mT)
        given = align_tensor(rest[0], mask, q.rank) if mask is not None else None
        if given is not None:
            scores = scores.masked_fill(~given, -math.inf) if given.dtype == torch.bool else scores + given
        if causal:
            scores = scores.masked_fill(torch.ones(length, source, dtype=torch.bool).tril().logical_not(), -math.inf)
        shares = torch.softmax(scores, -1)
        if any(rates):
            shares = shares * rest[-1]
        return torch.matmul(shares, value)

    if any(rates):
        return only("written out", written, Mask((*q.shape[:-1], source), rates, dtype=q.dtype))
    return Joined({"lanes in the batch": folding, "written out": written})
