"""Models in integers, as standard ONNX files: calibration, scales, where QuantizeLinear and DequantizeLinear stand, and what that
costs in accuracy on data that calibration has not seen. Nothing here knows backends or measures time."""
