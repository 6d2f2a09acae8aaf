"""Inputs that never change: from what the user says of them to defaults of the model, which no call overrides."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.base.codec import Json
from bricolage.base.options import Options
from bricolage.driver.given_samples import Arrays, GivenData
from bricolage.errors import BadOption, UnknownInput, UnusableSamples
from bricolage.graph.model_interface import give_defaults, interface, settle_defaults
from bricolage.graph.prepare import dimension_name, symbolic_dimensions
from bricolage.plan.constant_inputs import ConstantInput, same_value, words_of
from bricolage.plan.plan import TensorSpec
from bricolage.plan.planned_interface import default_specs, input_specs
from bricolage.runtime import signature
from bricolage.work.values import ModelValue

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def fix_inputs(
    model: ir.Model, options: Options, given: Mapping[str, ModelValue] | None, planned: Collection[str] = ()
) -> tuple[ConstantInput, ...]:
    """Makes defaults of a model's constant inputs, in place: those of `options`, and those that were `planned` so in the artifact
    that the model comes from. A value that the options do not say is that of the `given` inputs, else the model's default.

    Raises:
        UnknownInput: the model has no such input.
        WrongType, WrongShape: a given array, or the shape of a value, does not fit.
        BadOption: there is no value, or it is none that the input takes; or the input is no tensor of numbers.
    """
    defaults = interface(model).defaults
    specs = {spec.name: spec for spec in (*input_specs(model), *default_specs(model))}
    wanted = {**dict.fromkeys(planned), **options.constants}
    values: dict[str, np.ndarray] = {}
    for name, word in wanted.items():
        spec = _check_constant_input(name, specs, model, options)
        of_inputs = None if given is None or name not in options.constants else given.get(name)
        if word is not None:
            values[name] = fitting(spec, parse_array(word, spec))
        elif of_inputs is not None:
            values[name] = fitting(spec, of_inputs)
        elif name in defaults:
            values[name] = np.asarray(defaults[name].numpy())
        else:
            advice = f"Say which: --constant {name}=VALUE, or give inputs that have it (--input FILE.npz)"
            raise BadOption(option="--constant", value=name, advice=advice)
    _check_sizes(model, values, options)
    give_defaults(model, {name: ir.tensor(array, name=name) for name, array in values.items()})
    order = [value.name for value in model.graph.inputs if value.name not in defaults or value.name in values]
    return tuple(ConstantInput(name, order.index(name), words_of(array)) for name, array in values.items())


def fold_inputs(
    model: ir.Model, options: Options, given: Mapping[str, ModelValue] | None = None
) -> Mapping[str, ModelValue] | None:
    """Makes weights of a model's constant inputs, in place, so that it takes them no more; what is left of the `given` inputs.

    Raises:
        As `fix_inputs` and `without_constants`.
    """
    constants = fix_inputs(model, options, given)
    rest = without_constants(model, constants, given)
    settle_defaults(model, {}, only={constant.name for constant in constants})
    return rest


def without_constants(
    model: ir.Model, constants: Collection[ConstantInput], given: Mapping[str, ModelValue] | None
) -> Mapping[str, ModelValue] | None:
    """Inputs but for those that are constant; None where nothing else is given.

    Raises:
        BadOption: one of them has another value.
        WrongType, WrongShape: it does not fit.
    """
    if given is None or not constants:
        return given
    specs = {spec.name: spec for spec in default_specs(model)}
    for constant in constants:
        if constant.name in given:
            array = fitting(specs[constant.name], given[constant.name])
            if not same_value(array, np.asarray(interface(model).defaults[constant.name].numpy())):
                advice = f"The inputs given have {constant.name} = {words_of(array)}: give inputs of one value"
                raise BadOption(option="--constant", value=f"{constant.name}={constant.value}", advice=advice)
    names = {constant.name for constant in constants}
    return {name: array for name, array in given.items() if name not in names} or None


def data_without_constants(model: ir.Model, constants: Collection[ConstantInput], data: GivenData) -> GivenData:
    """Samples but for what is constant in all of them.

    Raises:
        UnusableSamples: one of them has another value.
    """
    rest = {option: _rest(model, constants, option, arrays) for option, arrays in data.named}
    return replace(data, calibrate=rest.get("--calibrate"), evaluate=rest.get("--evaluate"))


def _rest(model: ir.Model, constants: Collection[ConstantInput], option: str, arrays: Arrays) -> Arrays:
    kept = dict(arrays)
    for constant in constants:
        value = np.asarray(interface(model).defaults[constant.name].numpy())
        for name in [name for name in kept if constant.name in (name, name.rpartition(".")[0])]:
            rows = np.asarray(kept.pop(name)).reshape(-1, *value.shape) if value.size else ()
            for number, row in enumerate(rows):
                if not same_value(row.astype(value.dtype), value):
                    reason = (
                        f"'{constant.name}' of sample {number} is {words_of(row)}, and --constant says {constant.value}"
                    )
                    raise UnusableSamples(
                        option=option, reason=reason, expected=signature.describe_inputs(input_specs(model))
                    )
    return kept


def _check_constant_input(name: str, specs: Mapping[str, TensorSpec], model: ir.Model, options: Options) -> TensorSpec:
    """What the model says of an input that may be constant."""
    dimensions = symbolic_dimensions(model)
    if name not in specs and name in dimensions:
        advice = f"It is a dimension of input '{dimensions[name][0]}': give its size with --shape {name}=SIZE"
        raise BadOption(option="--constant", value=name, advice=advice)
    if name not in specs:
        raise UnknownInput(name=name, expected=signature.describe_inputs(list(specs.values())))
    if name in options.shapes and name not in dimensions:
        advice = "It is an input, whose value --constant gives; --shape gives sizes of dimensions"
        raise BadOption(option="--shape", value=name, advice=advice)
    spec = specs[name]
    if not may_be_constant(spec):
        advice = f"It is {'a map' if spec.keys else spec.dtype}; tensors of numbers and of truth values may be constant"
        raise BadOption(option="--constant", value=name, advice=advice)
    return spec


def may_be_constant(spec: TensorSpec) -> bool:
    """Whether an input is a tensor of numbers or of truth values."""
    return not spec.keys and (spec.dtype == "bool" or _is_integer(spec) or _is_float(spec))


def _check_sizes(model: ir.Model, values: Mapping[str, np.ndarray], options: Options) -> None:
    """Whether the shapes of values agree with each other and with the sizes asked for.

    Raises:
        BadOption
    """
    sizes: dict[str, tuple[int, ...]] = dict(options.shapes)
    for value in model.graph.inputs:
        name = value.name or ""
        if name not in values or name in interface(model).defaults:
            continue
        for axis, (dimension, size) in enumerate(zip(value.shape or (), values[name].shape, strict=False)):
            if isinstance(dimension, int):
                continue
            dimension_is = dimension_name(value, axis)
            if sizes.setdefault(dimension_is, (size,)) != (size,):
                other = ",".join(map(str, sizes[dimension_is]))
                advice = f"Its dimension '{dimension_is}' is {other} elsewhere, and {size} by this value"
                raise BadOption(option="--constant", value=f"{name}={words_of(values[name])}", advice=advice)


def fitting(spec: TensorSpec, value: ModelValue) -> np.ndarray:
    """What was given for an input, as an array.

    Raises:
        WrongType, WrongShape
    """
    array: np.ndarray = signature.collect((spec,), (), {spec.name: value})[spec.name]
    return array


def parse_array(word: str, spec: TensorSpec) -> np.ndarray:
    """The value that a word gives to an input, of its type: `16000`, `1,2,3`, `[[1, 2], [3, 4]]`, `true`.

    Raises:
        BadOption: the word says no such value.
    """
    nested: Json = word.split(",") if spec.shape or (spec.shape is None and "," in word) else word
    try:
        if word.lstrip().startswith("["):
            nested = json.loads(word)
        with np.errstate(over="ignore"):
            return np.array(_elements(nested, spec), dtype=_dtype(spec))
    except (ValueError, TypeError, OverflowError, RecursionError):
        shape = "×".join(map(str, spec.shape or ())) or "scalar"
        example = "true" if spec.dtype == "bool" else "3" if _is_integer(spec) else "0.5"
        example = f"{example},{example}" if spec.shape else example
        advice = f"The input takes {spec.dtype} {shape}, for example {spec.name}={example}"
        raise BadOption(option="--constant", value=f"{spec.name}={word}", advice=advice) from None


def _elements(nested: Json, spec: TensorSpec) -> Json:
    """As `nested`, with elements of the input's type.

    Raises:
        ValueError: one is none.
    """
    if isinstance(nested, list):
        return [_elements(element, spec) for element in nested]
    if spec.dtype == "bool":
        text = str(nested).strip().lower()
        if text not in _TRUTHS:
            raise ValueError(text)
        return _TRUTHS[text]
    if isinstance(nested, bool):
        raise ValueError(nested)
    if _is_integer(spec):
        number, limits = int(nested) if isinstance(nested, str) else nested, ml_dtypes.iinfo(_dtype(spec))
        if not isinstance(number, int) or not limits.min <= number <= limits.max:
            raise ValueError(nested)
        return number
    value = float(nested)  # type: ignore[arg-type]
    if np.isfinite(value) and not np.isfinite(np.asarray(value).astype(_dtype(spec)).astype(np.float64)):
        raise ValueError(nested)
    return value


def _dtype(spec: TensorSpec) -> np.dtype[np.generic]:
    try:
        return np.dtype(spec.dtype)
    except TypeError:
        narrow: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, spec.dtype))
        return narrow


def _is_integer(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("int", "uint"))


def _is_float(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("float", "bfloat"))
