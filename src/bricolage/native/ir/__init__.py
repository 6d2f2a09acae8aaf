"""What is computed: tensors defined by their elements, how indices follow from each other, and the way from ONNX to them.

Nothing here knows which tensors are computed together (`fuse`) or how (`cpu`).
"""
