"""One rule for each ONNX operator that the engine computes, in one file for each family."""

from bricolage.backends.native.rules import contractions, elementwise, movement, reductions, resize, shared
from bricolage.backends.native.rules.call import RULES, Call, NoRule

__all__ = ["RULES", "Call", "NoRule", "contractions", "elementwise", "movement", "reductions", "resize", "shared"]
