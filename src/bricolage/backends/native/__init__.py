"""bricolage's own engine: tensors → fused kernels → C → a library for exactly one region (docs/native-engine.md).

Read in this order: `tensors` (the representation), `lowering` (from ONNX), `fusion` (the plan of kernels), `indexing`, `loops`
and `contraction` (their C), `library` (all of it together), `toolchain`, `engine`.
"""
