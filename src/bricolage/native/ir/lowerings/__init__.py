"""From ONNX operators to tensors: one lowering for each operator that the engine computes, in one file for each family."""

from bricolage.native.ir.lowerings import (
    block_weights,
    contractions,
    decompositions,
    elementwise,
    movement,
    quantisation,
    reductions,
    resize,
)
from bricolage.native.ir.lowerings.elementwise import converted
from bricolage.native.ir.lowerings.lowering_context import LOWERINGS, NoLowering, OpContext
from bricolage.native.ir.lowerings.views import pointwise
from bricolage.native.ir.tensors import Node

__all__ = [
    "LOWERINGS",
    "NoLowering",
    "OpContext",
    "block_weights",
    "contractions",
    "converted",
    "decompositions",
    "elementwise",
    "lowered",
    "movement",
    "pointwise",
    "quantisation",
    "reductions",
    "resize",
]


def lowered(op: OpContext) -> tuple[Node, ...]:
    """What an operator computes: by its own lowering, or by the definition that the libraries share where that does not take its
    form (computed weights, other types, more outputs).

    Raises:
        NoLowering: neither takes it.
    """
    if op.op_type not in LOWERINGS:
        raise NoLowering(f"no rule for {op.op_type}")
    own = LOWERINGS[op.op_type]
    try:
        results = _listed(own(op))
        if len(results) < len(op.shapes):
            raise NoLowering(f"{op.op_type} with {len(op.shapes)} outputs")
        return results
    except NoLowering as reason:
        if own is decompositions.decomposed:
            raise
        try:
            return _listed(decompositions.decomposed(op))
        except NoLowering:
            raise reason from None


def _listed(found: Node | tuple[Node, ...]) -> tuple[Node, ...]:
    return found if isinstance(found, tuple) else (found,)
