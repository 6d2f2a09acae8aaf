"""The work graph: numbered work and the tensors between it, regions as bit-sets, placements and their price. It knows no ONNX."""
