"""Inputs as users give them (numpy or torch, by position or by name) against what the model takes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bricolage.base.late_imports import require_dependency
from bricolage.errors import MissingInput, UnknownInput, WrongShape, WrongType
from bricolage.plan.plan import Plan, TensorSpec
from bricolage.work.values import ModelValue

_WIDENS = {"b": "b", "i": "iufV", "u": "iufV", "f": "fV"}
"""Kinds of numpy types whose values plain numbers of a kind may become ("V": bfloat16 and the 8-bit floats)."""


def describe_inputs(inputs: Sequence[TensorSpec]) -> str:
    """The inputs in one line, for messages."""
    return ", ".join(
        f"{spec.name} ({spec.dtype} {'×'.join(map(str, spec.shape)) if spec.shape else 'scalar'})" for spec in inputs
    )


def is_torch_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def overridden(defaults: Sequence[TensorSpec], arrays: Mapping[str, ModelValue]) -> dict[str, tuple[int, ...]]:
    """Shapes of what the arrays give in the place of defaults."""
    return {spec.name: np.shape(arrays[spec.name]) for spec in defaults if spec.name in arrays}


def by_position(plan: Plan) -> tuple[TensorSpec, ...]:
    """What a call may give by position: the inputs, with those that never change at their places."""
    specs = {spec.name: spec for spec in plan.defaults}
    every = list(plan.inputs)
    for fixed_input in sorted(plan.constants, key=lambda constant: constant.position):
        every.insert(fixed_input.position, specs[fixed_input.name])
    return tuple(every)


def by_position_and_name(
    inputs: Sequence[TensorSpec],
    args: Sequence[ModelValue],
    named: Mapping[str, ModelValue],
    every: Sequence[TensorSpec] = (),
) -> tuple[Sequence[ModelValue], Mapping[str, ModelValue]]:
    """What a call was given, where its only argument may hold all: a mapping of names to arrays, or (of a model with
    several inputs) a list or tuple of as many arrays. Arguments for `every` input, those that never change included, are taken
    in this order, and become named ones."""
    if len(args) == 1 and not named:
        (only,) = args
        if isinstance(only, Mapping):
            numbered = not any(isinstance(key, str) for key in only)  # no key names an input
            is_map = len(inputs) == 1 and (bool(inputs[0].keys) or (numbered and stands_for_map(inputs[0])))
            alone = is_map and inputs[0].name not in only
            return (args, {}) if alone else ((), only)
        if isinstance(only, list | tuple) and len(inputs) == len(only) > 1:
            return only, {}
        if isinstance(only, tuple) and len(every) == len(only) > len(inputs):
            args = only
    free = [spec.name for spec in every if spec.name not in named]
    if every and len(free) == len(args):
        return (), {**dict(zip(free, args, strict=True)), **named}
    return args, named


def as_array(value: ModelValue, spec: TensorSpec) -> ModelValue:
    """A numpy view of what is given for a tensor (no copy where memory allows). Plain numbers and nested lists of them have no type
    of their own: they become the input's type where that holds their values.

    Raises:
        WrongShape: a list whose parts differ in length.
    """
    if is_torch_tensor(value):
        value = value.detach().cpu()
        torch = sys.modules["torch"]
        if value.dtype == torch.bfloat16:
            with require_dependency("for tensors of bfloat16"):
                import ml_dtypes

            return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return value.numpy()
    if isinstance(value, np.ndarray):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        shape = "×".join(map(str, spec.shape or ())) or "scalar"
        raise WrongShape(name=spec.name, actual="of a list with parts of unequal length", expected=shape) from None
    return _cast_numbers(array, spec) if isinstance(value, int | float | list | tuple) else array


def _cast_numbers(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Plain numbers in the input's type, if it holds them; as they are otherwise, for the check to refuse."""
    if array.dtype.name == spec.dtype or array.dtype.kind not in _WIDENS:
        return array
    try:
        wanted = np.dtype(spec.dtype)
    except TypeError:
        with require_dependency(f"for tensors of {spec.dtype}"):
            import ml_dtypes

        wanted = np.dtype(getattr(ml_dtypes, spec.dtype, array.dtype))
    if wanted.kind not in _WIDENS[array.dtype.kind]:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(wanted)
    return converted if wanted.kind in "fV" or np.array_equal(converted, array) else array


def to_torch(value: ModelValue) -> ModelValue:
    """A torch tensor that shares memory with a numpy array; anything else stays."""
    torch = sys.modules["torch"]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def convert_to_maps(outputs: Sequence[TensorSpec], values: Iterable[ModelValue]) -> list[ModelValue]:
    """Outputs in order, those that the model returns as maps (`TensorSpec.keys`) as lists of a dict for each row."""
    return [_maps(spec.keys, value) if spec.keys else value for spec, value in zip(outputs, values, strict=True)]


