"""bricolage's own engine: tensors → fused kernels → C → a library for exactly one region (docs/native-engine.md).

Read in this order: `tensors` (the representation), `lowering` and `rules` (from ONNX), `fusion` (the plan of kernels),
`indexing`, `body`, `loops`, `products`, `panels`, `contraction`, `winograd` and `grouped` (their C), `library` (all of
it together), `toolchain`, `engine`.
"""
