"""Placement: which backend runs which region.

The searches here are pure functions of a `WorkGraph`: they know nothing of ONNX, of backends or of clocks, so the same
code can place operators on backends, and later work on devices and jobs.
"""
