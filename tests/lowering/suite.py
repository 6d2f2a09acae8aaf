"""The ONNX backend test suite as an oracle for the lowerings."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.conformance.suite import Case
from bricolage.conformance.suite import suite_cases as read
from bricolage.errors import UnsupportedOperator, UnsupportedType
from bricolage.lowering.common import PORTABLE, opset_for, subgraphs_of

Arrays = Sequence[np.ndarray[Any, Any]]
Run = Callable[[ir.Model, Arrays], Arrays]
"""Lower a model and run it once."""


@dataclass(frozen=True)
class Outcome:
    """`passed`, `refused` or `wrong`, and why."""

    name: str
    verdict: str
    reason: str = ""


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every node test."""
    return tuple(read(kinds=("node",)))


def sample(one_in: int) -> list[Case]:
    """A fixed part of the suite, chosen by the hash of the name."""
    return [c for c in cases() if zlib.crc32(c.name.encode()) % one_in == 0]


def host_inputs(graph: ir.Graph, imports: dict[str, int]) -> set[str]:
    """Graph inputs that decide shapes somewhere: a compiler must know them."""
    found: set[str] = set()
    for node in graph:
        entry = PORTABLE.find(node.domain, node.op_type, opset_for(node, imports))
        for i, value in enumerate(node.inputs):
            if entry is not None and value is not None and value.is_graph_input() and entry.is_host(i):
                found.add(value.name or "")
        for body in subgraphs_of(node).values():
            found |= host_inputs(body, imports)
    return found


def bind(model: ir.Model, values: dict[str, np.ndarray[Any, Any]]) -> None:
    """Turn graph inputs into initializers."""
    for value in list(model.graph.inputs):
        if value.name in values:
            value.const_value = ir.tensor(values[value.name], name=value.name)
            model.graph.inputs.remove(value)
            model.graph.register_initializer(value)


def check(case: Case, run: Run, *, known_shapes: bool, loose: bool = False) -> Outcome:
    """Run one case. With `known_shapes`, inputs that decide shapes become initializers first.

    `loose` compares values only: the reference computes in float64 where the case says float32.
    """
    if not all(isinstance(value, np.ndarray) for value in (*case.inputs, *case.outputs)):
        return Outcome(case.name, "refused", "values that are no tensors")
    model = ir.serde.deserialize_model(case.model)
    names = [v.name for v in model.graph.inputs]
    given = dict(zip(names, (np.asarray(x) for x in case.inputs), strict=False))
    if known_shapes:
        imports = dict(model.graph.opset_imports)
        bound = host_inputs(model.graph, imports)
        bind(model, {n: given.pop(n) for n in names if n in bound})
    try:
        actual = run(model, list(given.values()))
    except (UnsupportedOperator, UnsupportedType) as error:
        return Outcome(case.name, "refused", str(error))
    except Exception as error:
        return Outcome(case.name, "wrong", f"{type(error).__name__}: {error}")
    wrong = difference(actual, [np.asarray(e) for e in case.outputs], case, loose)
    return Outcome(case.name, "wrong", wrong) if wrong else Outcome(case.name, "passed")


def tolerances(expected: np.ndarray[Any, Any], case: Case, loose: bool) -> tuple[float, float]:
    """(rtol, atol): the case's own, but at least the last two digits of the type.

    The order of roundings is not specified, and the expected values themselves were computed in the case's type, so an
    element may be off by the last digits of the largest one.
    """
    if expected.dtype.kind in "fVc":
        digits = 4 * float(ml_dtypes.finfo(expected.real.dtype).eps)
        magnitude = np.abs(expected.astype(np.complex128))
        largest = float(np.max(magnitude, where=np.isfinite(magnitude), initial=0.0))
        return max(case.rtol, digits), max(case.atol, digits * largest)
    # In float64 a value just beside a rounding boundary may fall on its other side.
    step = 1.0 if loose and "quantize" in case.name else 0.0
    return case.rtol, max(case.atol, step)


def difference(actual: Arrays, expected: Arrays, case: Case, loose: bool) -> str:
    """What is wrong with the outputs, empty when nothing is."""
    if len(actual) != len(expected):
        return f"{len(actual)} outputs instead of {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a.shape != e.shape:
            return f"output {i} has shape {a.shape} instead of {e.shape}"
        if not loose and a.dtype != e.dtype:
            return f"output {i} has type {a.dtype} instead of {e.dtype}"
        if loose and (a.dtype.kind in "fV") != (e.dtype.kind in "fV") and e.dtype.kind != a.dtype.kind:
            return f"output {i} has kind {a.dtype} instead of {e.dtype}"
        wide = np.complex128 if e.dtype.kind == "c" else np.float64
        left, right = a.astype(wide), e.astype(wide)
        rtol, atol = tolerances(e, case, loose)
        if not np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=True):
            finite = np.isfinite(left) & np.isfinite(right)
            gap = np.max(np.abs(left - right)[finite]) if finite.any() else np.nan
            return f"output {i} differs by up to {gap}"
    return ""
