"""A model of fixed shapes with its inputs, and the smaller ones next to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bricolage.frontends.checks import check_shapes
from bricolage.graph.graph import describe
from bricolage.graph.inference import infer

_SHAPE_LIKE = 8
"""Elements up to which a vector of integers is taken for sizes or axes, and not for data."""
_CHECK_S, _TICK_S = 20.0, 0.001
"""Longest time to see whether a model is valid, and how often one looks."""


@dataclass(frozen=True)
class FaultCase:
    """What may show a fault."""

    model: ir.Model
    inputs: Mapping[str, Any]
    """By name; numpy arrays, or lists of them."""

    @property
    def operators(self) -> int:
        """How many there are, what sub-graphs hold aside."""
        return len(self.model.graph)

    @property
    def elements(self) -> int:
        """Of all inputs and constants."""
        given = (np.size(value) for value in self.inputs.values())
        return sum(given) + sum(array.size for array in constants(self.model).values())


def constants(model: ir.Model) -> dict[str, np.ndarray]:
    """The initializers that have a value, by name."""
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}


def change_case(
    case: FaultCase, arrays: Mapping[str, np.ndarray], edit: Callable[[ir.Model], None] | None = None
) -> FaultCase | None:
    """The case with other inputs and constants and an edited model; None where it is not valid any more."""
    model = case.model.clone()
    for value in model.graph.inputs:
        name = value.name or ""
        if name in arrays and name not in model.graph.initializers:
            value.shape = ir.Shape(arrays[name].shape)
    for name, value in model.graph.initializers.items():
        if name in arrays:
            value.const_value = ir.tensor(arrays[name], name=name)
            value.shape = ir.Shape(arrays[name].shape)
    if edit is not None:
        edit(model)
    RemoveUnusedNodesPass()(model)
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    if not survives(lambda: _settle(model.clone())):
        return None
    _settle(model)
    names = {value.name for value in model.graph.inputs}
    return FaultCase(model, {name: arrays.get(name, value) for name, value in case.inputs.items() if name in names})


def _settle(model: ir.Model) -> None:
    """Infers the shapes of a model, if it is valid.

    Raises:
        UsageError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError: it is not.
    """
    check_shapes(model)
    infer(model)
    onnx.checker.check_model(ir.to_proto(model))


def survives(check: Callable[[], object]) -> bool:
    """Whether a check raises nothing, and neither ends its process nor hangs: some attributes make onnx's shape inference
    abort. It is run in a copy of this process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it complains of is no news
            check()
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + _CHECK_S
    while time.monotonic() < end:
        finished_pid, status = os.waitpid(child, os.WNOHANG)
        if finished_pid:
            return status == 0
        time.sleep(_TICK_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def fewer_outputs(case: FaultCase) -> Iterator[FaultCase | None]:
    """Without all outputs but one, then without one."""
    outputs = [value.name for value in case.model.graph.outputs]
    if len(outputs) > 1:
        for name in outputs:
            yield _with_outputs(case, [name])
        for name in outputs:
            yield _with_outputs(case, [other for other in outputs if other != name])


def _with_outputs(case: FaultCase, names: list[str | None]) -> FaultCase | None:
    def edit(model: ir.Model) -> None:
        kept = [value for value in model.graph.outputs if value.name in names]
        model.graph.outputs.clear()
        model.graph.outputs.extend(kept)
        RemoveUnusedNodesPass()(model)
        for value in [value for value in model.graph.inputs if not value.uses() and value not in kept]:
            model.graph.inputs.remove(value)

    return change_case(case, {}, edit)


def smaller_shapes(case: FaultCase) -> Iterator[FaultCase | None]:
    """Every dimension of a size made 1, 2, or half of it, wherever that size occurs, in what is given; then single ones, by
    themselves and in pairs."""
    arrays = {name: value for name, value in case.inputs.items() if isinstance(value, np.ndarray)} | constants(
        case.model
    )
    places = [
        (name, axis)
        for name, array in arrays.items()
        if not _shape_like(array)
        for axis in range(array.ndim)
        if array.shape[axis] > 1
    ]
    by_size: dict[int, list[tuple[str, int]]] = {}
    for name, axis in places:
        by_size.setdefault(arrays[name].shape[axis], []).append((name, axis))
    for size in sorted(by_size, reverse=True):
        alike = by_size[size]
        pairs = [[a, b] for i, a in enumerate(alike) for b in alike[i + 1 :]]
        for target in sorted({1, 2, size // 2}):
            for chosen in ([alike] if len(alike) > 2 else []) + pairs + [[place] for place in alike]:
                if 0 < target < size:
                    yield change_case(case, _cut(arrays, chosen, size, target))


def _cut(
    arrays: Mapping[str, np.ndarray], places: list[tuple[str, int]], size: int, target: int
) -> dict[str, np.ndarray]:
    """The first `target` places along some axes; the same number in shapes that a model computes with."""
    cut_arrays: dict[str, np.ndarray] = {}
    for name, axis in places:
        array = cut_arrays.get(name, arrays[name])
        cut_arrays[name] = np.ascontiguousarray(np.take(array, range(target), axis))
    for name, array in arrays.items():
        if _shape_like(array) and (array == size).any():
            cut_arrays[name] = np.where(array == size, target, array).astype(array.dtype)
    return cut_arrays


def _shape_like(array: np.ndarray) -> bool:
    return array.dtype == np.int64 and array.ndim == 1 and array.size <= _SHAPE_LIKE


def simpler_values(case: FaultCase) -> Iterator[FaultCase | None]:
    """Inputs and constants that are zero, or one, everywhere, or that have one decimal."""
    arrays = {name: value for name, value in case.inputs.items() if isinstance(value, np.ndarray)} | constants(
        case.model
    )
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu" or _shape_like(array):
            continue
        simple = [np.zeros_like(array), np.ones_like(array)]
        if array.dtype.kind == "f":
            simple.append(np.round(array, 1))
        for other in simple:
            if np.array_equal(other, array, equal_nan=array.dtype.kind == "f"):
                break
            yield change_case(case, {name: other})


def simpler_attributes(case: FaultCase) -> Iterator[FaultCase | None]:
    """Operators without one of their attributes, or with ones and zeros in it."""
    for number, node in enumerate(case.model.graph):
        for name, attribute in node.attributes.items():
            yield change_case(case, {}, _without(number, name))
            plain: list[object] = []
            match attribute.type, attribute.value:
                case ir.AttributeType.INT, int(value) if value not in (0, 1):
                    plain = [1, 0]
                case ir.AttributeType.FLOAT, float(value) if value not in (0.0, 1.0):
                    plain = [1.0, 0.0]
                case ir.AttributeType.INTS, values if any(value not in (0, 1) for value in values):
                    plain = [[1] * len(values), [0] * len(values)]
            for other in plain:
                yield change_case(case, {}, _with(number, name, other))


def _without(number: int, name: str) -> Callable[[ir.Model], None]:
    def edit(model: ir.Model) -> None:
        model.graph[number].attributes.pop(name)

    return edit


def _with(number: int, name: str, value: object) -> Callable[[ir.Model], None]:
    def edit(model: ir.Model) -> None:
        old = model.graph[number].attributes[name]
        model.graph[number].attributes[name] = ir.Attr(name, old.type, value)

    return edit


def describe_inputs(case: FaultCase) -> list[str]:
    """Names, types and sizes, for people."""
    return [str(describe(value)) for value in case.model.graph.inputs]
