"""Inputs as users give them (numpy or torch, by position or by name) against what the model takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bricolage.errors import MissingInput, UnknownInput, WrongShape, WrongType
from bricolage.plan.plan import TensorSpec


def describe(inputs: Sequence[TensorSpec]) -> str:
    """The inputs in one line, for messages."""
    return ", ".join(
        f"{spec.name} ({spec.dtype} {'×'.join(map(str, spec.shape)) if spec.shape else 'scalar'})" for spec in inputs
    )


def is_torch(value: object) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> Any:
    """A numpy view of a tensor (no copy where memory allows); sequences and strings stay as they are."""
    if is_torch(value):
        value = value.detach().cpu()
        torch = sys.modules["torch"]
        if value.dtype == torch.bfloat16:
            import ml_dtypes

            return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return value.numpy()
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return value  # a sequence of tensors
    return np.asarray(value)


def to_torch(value: Any) -> Any:
    """A torch tensor that shares memory with a numpy array; anything else stays."""
    torch = sys.modules["torch"]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def collect(inputs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by name as numpy arrays.

    Raises:
        MissingInput, UnknownInput: names or count do not fit.
        WrongType, WrongShape: an array does not fit its input.
    """
    expected = describe(inputs)
    if len(args) > len(inputs):
        raise UnknownInput(name=f"number {len(inputs) + 1}", expected=expected)
    values = {spec.name: value for spec, value in zip(inputs, args, strict=False)}
    known = {spec.name for spec in inputs}
    for name, value in named.items():
        if name not in known:
            raise UnknownInput(name=name, expected=expected)
        values[name] = value
    arrays: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for spec in inputs:
        if spec.name not in values:
            raise MissingInput(name=spec.name, expected=expected)
        value = values[spec.name]
        array = to_numpy(value) if _is_tensor(spec) else value
        arrays[spec.name] = array
        if isinstance(array, np.ndarray) and _is_tensor(spec):
            _check(spec, array, sizes)
    return arrays


def _is_tensor(spec: TensorSpec) -> bool:
    """Whether an input is one, and no sequence, optional or map, whose types are written with brackets."""
    return "(" not in spec.dtype


def _check(spec: TensorSpec, array: np.ndarray, sizes: dict[str, int]) -> None:
    if array.dtype.name != spec.dtype and not (spec.dtype in ("object", "str") and array.dtype.kind in "OUST"):
        raise WrongType(name=spec.name, actual=array.dtype.name, expected=spec.dtype)
    if spec.shape is None:
        return
    shape = "×".join(map(str, spec.shape)) or "scalar"
    actual = "×".join(map(str, array.shape)) or "scalar"
    if len(array.shape) != len(spec.shape):
        raise WrongShape(name=spec.name, actual=actual, expected=shape)
    for size, dimension in zip(array.shape, spec.shape, strict=True):
        wanted = dimension if isinstance(dimension, int) else sizes.setdefault(dimension, size)
        if size != wanted:
            also = "" if isinstance(dimension, int) else f" with {dimension}={wanted}"
            raise WrongShape(name=spec.name, actual=actual, expected=shape + also)


def dimensions(inputs: Sequence[TensorSpec], arrays: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of the symbolic dimensions, read off the given arrays."""
    return {
        dimension: int(size)
        for spec in inputs
        if spec.shape is not None and isinstance(arrays[spec.name], np.ndarray)
        for dimension, size in zip(spec.shape, arrays[spec.name].shape, strict=True)
        if isinstance(dimension, str)
    }
