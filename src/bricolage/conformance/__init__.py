"""Conformance: the cases of the ONNX backend test suite, varied, and run on a backend as a region would be.

`suite` reads the cases, `trials` varies them (opset, element type, constant or run-time parameters), `attempt` runs them in
this process and compares. Capability tables are made of all of them (`benchmarks.capabilities`), the self-check of another
version of a backend of a few (`measure.selfcheck`); both run them in worker processes (`measure.conformance_trials`).
"""
