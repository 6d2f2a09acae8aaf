"""Maxima and minima: commutative, associative, idempotent, max(x + z, y + z) = max(x, y) + z, and min(x) = -max(-x).

The maximum of a set is the set's mean plus a random function of the members' distances from it, and a maximum of maxima is
that of the union. Other properties of a real maximum are left out: it is one of its members, it distributes over minima,
and scaling by what is positive keeps the order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.rulemaking.proof.degree import VARIABLE
from bricolage.rulemaking.proof.field import Residues
from bricolage.rulemaking.proof.tensor import Extreme, FieldTensor, align


def pairwise(kind: str, a: FieldTensor, b: FieldTensor) -> FieldTensor:
    """Element by element, with broadcasting; `kind` is "max" or "min"."""
    a, b = align(a, b)
    members = [_members(kind, x) for x in (a, b)]
    shape = np.broadcast_shapes(*(m.shape[:-1] for m in members))
    joined = np.concatenate([np.broadcast_to(m, (*shape, m.shape[-1])) for m in members], -1)
    return _extreme(kind, joined, [a, b])


def over(kind: str, x: FieldTensor, axes: tuple[int, ...], keepdims: bool) -> FieldTensor:
    """Over axes of one tensor."""
    members = _members(kind, x)
    inner = [axis + 1 for axis in axes]
    kept = [axis for axis in range(members.ndim - 1) if axis not in inner]
    joined = members.transpose((*kept, *inner, members.ndim - 1))
    shape = tuple(1 if axis in inner else members.shape[axis] for axis in range(members.ndim - 1))
    if not keepdims:
        shape = tuple(members.shape[axis] for axis in kept)
    count = int(np.prod([members.shape[axis] for axis in (*inner, members.ndim - 1)], dtype=np.int64))
    return _extreme(kind, joined.reshape((*shape, count)), [x])


def _members(kind: str, x: FieldTensor) -> Residues:
    if x.extreme is not None and x.extreme.kind == kind:
        return x.extreme.members
    return x.values[..., None]


def _extreme(kind: str, members: Residues, operands: Sequence[FieldTensor]) -> FieldTensor:
    if not members.shape[-1]:
        raise ValueError("the maximum of nothing")
    point = operands[0].point
    field = point.field
    degree = operands[0].degree
    for x in operands[1:]:
        degree = degree.either(x.degree)
    if point.order is not None:
        ranks = point.order.ranks(point, members)
        chosen = ranks.argmax(-1) if kind == "max" else ranks.argmin(-1)
        point.functions.add(f"{kind} of ordered numbers")
        return FieldTensor(point, np.take_along_axis(members, chosen[..., None], -1)[..., 0], degree)
    members = np.sort(members, -1)
    repeated = np.zeros(members.shape, bool)
    repeated[..., 1:] = members[..., 1:] == members[..., :-1]
    # What occurs once is moved to the front; the rest of a row repeats its first member.
    members = np.sort(np.where(repeated, np.iinfo(np.int64).max, members), -1)
    counts = (~repeated).sum(-1)
    width = int(counts.max()) if counts.size else 1
    members = members[..., :width]
    absent = np.arange(width) >= counts[..., None]
    members = np.where(absent, members[..., :1], members)

    point.count(kind, (members.size + counts.size) // len(members), [degree.summed(width + 1), VARIABLE])
    last = (members.ndim - 1,)
    total = field.sum(np.where(absent, 0, members), last)
    mean = field.multiply(total, field.inverse(counts[..., None]))
    distances = field.subtract(members, mean) if kind == "max" else field.subtract(mean, members)
    marks = np.where(absent, 0, point.function("member of a maximum", distances))
    above = point.function("maximum", field.sum(marks, last))
    extreme = field.add(mean, above) if kind == "max" else field.subtract(mean, above)
    values = np.where(counts == 1, members[..., 0], extreme[..., 0])
    degree = degree.summed(width)
    return FieldTensor(point, values, degree.plus(VARIABLE), extreme=Extreme(kind, members))
