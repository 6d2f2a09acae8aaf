"""From ONNX operators to tensors: one lowering for each operator that the engine computes, in one file for each family."""

from bricolage.native.ir.lowerings import (
    block_weights,
    cached_rows,
    contractions,
    decompositions,
    elementwise,
    movement,
    quantisation,
    reductions,
    resize,
)
from bricolage.native.ir.lowerings.elementwise import convert_node
from bricolage.native.ir.lowerings.lowering_context import LOWERINGS, NoLowering, OpContext
from bricolage.native.ir.lowerings.views import pointwise
from bricolage.native.ir.tensors import Node

__all__ = [
    "LOWERINGS",
    "NoLowering",
    "OpContext",
    "block_weights",
    "cached_rows",
    "contractions",
    "convert_node",
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
    rule = LOWERINGS[op.op_type]
    try:
        results = _wrap_in_tuple(rule(op))
        if len(results) < len(op.shapes):
            raise NoLowering(f"{op.op_type} with {len(op.shapes)} outputs")
        return results
    except NoLowering as reason:
        if rule is decompositions.decompose_operator:
            raise
        try:
            return _wrap_in_tuple(decompositions.decompose_operator(op))
        except NoLowering:
            raise reason from None


def _wrap_in_tuple(found: Node | tuple[Node, ...]) -> tuple[Node, ...]:
    return found if isinstance(found, tuple) else (found,)
