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

__all__ = ["Call", "Joined", "Operand", "joined"]


def joined(call: Call) -> Joined:
    """How a call is computed for all lanes."""
    rule = TABLE.rules.get(call.name)
    found = rule(call) if rule is not None else None
    if found is None and rule is None and acts_elementwise(call):
        found = pointwise(call)
    return found if found is not None else general(call)
