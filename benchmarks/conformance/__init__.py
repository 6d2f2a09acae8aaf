"""`make conformance`: the whole ONNX backend suite through bricolage's ONNX backend, and through ONNX Runtime's in the same run.

`contestants` says who runs the cases, `processes` runs them apart from each other, `expected` knows what need not pass.
"""
