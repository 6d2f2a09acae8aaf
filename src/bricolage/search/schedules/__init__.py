"""Schedules: when each task runs, on which device and how many cores; bounds on what any schedule takes. It knows no ONNX."""
