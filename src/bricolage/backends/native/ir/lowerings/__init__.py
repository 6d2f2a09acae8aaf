"""From ONNX operators to tensors: one lowering for each operator that the engine computes, in one file for each family."""

from bricolage.backends.native.ir.lowerings import (
    contractions,
    decompositions,
    elementwise,
    movement,
    reductions,
    resize,
)
from bricolage.backends.native.ir.lowerings.context import RULES, Call, NoRule

__all__ = [
    "RULES",
    "Call",
    "NoRule",
    "contractions",
    "decompositions",
    "elementwise",
    "movement",
    "reductions",
    "resize",
]
