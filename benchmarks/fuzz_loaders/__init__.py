"""Fuzzing of everything that reads what strangers wrote: artifacts, plans, ONNX models, inputs."""
