"""The capability tables: the ONNX backend test suite on every backend, operator by operator.

`bricolage.conformance` reads and varies the cases, `bricolage.measure.conformance_trials` runs them in processes that may die; here
`tabulate` makes the committed table, `document` writes `docs/reference/capabilities.md`.
"""
