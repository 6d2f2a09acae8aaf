"""Is a rewritten model valid, and does it give the same answer?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from bricolage.graph.prepare import prepare, symbolic_dimensions
from bricolage.verify.bound import FACTOR, rounding_errors
from bricolage.verify.compare import relative_error
from bricolage.verify.inputs import draw_inputs
from bricolage.verify.reference import Evaluator

BOUND = 1e-6


def check_valid(model: ir.Model) -> None:
    """The checker accepts the model, names are unique, and its edges are consistent."""
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    seen: set[str] = set()
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if value.name:
                assert value.name not in seen, f"two values are called {value.name}"
                seen.add(value.name)


def check_equal(
    before: ir.Model,
    after: ir.Model,
    bound: float = BOUND,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    attempts: int = 2,
    own_error: bool = False,
) -> None:
    """Both models have the same interface, the second is valid, and they give the same answers in float64 under several
    random inputs. Symbolic dimensions get sizes, 3, 4 and so on where none are given. With `own_error`, a second model may
    be as far from the first as verification allows: four times what rounding does to the first."""
    assert [(v.name, v.dtype) for v in before.graph.outputs] == [(v.name, v.dtype) for v in after.graph.outputs]
    assert [v.name for v in before.graph.inputs] == [v.name for v in after.graph.inputs]
    check_valid(after)
    sizes = sizes or {name: 3 + i for i, name in enumerate(symbolic_dimensions(before))}
    first, second = (prepare(model, sizes).model for model in (before, after))
    evaluators = Evaluator(first), Evaluator(second)
    for attempt in range(attempts):
        inputs = draw_inputs(first, seed, attempt)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            named, found = evaluators[0](inputs), list(evaluators[1](inputs).values())
            expected = list(named.values())
            rounding = rounding_errors(first, inputs, named, 2).values() if own_error else [0.0]
        error = relative_error(found, expected)
        assert error <= max(bound, FACTOR * max(rounding)), f"the error is {error:.2e}"
        assert [np.shape(a) for a in found] == [np.shape(a) for a in expected]
