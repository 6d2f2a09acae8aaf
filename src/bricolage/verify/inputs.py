"""Inputs that make a comparison meaningful, without gradients, and the user's own.

Random values are drawn by role, several times if need be; the float64 reference judges them. Inputs under which the
model answers NaN, the same number everywhere or nothing but zeros and ones of a sigmoid would let a wrong kernel pass.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.errors import (
    BricolageError,
    MissingInput,
    NoReference,
    UnboundRank,
    UnknownInput,
    UnsupportedType,
    WrongShape,
    WrongType,
)
from bricolage.graph.graph import TensorInfo, describe
from bricolage.graph.prepare import unbound
from bricolage.verify.reference import Evaluator, Values
from bricolage.verify.roles import PARTS, Role, role, saturating
from bricolage.work.values import ModelValue

_LOG = logging.getLogger(__name__)
_WORDS = ("the", "model", "answers", "a", "question", "of", "seven", "words", "")
_CANDIDATES = 6
_LONG = 16
"""From this size on an axis counts as one of an image or a signal."""
_SPREAD = 1e-2
"""Probabilities that differ by less over a whole output are saturated."""

Inputs = dict[str, ModelValue]
Evaluation = Callable[[Inputs], Values]
"""Gives the float64 outputs of one model by name."""


@dataclass(frozen=True)
class InputSample:
    """Inputs with the float64 outputs that they give."""

    inputs: Inputs
    reference: Values
    quality: InputQuality
    note: str = ""
    """What the user should know: that earlier draws told too little, or that all do."""


@dataclass(frozen=True, order=True)
class InputQuality:
    """How telling outputs are; compared field by field, larger is better."""

    finite: float
    """Fraction of outputs without NaN or infinity."""
    varied: float
    """Fraction of outputs (of more than one element) whose elements are not all equal."""
    filled: float
    """Fraction of outputs that are not zero everywhere."""
    open: float = 1.0
    """Fraction of outputs that are not saturated."""

    @property
    def good(self) -> bool:
        """Whether all outputs are finite, varied, not zero everywhere and not saturated."""
        return self.finite == self.varied == self.filled == self.open == 1.0

    def __str__(self) -> str:
        """What is wrong with them, in words."""
        fractions = {
            "NaN or infinite": self.finite,
            "constant": self.varied,
            "zero": self.filled,
            "saturated": self.open,
        }
        return " and ".join(word for word, fraction in fractions.items() if fraction < 1.0) or "telling"


# --- drawing ----------------------------------------------------------------------------------------------------


def draw_inputs(model: ir.Model, seed: int = 0, attempt: int = 0) -> Inputs:
    """One draw of inputs for a model of fixed input shapes. The same arguments give the same values.

    Floats are normal; later attempts try rows of strokes, on which detectors find something, other scales, positive and
    small numbers, for models that take logarithms or saturate. Indices lie within the table that they index; masks are ones
    with zeros at the end of rows.

    Raises:
        UnboundDimension: an input has a symbolic dimension.
        UnsupportedType: an input is a map or a sparse tensor.
    """
    rng = np.random.default_rng([seed, attempt])
    graph = model.graph
    return {
        value.name or "": _draw(value, rng, attempt) for value in graph.inputs if value.name not in graph.initializers
    }


def choose_sample(
    model: ir.Model, seed: int = 0, candidates: int = _CANDIDATES, evaluator: Evaluation | None = None
) -> InputSample:
    """The first draw whose float64 outputs are finite, not constant, not zero and not saturated; else the best of all.

    `evaluator` is used for the reference where one exists already; it must be a float64 one of the same model.

    Raises:
        NoReference: no draw can be evaluated, or none gives a finite number.
        UnboundDimension, UnsupportedType: as `draw_inputs`.
    """
    evaluator = evaluator or Evaluator(model)
    best: InputSample | None = None
    failure: BricolageError | None = None
    bounded = saturating(model)
    first = ""
    for attempt in range(candidates):
        inputs = draw_inputs(model, seed, attempt)
        try:
            reference = evaluator(inputs)
        except NoReference as error:
            _LOG.debug("draw %d cannot be evaluated: %s", attempt, error)
            failure = error
            continue
        quality = judge([reference[value.name or ""] for value in model.graph.outputs], bounded)
        first = first or str(quality)
        if best is None or quality > best.quality:
            note = f"draw {attempt + 1}, as outputs of the first are {first}" if attempt else ""
            best = InputSample(inputs, reference, quality, note)
        if best.quality.good:
            break
    if best is None:
        raise failure or NoReference(reason="no candidates were asked for")
    if best.quality.finite == 0.0:
        raise NoReference(reason=f"every output holds NaN or infinity under {candidates} different random inputs")
    if not best.quality.good:
        warning = f"outputs are {best.quality} under all {candidates} draws; real inputs (--input) would tell more"
        best = replace(best, note=warning)
    return best


def judge(outputs: Sequence[ModelValue], bounded: Sequence[bool] = ()) -> InputQuality:
    """Quality of a set of outputs. Empty ones and strings count as good. `bounded`: which are those of functions that
    saturate."""
    arrays = [array for output in outputs for array in _arrays(output) if array.size and array.dtype.kind in "biufcV"]
    if not arrays:
        return InputQuality(1.0, 1.0, 1.0)
    finite = [bool(np.isfinite(array).all()) for array in arrays]
    varied = [array.size == 1 or bool((array != array.reshape(-1)[0]).any()) for array in arrays]
    filled = [array.size == 1 or bool(array.any()) for array in arrays]
    tight = [_is_saturated(np.asarray(output)) for output, might in zip(outputs, bounded, strict=False) if might]
    still_open = 1.0 - float(np.mean(tight)) if tight else 1.0
    return InputQuality(float(np.mean(finite)), float(np.mean(varied)), float(np.mean(filled)), still_open)


def _is_saturated(array: np.ndarray) -> bool:
    """Whether a function with values between 0 and 1 (or -1 and 1) says hardly anything but one of its ends."""
    if array.size < 2 or array.dtype.kind != "f" or not np.isfinite(array).all():
        return bool(
            array.size == 1 and array.dtype.kind == "f" and min(abs(array.item()), 1 - abs(array.item())) < 1e-6
        )
    return bool(array.max() - array.min() < _SPREAD)


def _arrays(output: ModelValue) -> Iterator[np.ndarray]:
    if isinstance(output, list | tuple):
        for member in output:
            yield from _arrays(member)
    elif isinstance(output, dict):
        yield from _arrays(list(output.values()))
    elif output is not None:
        yield np.asarray(output)


def _draw(value: ir.Value, rng: np.random.Generator, attempt: int) -> ModelValue:
    if isinstance(value.type, ir.OptionalType):  # there
        inner_shape = value.shape or (ir.Shape([2, 3]) if isinstance(value.type.elem_type, ir.TensorType) else None)
        return _draw(ir.Value(name=value.name, shape=inner_shape, type=value.type.elem_type), rng, attempt)
    if isinstance(value.type, ir.SequenceType) and isinstance(value.type.elem_type, ir.TensorType):
        stated = (2, 3) if value.shape is None else value.shape
        sizes = ir.Shape([size if isinstance(size, int) else 3 for size in stated])
        member = ir.Value(name=value.name, shape=sizes, type=value.type.elem_type)
        return [_draw(member, rng, attempt) for _ in range(PARTS)]
    if not isinstance(value.type, ir.TensorType):
        raise UnsupportedType(
            name=value.name,
            type=type(value.type).__name__,
            who="the generator of random inputs",
            advice="Tensors, sequences of tensors and optionals of these can be drawn; rewrite the input of the model",
        )
    info, purpose = describe(value), role(value)
    shape = _sizes(info)
    if purpose.kind in ("string", "choice"):
        return rng.choice(np.array(purpose.choices or _WORDS, dtype=info.numpy), shape)
    return _DRAWS[purpose.kind](rng, shape, purpose, attempt).astype(info.numpy)


def _sizes(info: TensorInfo) -> tuple[int, ...]:
    if info.shape is None:
        raise UnboundRank(input=info.name)
    missing = {
        dimension if dimension != "?" else f"{info.name}.{axis}": [info.name]
        for axis, dimension in enumerate(info.shape)
        if not isinstance(dimension, int)
    }
    if missing:
        raise unbound(missing)
    return tuple(int(dimension) for dimension in info.shape)


Shape = tuple[int, ...]


def _floats(rng: np.random.Generator, shape: Shape, _: Role, attempt: int) -> np.ndarray:
    normal = rng.standard_normal(shape)
    match attempt % 6:
        case 1:
            return _strokes(rng, shape) + 0.02 * normal
        case 2:
            return 0.1 * normal
        case 3:
            return rng.uniform(0.05, 0.95, shape) * 2.0 + 0.5
        case 4:
            return 4.0 * normal
        case 5:
            return rng.uniform(0.0, 255.0, shape)
        case _:
            return normal


def _strokes(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """-1 in short strokes, in rows over the two last long axes, and 1 elsewhere: what writing looks like in an image. Along
    a single long axis, waves; without any, numbers between 0 and 1."""
    axes = [axis for axis, size in enumerate(shape) if size >= _LONG][-2:]
    if not axes:
        return rng.uniform(0.0, 1.0, shape)
    if len(axes) == 1:
        at = np.arange(shape[axes[0]]) / shape[axes[0]]
        tones = rng.integers(2, _LONG * 2, 6)
        wave = sum(np.sin(2 * np.pi * (tone * at + rng.random())) / math.sqrt(tone) for tone in tones)
        return np.broadcast_to(np.reshape(wave, [-1 if axis == axes[0] else 1 for axis in range(len(shape))]), shape)
    height, width = (shape[axis] for axis in axes)
    cell = max(min(height, width) // 12, 6)
    thick, ink = max(cell // 8, 1), np.ones((height, width))
    for top in range(cell // 2, max(height - cell, cell // 2 + 1), 2 * cell):
        for left in range(cell // 2, width - cell // 2, cell):
            for _ in range(3):
                down, right = rng.integers(0, cell - thick, 2)
                length = int(rng.integers(cell // 2, cell))
                if rng.random() < 0.5:
                    ink[top + down : top + down + thick, left : left + length] = -1.0
                else:
                    ink[top : top + length, left + right : left + right + thick] = -1.0
    return np.broadcast_to(ink.reshape([size if axis in axes else 1 for axis, size in enumerate(shape)]), shape)


def _indices(rng: np.random.Generator, shape: Shape, purpose: Role, _: int) -> np.ndarray:
    return rng.integers(0, purpose.bound or 2, shape)


def _mask(rng: np.random.Generator, shape: Shape, _: Role, attempt: int) -> np.ndarray:
    """Rows (last axis) of ones; each but the longest ends in zeros. Later attempts mask nothing, should zeros harm."""
    if not shape or attempt % 3 == 2:
        return np.ones(shape)
    length = shape[-1]
    kept = rng.integers((length + 1) // 2, length + 1, shape[:-1])
    if length > 1 and kept.size and (kept == length).all():
        kept.reshape(-1)[-1] = length - max(length // 4, 1)
    return (np.arange(length) < kept[..., None]).astype(np.float64)


def _booleans(rng: np.random.Generator, shape: Shape, _: Role, attempt: int) -> np.ndarray:
    """A single condition is true in even attempts: a branch taken at random would hide the other forever."""
    return rng.integers(0, 2, shape) > 0 if shape else np.asarray(attempt % 2 == 0)


def _sizes_drawn(rng: np.random.Generator, shape: Shape, purpose: Role, _: int) -> np.ndarray:
    return rng.integers(1, max(purpose.bound or 4, 2), shape)


def _integers(rng: np.random.Generator, shape: Shape, _: Role, __: int) -> np.ndarray:
    return rng.integers(0, 8, shape)


def _pixels(rng: np.random.Generator, shape: Shape, _: Role, __: int) -> np.ndarray:
    return rng.integers(0, 256, shape)


_DRAWS: Mapping[str, Callable[[np.random.Generator, Shape, Role, int], np.ndarray]] = {
    "float": _floats,
    "index": _indices,
    "mask": _mask,
    "bool": _booleans,
    "size": _sizes_drawn,
    "integer": _integers,
    "pixel": _pixels,
}


# --- the user's own ---------------------------------------------------------------------------------------------


def check_inputs(model: ir.Model, arrays: Mapping[str, ModelValue]) -> Inputs:
    """The arrays by input name, if they fit the model's inputs in name, type and shape. NaN and infinities are the caller's to
    give: models are made for them (masks, what imputers fill in), and answers must have theirs at the same places.

    Symbolic dimensions take any size, the same one wherever their name appears.

    Raises:
        MissingInput, UnknownInput, WrongType, WrongShape
    """
    values = {value.name or "": value for value in model.graph.inputs if value.name not in model.graph.initializers}
    expected = ", ".join(str(describe(value)) for value in values.values()) or "no inputs"
    for name in arrays:
        if name not in values:
            raise UnknownInput(name=name, expected=expected)
    bound: dict[str, int] = {}
    checked: Inputs = {}
    for name, value in values.items():
        if name not in arrays:
            raise MissingInput(name=name, expected=expected)
        if isinstance(value.type, ir.TensorType):
            checked[name] = _check(describe(value), np.asarray(arrays[name]), bound)
        else:
            checked[name] = arrays[name]
    return checked


def _check(info: TensorInfo, array: np.ndarray, bound: dict[str, int]) -> np.ndarray:
    if info.dtype == ir.DataType.STRING:
        if array.dtype.kind not in "OUST":
            raise WrongType(name=info.name, actual=array.dtype, expected="str")
        array = array.astype(object)
    else:
        wanted = info.numpy
        if array.dtype.kind == "V" and array.dtype != wanted and array.dtype.itemsize == wanted.itemsize:
            array = array.view(wanted)  # numpy's files know bfloat16 and the 8-bit floats only as raw bytes
        if array.dtype != wanted:
            raise WrongType(name=info.name, actual=array.dtype, expected=wanted)
    if info.shape is not None:
        trial = dict(bound)
        fits = array.ndim == len(info.shape) and all(
            size == (dimension if isinstance(dimension, int) else _bind(trial, dimension, size))
            for dimension, size in zip(info.shape, array.shape, strict=True)
        )
        if not fits:
            bound_shape = [bound.get(d, d) if isinstance(d, str) else d for d in info.shape]
            raise WrongShape(name=info.name, actual=list(array.shape), expected=f"[{', '.join(map(str, bound_shape))}]")
        bound.update(trial)
    return array


def not_finite(inputs: Mapping[str, ModelValue]) -> list[str]:
    """Names of the inputs that hold NaN or infinite values."""
    return [name for name, value in inputs.items() if not all(map(_finite, _arrays(value)))]


def _finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "fc" or array.dtype == ml_dtypes.bfloat16:
        return bool(np.isfinite(array if array.dtype.kind == "c" else array.astype(np.float64)).all())
    return True


def _bind(bound: dict[str, int], dimension: str, size: int) -> int:
    return size if dimension == "?" else bound.setdefault(dimension, size)
