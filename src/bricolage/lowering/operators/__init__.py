"""Every operator stated once over the vocabulary of `lowering.arrays`; importing this package fills the registry."""

from bricolage.lowering.operators import (
    attention,
    contributed,
    convolution,
    elementwise,
    indexing,
    losses,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    signal,
)

__all__ = [
    "attention",
    "contributed",
    "convolution",
    "elementwise",
    "indexing",
    "losses",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "signal",
]
