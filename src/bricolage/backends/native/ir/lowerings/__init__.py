"""From ONNX operators to tensors: one lowering for each operator that the engine computes, in one file for each family."""

from bricolage.backends.native.ir.lowerings import (
    contractions,
    decompositions,
    elementwise,
    movement,
    reductions,
    resize,
)
from bricolage.backends.native.ir.lowerings.context import LOWERINGS, NoLowering, OpContext

__all__ = [
    "LOWERINGS",
    "NoLowering",
    "OpContext",
    "contractions",
    "decompositions",
    "elementwise",
    "movement",
    "reductions",
    "resize",
]
