"""bricolage's own engine: tensors → fused kernels → C → a library for exactly one region (docs/design/native-engine.md).

`ir` is what is computed (tensors, and the way from ONNX to them), `fuse` which of it together (the plan of kernels), `cpu` how
(their C, and the library compiled of it). `engine` is the backend, `tuning` the measured search for how kernels are configured.
"""
