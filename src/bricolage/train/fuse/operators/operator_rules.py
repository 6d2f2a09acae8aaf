"""The rule for an operator's call."""

from __future__ import annotations

from bricolage.train.fuse.operators import (  # noqa: F401  (they register their rules)
    attention,
    convolution,
    linear_layers,
    losses,
    normalisation,
    pooling,
    recurrent,
    views_and_reductions,
)
from bricolage.train.fuse.operators.call import TABLE, Call, Joined, Operand
from bricolage.train.fuse.operators.general import acts_elementwise, general, pointwise

__all__ = ["Call", "Joined", "Operand", "join_lanes"]


def join_lanes(call: Call) -> Joined:
    """How a call is computed for all lanes."""
    rule = TABLE.rules.get(call.name)
    joined_call = rule(call) if rule is not None else None
    if joined_call is None and rule is None and acts_elementwise(call):
        joined_call = pointwise(call)
    return joined_call if joined_call is not None else general(call)