def _maps(keys: Sequence[int | str], value: np.ndarray) -> list[dict[int | str, float]]:
    return [dict(zip(keys, row, strict=True)) for row in value.reshape(-1, len(keys)).tolist()]


def row(spec: TensorSpec, value: Mapping[int | str, float]) -> np.ndarray:
    """The array of an input that is a map of numbers: (1, columns), a column for each of the input's keys (`TensorSpec.keys`), 0
    for one that the map has not. Other keys count for nothing. Where the input has no keys, the map's values in the order of its.

    Raises:
        WrongType: a value that is no number.
    """
    try:
        numbers = [value.get(key, 0) for key in spec.keys] or [value[key] for key in sorted(value)]
        return np.asarray([numbers], dtype=spec.dtype)
    except (TypeError, ValueError):
        raise WrongType(name=spec.name, actual="a map with other values than numbers", expected=spec.dtype) from None


def stands_for_map(spec: TensorSpec) -> bool:
    """Whether a map may be given for an input: it has keys, or any number of columns in one row of numbers."""
    open_row = spec.shape is not None and len(spec.shape) == 2 and spec.shape[0] == 1 and isinstance(spec.shape[1], str)
    return bool(spec.keys) or (open_row and spec.dtype != "str")


def collect(
    inputs: Sequence[TensorSpec],
    args: Sequence[ModelValue],
    named: Mapping[str, ModelValue],
    defaults: Sequence[TensorSpec] = (),
) -> dict[str, ModelValue]:
    """Inputs by name as numpy arrays. Those with `defaults` are taken by name alone, and may be left out.

    Raises:
        MissingInput, UnknownInput: names or count do not fit.
        WrongType, WrongShape: an array does not fit its input.
    """
    if len(args) > len(inputs):
        raise UnknownInput(name=f"number {len(inputs) + 1}", expected=describe_inputs(inputs))
    values = {spec.name: value for spec, value in zip(inputs, args, strict=False)}
    accepted_names = {spec.name for spec in (*inputs, *defaults)}
    for name, value in named.items():
        if name not in accepted_names:
            optional = f"; optional: {describe_inputs(defaults)}" if defaults else ""
            raise UnknownInput(name=name, expected=describe_inputs(inputs) + optional)
        values[name] = value
    arrays: dict[str, ModelValue] = {}
    sizes: dict[str, int] = {}
    for spec in (*inputs, *(spec for spec in defaults if spec.name in values)):
        if spec.name not in values:
            raise MissingInput(name=spec.name, expected=describe_inputs(inputs))
        value = values[spec.name]
        if not is_tensor(spec):
            arrays[spec.name] = value
            continue
        array = row(spec, value) if isinstance(value, Mapping) and stands_for_map(spec) else as_array(value, spec)
        if isinstance(array, np.ndarray):
            array = expand_scalar(spec, array)
            _check(spec, array, sizes)
        arrays[spec.name] = array
    return arrays


def expand_scalar(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """A number without dimensions as what an input of one element takes: one number is one number."""
    if array.ndim == 0 and spec.shape and all(size == 1 for size in spec.shape):
        return array.reshape([1] * len(spec.shape))
    return array


def is_tensor(spec: TensorSpec) -> bool:
    """Whether an input is one, and no sequence, optional or map, whose types have brackets: "Sequence(Tensor(FLOAT))"."""
    return "(" not in spec.dtype


def _check(spec: TensorSpec, array: np.ndarray, sizes: dict[str, int]) -> None:
    if array.dtype.name != spec.dtype and not (spec.dtype in ("object", "str") and array.dtype.kind in "OUST"):
        raise WrongType(name=spec.name, actual=array.dtype.name, expected=spec.dtype)
    if spec.shape is None:
        return
    if len(array.shape) != len(spec.shape):
        raise _wrong_shape(spec, array)
    for size, dimension in zip(array.shape, spec.shape, strict=True):
        wanted = dimension if isinstance(dimension, int) else sizes.setdefault(dimension, size)
        if size != wanted:
            raise _wrong_shape(spec, array, "" if isinstance(dimension, int) else f" with {dimension}={wanted}")


def _wrong_shape(spec: TensorSpec, array: np.ndarray, also: str = "") -> WrongShape:
    shape = "×".join(map(str, spec.shape or ())) or "scalar"
    actual = "×".join(map(str, array.shape)) or "scalar"
    return WrongShape(name=spec.name, actual=actual, expected=shape + also)


def bound_dimensions(inputs: Sequence[TensorSpec], arrays: Mapping[str, ModelValue]) -> dict[str, int]:
    """Sizes of the symbolic dimensions, read off the given arrays."""
    return {
        dimension: int(size)
        for spec in inputs
        if spec.shape is not None and isinstance(arrays[spec.name], np.ndarray)
        for dimension, size in zip(spec.shape, arrays[spec.name].shape, strict=True)
        if isinstance(dimension, str)
    }
