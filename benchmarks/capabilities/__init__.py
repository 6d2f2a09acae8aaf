"""The capability tables: the ONNX backend test suite on every backend, operator by operator.

`suite` reads the cases, `trials` varies them (opset, element type, constant or run-time parameters), `child` runs them
in processes that may die, `tabulate` makes the committed table, `document` writes `docs/capabilities.md`.
"""
