"""Equality saturation of ONNX graphs with the rules of the catalogue."""
