"""Operators of the domain `com.microsoft`, which Microsoft's exporters, Olive and ONNX Runtime's optimiser write.

What each computes is documented in docs/ContribOperators.md of microsoft/onnxruntime, at #com.microsoft.<name>; where that leaves
something open, it is what ONNX Runtime 1.31 computes on the processor, with which the tests compare.
"""

from bricolage.lowering.operators.contributed import (
    activation,
    attention,
    convolution,
    grouped_attention,
    matmul,
    normalization,
    quantization,
    recurrent,
)

__all__ = [
    "activation",
    "attention",
    "convolution",
    "grouped_attention",
    "matmul",
    "normalization",
    "quantization",
    "recurrent",
]
