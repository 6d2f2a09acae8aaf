"""The operator graph: numbered operators over `onnx_ir`, regions as bit-sets, work, identity, shape binding."""
