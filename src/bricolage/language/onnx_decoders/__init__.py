"""Decoders in ONNX files with a cache as inputs and outputs, read back into descriptions."""
