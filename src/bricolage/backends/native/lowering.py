"""From ONNX operators to the native engine's tensors. What has no rule here, the engine does not claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.backends.native.indexing import Index, constant, flatten, unflatten
from bricolage.backends.native.tensors import (
    C_TYPES,
    Assembly,
    Constant,
    Conv,
    Gather,
    Input,
    MatMul,
    Node,
    Normalise,
    Place,
    Pointwise,
    Reduce,
    Shape,
    Softmax,
    View,
)
from bricolage.graph.graph import describe


class NoRule(Exception):
    """The engine has no rule for an operator, or not for these shapes or attributes."""


@dataclass(frozen=True)
class Call:
    """One ONNX operator with its inputs lowered. Missing inputs are None."""

    op_type: str
    inputs: tuple[Node | None, ...]
    attributes: Mapping[str, Any]
    shapes: tuple[Shape, ...]
    """Of the outputs."""
    opset: int

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def tensor(self, position: int) -> Node:
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise NoRule(f"{self.op_type} without its input {position}")
        return found

    def optional(self, position: int) -> Node | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def numbers(self, position: int) -> list[int] | None:
        """Values of a constant integer input; None when it is missing.

        Raises:
            NoRule: it is computed.
        """
        node = self.optional(position)
        if node is None:
            return None
        if not isinstance(node, Constant):
            raise NoRule(f"{self.op_type} whose input {position} is computed")
        return [int(value) for value in node.array.reshape(-1)]

    def scalar(self, position: int, default: float) -> float:
        node = self.optional(position)
        if node is None:
            return default
        if not isinstance(node, Constant) or node.array.size != 1:
            raise NoRule(f"{self.op_type} whose input {position} is computed")
        return float(node.array.reshape(-1)[0])

    @property
    def shape(self) -> Shape:
        return self.shapes[0]


Rule = Callable[[Call], Node | tuple[Node, ...]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def lower(model: ir.Model) -> tuple[list[Node], list[Node]]:
    """The inputs and the outputs of a region.

    Raises:
        NoRule: an operator, a type or a shape is not covered.
    """
    graph = model.graph
    values: dict[ir.Value, Node] = {}
    inputs: list[Node] = []
    for value in graph.inputs:
        if value.name in graph.initializers:
            continue
        info = describe(value)
        made = Input(_shape(value), _dtype(value), len(inputs))
        if info.dtype is None:
            raise NoRule(f"'{value.name}' is not a tensor")
        inputs.append(made)
        values[value] = made
    opset = graph.opset_imports.get("", 1)
    for node in graph:
        values.update(zip(node.outputs, _lower(node, values, opset), strict=False))
    return inputs, [_known(value, values) for value in graph.outputs]


def lower_operator(node: ir.Node, opset: int) -> str | None:
    """None when there is a rule for the operator as it stands, or the reason why not. Looks at shapes and constants only."""
    values: dict[ir.Value, Node] = {}
    try:
        for value in node.inputs:
            if value is not None and value.const_value is None:
                values[value] = Input(_shape(value), _dtype(value), 0)
        _lower(node, values, opset)
    except NoRule as reason:
        return str(reason)
    return None


def _lower(node: ir.Node, values: Mapping[ir.Value, Node], opset: int) -> tuple[Node, ...]:
    if node.domain not in ("", "ai.onnx") or node.op_type not in RULES:
        raise NoRule(f"no rule for {node.op_type}")
    inputs = tuple(None if value is None else _known(value, values) for value in node.inputs)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    shapes = tuple(_shape(value) for value in node.outputs if value.name)
    for value in node.outputs:
        if value.name:
            _dtype(value)
    found = RULES[node.op_type](Call(node.op_type, inputs, attributes, shapes, opset))
    results = found if isinstance(found, tuple) else (found,)
    for value, result in zip(node.outputs, results, strict=False):
        if value.name and (result.shape != _shape(value) or result.dtype != _dtype(value)):
            raise NoRule(f"{node.op_type} came out as {result.dtype}{list(result.shape)}")
    if sum(1 for value in node.outputs if value.name) > len(results):
        raise NoRule(f"{node.op_type} with {len(node.outputs)} outputs")
    return results


def _known(value: ir.Value, values: Mapping[ir.Value, Node]) -> Node:
    if value in values:
        return values[value]
    if value.const_value is None:
        raise NoRule(f"'{value.name}' is not known")
    return Constant(_shape(value), _dtype(value), np.asarray(value.const_value.numpy()))


def _shape(value: ir.Value) -> Shape:
    info = describe(value)
    if not info.static:
        raise NoRule(f"the shape of '{value.name}' is not known")
    if 0 in info.sizes:
        raise NoRule(f"'{value.name}' is empty")
    return info.sizes


def _dtype(value: ir.Value) -> str:
    info = describe(value)
    name = info.numpy.name if info.static else "unknown"
    if name not in C_TYPES:
        raise NoRule(f"'{value.name}' has the type {name}")
    return name


# --- helpers --------------------------------------------------------------------------------------------------------


def scalar(value: float, dtype: str = "float32") -> Constant:
    return Constant((), dtype, np.asarray(value, dtype))


def pointwise(function: str, *inputs: Node, dtype: str | None = None, parameters: Sequence[float] = ()) -> Node:
    """An element-wise function on broadcast inputs. On an operator's result that was split it is done part by part, so that
    the kernels of the parts can absorb it."""
    shape = tuple(np.broadcast_shapes(*(node.shape for node in inputs)))
    whole = next((node for node in inputs if isinstance(node, Assembly) and node.split and node.shape == shape), None)
    if whole is None:
        return Pointwise(shape, dtype or inputs[-1].dtype, function, inputs, tuple(parameters))
    parts = tuple(
        pointwise(function, *(_part(node, whole, i) for node in inputs), dtype=dtype, parameters=parameters)
        for i in range(len(whole.parts))
    )
    return Assembly(shape, parts[0].dtype, parts, whole.starts, whole.steps, split=True)


def _part(node: Node, whole: Assembly, number: int) -> Node:
    """What of an input belongs to a part of `whole`."""
    if isinstance(node, Assembly) and (node.starts, node.steps, node.shape) == (whole.starts, whole.steps, whole.shape):
        return node.parts[number]
    missing = len(whole.shape) - len(node.shape)
    kept = [extent != 1 for extent in node.shape]
    start = [i * keep for i, keep in zip(whole.starts[number][missing:], kept, strict=True)]
    steps = [step if keep else 1 for step, keep in zip(whole.steps[missing:], kept, strict=True)]
    sizes = whole.parts[number].shape[missing:]
    return take(node, start, steps, tuple(size if keep else 1 for size, keep in zip(sizes, kept, strict=True)))


def reshape(source: Node, shape: Shape) -> Node:
    """The same elements in row-major order."""
    if shape == source.shape:
        return source
    if isinstance(source, Constant):
        return Constant(shape, source.dtype, source.array.reshape(shape))
    return View(
        shape,
        source.dtype,
        source,
        lambda place: unflatten(flatten(place, shape), source.shape),
        inverse=lambda place: unflatten(flatten(place, source.shape), shape),
    )


def transpose(source: Node, perm: Sequence[int]) -> Node:
    if tuple(perm) == tuple(range(len(source.shape))):
        return source
    if isinstance(source, Constant):
        array = np.ascontiguousarray(source.array.transpose(perm))
        return Constant(array.shape, source.dtype, array)
    shape = tuple(source.shape[axis] for axis in perm)
    where = [list(perm).index(axis) for axis in range(len(perm))]
    return View(
        shape,
        source.dtype,
        source,
        lambda place: tuple(place[i] for i in where),
        inverse=lambda place: tuple(place[i] for i in perm),
    )


def broadcast(source: Node, shape: Shape) -> Node:
    if shape == source.shape:
        return source
    missing = len(shape) - len(source.shape)

    def mapping(place: Place) -> Place:
        own = place[missing:]
        return tuple(constant(0) if extent == 1 else i for i, extent in zip(own, source.shape, strict=True))

    return View(shape, source.dtype, source, mapping)


def take(source: Node, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Node:
    """Every `steps`-th element from `starts` on."""
    if shape == source.shape and not any(starts):
        return source
    if isinstance(source, Constant):
        spots = [np.arange(size) * step + start for start, step, size in zip(starts, steps, shape, strict=True)]
        return Constant(shape, source.dtype, np.ascontiguousarray(source.array.reshape(source.shape)[np.ix_(*spots)]))

    def mapping(place: Place) -> Place:
        return tuple(i * step + start for i, start, step in zip(place, starts, steps, strict=True))

    return View(shape, source.dtype, source, mapping)


def pad(source: Node, before: Sequence[int], shape: Shape, fill: float) -> Node:
    """`source` inside a larger tensor of `shape`, `before` elements from its start."""
    if shape == source.shape:
        return source

    def mapping(place: Place) -> Place:
        return tuple(i - start for i, start in zip(place, before, strict=True))

    def guard(place: Place) -> list[tuple[Index, int]]:
        moved = mapping(place)
        return [(i, extent) for i, extent, size in zip(moved, source.shape, shape, strict=True) if extent != size]

    return View(shape, source.dtype, source, mapping, guard, fill)


def axis_of(call: Call, rank: int, default: int) -> int:
    axis = int(call.get("axis", default))
    return axis + rank if axis < 0 else axis


# --- element-wise ---------------------------------------------------------------------------------------------------

_UNARY = {
    "Relu": "relu",
    "Neg": "neg",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Exp": "exp",
    "Log": "log",
    "Erf": "erf",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Abs": "abs",
    "HardSwish": "hardswish",
}
_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "PRelu": "prelu"}
_COMPARE = {
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
}
_LOGIC = {"And": "and", "Or": "or"}
_FOLDS = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@rule(*_UNARY)
def unary(call: Call) -> Node:
    x = call.tensor(0)
    if x.dtype != "float32":
        raise NoRule(f"{call.op_type} of {x.dtype}")
    return pointwise(_UNARY[call.op_type], x)


@rule(*_BINARY)
def binary(call: Call) -> Node:
    left, right = call.tensor(0), call.tensor(1)
    if call.op_type == "Div" and left.dtype != "float32":
        raise NoRule("Div of integers")
    return pointwise(_BINARY[call.op_type], left, right)


@rule(*_COMPARE)
def compare(call: Call) -> Node:
    return pointwise(_COMPARE[call.op_type], call.tensor(0), call.tensor(1), dtype="bool")


@rule(*_LOGIC)
def logic(call: Call) -> Node:
    return pointwise(_LOGIC[call.op_type], call.tensor(0), call.tensor(1), dtype="bool")


@rule("Not")
def negation(call: Call) -> Node:
    return pointwise("not", call.tensor(0), dtype="bool")


@rule(*_FOLDS)
def fold(call: Call) -> Node:
    total = call.tensor(0)
    for position in range(1, len(call.inputs)):
        total = pointwise(_FOLDS[call.op_type], total, call.tensor(position))
    return total


@rule("Where")
def where(call: Call) -> Node:
    return pointwise("where", call.tensor(0), call.tensor(1), call.tensor(2))


@rule("Cast")
def cast(call: Call) -> Node:
    x, wanted = call.tensor(0), ir.DataType(call.get("to")).numpy().name
    if wanted == x.dtype:
        return x
    if wanted not in C_TYPES or (x.dtype == "float32" and wanted in ("int32", "int64")):
        raise NoRule(f"Cast from {x.dtype} to {wanted}")  # what C makes of too large a float is undefined
    return pointwise("to_bool" if wanted == "bool" else "cast", x, dtype=wanted)


@rule("Pow")
def power(call: Call) -> Node:
    x, exponent = call.tensor(0), call.scalar(1, math.nan)
    if x.dtype != "float32":
        raise NoRule(f"Pow of {x.dtype}")
    known = {1.0: "identity", 2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}
    if exponent in known:
        return pointwise(known[exponent], x)
    if exponent == 3.0:
        return pointwise("mul", pointwise("square", x), x)
    raise NoRule(f"Pow with the exponent {exponent}")


@rule("Clip")
def clip(call: Call) -> Node:
    x = call.tensor(0)
    if x.dtype != "float32":
        raise NoRule(f"Clip of {x.dtype}")
    if call.opset < 11:
        bounds = (call.get("min", -math.inf), call.get("max", math.inf))
    else:
        bounds = (call.scalar(1, -math.inf), call.scalar(2, math.inf))
    return pointwise("clip", x, parameters=bounds)


@rule("LeakyRelu")
def leaky_relu(call: Call) -> Node:
    return pointwise("leaky", call.tensor(0), parameters=(call.get("alpha", 0.01),))


@rule("Elu")
def elu(call: Call) -> Node:
    return pointwise("elu", call.tensor(0), parameters=(call.get("alpha", 1.0),))


@rule("HardSigmoid")
def hard_sigmoid(call: Call) -> Node:
    return pointwise("hardsigmoid", call.tensor(0), parameters=(call.get("alpha", 0.2), call.get("beta", 0.5)))


@rule("Gelu")
def gelu(call: Call) -> Node:
    tanh = call.get("approximate", "none") == "tanh"
    return pointwise("gelu_tanh" if tanh else "gelu", call.tensor(0))


@rule("Identity")
def identity(call: Call) -> Node:
    return call.tensor(0)


@rule("Dropout")
def dropout(call: Call) -> Node:
    training = call.optional(2)
    if training is not None and not (isinstance(training, Constant) and not training.array.any()):
        raise NoRule("Dropout in training mode")
    return call.tensor(0)


@rule("BatchNormalization")
def batch_normalization(call: Call) -> Node:
    if call.get("training_mode", 0):
        raise NoRule("BatchNormalization in training mode")
    x, (scale, bias, mean, variance) = call.tensor(0), (call.tensor(i) for i in range(1, 5))
    if not all(isinstance(node, Constant) for node in (scale, bias, mean, variance)):
        raise NoRule("BatchNormalization with computed statistics")
    arrays = [node.array.astype(np.float64) for node in (scale, bias, mean, variance) if isinstance(node, Constant)]
    factor = arrays[0] / np.sqrt(arrays[3] + call.get("epsilon", 1e-5))
    shift = arrays[1] - arrays[2] * factor
    column = (len(factor), *(1,) * (len(x.shape) - 2))
    return pointwise(
        "add",
        pointwise("mul", x, Constant(column, "float32", factor.astype(np.float32).reshape(column))),
        Constant(column, "float32", shift.astype(np.float32).reshape(column)),
    )


# --- movement -------------------------------------------------------------------------------------------------------


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshaped(call: Call) -> Node:
    return reshape(call.tensor(0), call.shape)


@rule("Transpose")
def transposed(call: Call) -> Node:
    x = call.tensor(0)
    return transpose(x, call.get("perm") or tuple(reversed(range(len(x.shape)))))


@rule("Expand")
def expand(call: Call) -> Node:
    return broadcast(call.tensor(0), call.shape)


@rule("Slice")
def sliced(call: Call) -> Node:
    x = call.tensor(0)
    rank = len(x.shape)
    if call.opset < 10:
        starts, axes, steps = call.get("starts"), call.get("axes"), None
    else:
        starts, axes, steps = call.numbers(1), call.numbers(3), call.numbers(4)
    if starts is None:
        raise NoRule("Slice without starts")
    axes = list(axes) if axes is not None else list(range(len(starts)))
    steps = steps or [1] * len(starts)
    begin, step = [0] * rank, [1] * rank
    for start, axis, by in zip(starts, axes, steps, strict=True):
        extent = x.shape[axis]
        begin[axis] = slice(start, None, by).indices(extent)[0]
        step[axis] = by
    return take(x, begin, step, call.shape)


@rule("Split")
def split(call: Call) -> tuple[Node, ...]:
    x = call.tensor(0)
    axis = axis_of(call, len(x.shape), 0)
    parts: list[Node] = []
    start = 0
    for shape in call.shapes:
        begin = [start if i == axis else 0 for i in range(len(shape))]
        parts.append(take(x, begin, [1] * len(shape), shape))
        start += shape[axis]
    return tuple(parts)


@rule("Concat")
def concat(call: Call) -> Node:
    parts = tuple(call.tensor(i) for i in range(len(call.inputs)))
    rank, axis = len(call.shape), axis_of(call, len(call.shape), 0)
    starts: list[tuple[int, ...]] = []
    start = 0
    for part in parts:
        starts.append(tuple(start if i == axis else 0 for i in range(rank)))
        start += part.shape[axis]
    return Assembly(call.shape, parts[0].dtype, parts, tuple(starts), (1,) * rank)


@rule("Pad")
def padded(call: Call) -> Node:
    x = call.tensor(0)
    if call.get("mode", b"constant") not in ("constant", b"constant"):
        raise NoRule(f"Pad in the mode {call.get('mode')}")
    pads = call.get("pads") if call.opset < 11 else call.numbers(1)
    fill = call.get("value", 0.0) if call.opset < 11 else call.scalar(2, 0.0)
    axes = call.numbers(3) if call.opset >= 18 else None
    if pads is None or any(amount < 0 for amount in pads):
        raise NoRule("Pad that cuts")
    rank = len(x.shape)
    before = [0] * rank
    for place, axis in enumerate(axes if axes is not None else range(rank)):
        before[axis] = pads[place]
    return pad(x, before, call.shape, fill)


@rule("Gather")
def gathered(call: Call) -> Node:
    x, indices = call.tensor(0), call.tensor(1)
    return Gather(call.shape, x.dtype, x, indices, axis_of(call, len(x.shape), 0))


@rule("DepthToSpace")
def depth_to_space(call: Call) -> Node:
    x, block = call.tensor(0), int(call.get("blocksize"))
    n, c, h, w = x.shape
    if call.get("mode", "DCR") == "DCR":
        inner, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        inner, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
    return reshape(transpose(reshape(x, inner), perm), call.shape)


@rule("Resize", "Upsample")
def resize(call: Call) -> Node:
    """Nearest neighbours, enlarged by whole factors: one way to place the samples is then as good as another."""
    x = call.tensor(0)
    if call.get("mode", "nearest") != "nearest" or any(b % a for a, b in zip(x.shape, call.shape, strict=True)):
        raise NoRule("Resize other than to nearest neighbours by whole factors")
    if call.get("coordinate_transformation_mode", "half_pixel") not in (
        "half_pixel",
        "asymmetric",
        "pytorch_half_pixel",
    ):
        raise NoRule(f"Resize with {call.get('coordinate_transformation_mode')}")
    asymmetric = call.get("coordinate_transformation_mode", "half_pixel") == "asymmetric" or call.op_type == "Upsample"
    if asymmetric and call.op_type == "Resize" and call.get("nearest_mode", "round_prefer_floor") != "floor":
        raise NoRule("asymmetric Resize that rounds")
    if call.get("nearest_mode", "round_prefer_floor") not in ("round_prefer_floor", "round_prefer_ceil", "floor"):
        raise NoRule(f"Resize with {call.get('nearest_mode')}")
    factors = [b // a for a, b in zip(x.shape, call.shape, strict=True)]
    if not asymmetric and call.get("nearest_mode", "round_prefer_floor") == "floor" and any(f > 1 for f in factors):
        raise NoRule("Resize that rounds half pixels down")

    def mapping(place: Place) -> Place:
        return tuple(i.split(factor)[0] for i, factor in zip(place, factors, strict=True))

    return View(call.shape, x.dtype, x, mapping)


# --- reductions and rows --------------------------------------------------------------------------------------------

_REDUCE = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "product"}


def reduce(kind: Any, x: Node, axes: Sequence[int]) -> Node:
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))
    divisor = float(math.prod(x.shape[axis] for axis in axes)) if kind == "mean" else 1.0
    return Reduce(shape, x.dtype, kind, x, tuple(sorted(axes)), divisor)


@rule(*_REDUCE, "ReduceL2", "ReduceSumSquare")
def reduction(call: Call) -> Node:
    x = call.tensor(0)
    rank = len(x.shape)
    axes = call.get("axes") if call.opset < (13 if call.op_type == "ReduceSum" else 18) else call.numbers(1)
    if not axes:
        if call.get("noop_with_empty_axes", 0):
            raise NoRule(f"{call.op_type} over nothing")
        axes = list(range(rank))
    axes = [axis % rank for axis in axes]
    if x.dtype != "float32":
        raise NoRule(f"{call.op_type} of {x.dtype}")
    if call.op_type in _REDUCE:
        found = reduce(_REDUCE[call.op_type], x, axes)
    else:
        found = reduce("sum", pointwise("square", x), axes)
        if call.op_type == "ReduceL2":
            found = pointwise("sqrt", found)
    return reshape(found, call.shape)


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Node:
    x = call.tensor(0)
    return reduce("max" if "Max" in call.op_type else "mean", x, range(2, len(x.shape)))


@rule("MaxPool", "AveragePool")
def pool(call: Call) -> Node:
    x = call.tensor(0)
    kernel = list(call.get("kernel_shape"))
    spatial = len(kernel)
    strides = list(call.get("strides") or [1] * spatial)
    dilations = list(call.get("dilations") or [1] * spatial)
    pads = _pads(call, x.shape[2:], kernel, strides, dilations)
    out = call.shape
    largest = call.op_type == "MaxPool"
    before = pads[:spatial]

    def mapping(place: Place) -> Place:
        n, c, rest = place[0], place[1], place[2:]
        spots = tuple(
            o * strides[i] + k * dilations[i] - before[i]
            for i, (o, k) in enumerate(zip(rest[:spatial], rest[spatial:], strict=True))
        )
        return (n, c, *spots)

    def guard(place: Place) -> list[tuple[Index, int]]:
        return [
            (spot, extent)
            for spot, extent in zip(mapping(place)[2:], x.shape[2:], strict=True)
            if spot.range[0] < 0 or spot.range[1] >= extent
        ]

    windows = View((*out, *kernel), x.dtype, x, mapping, guard, -math.inf if largest else 0.0)
    axes = tuple(range(len(out), len(out) + spatial))
    if largest:
        return reshape(reduce("max", windows, axes), out)
    if call.get("count_include_pad", 0):
        if call.get("ceil_mode", 0):
            raise NoRule("AveragePool that counts pads beyond the image")
        return reshape(reduce("mean", windows, axes), out)
    counts = np.ones((), np.float32)
    for i in range(spatial):
        spots = np.arange(out[2 + i])[:, None] * strides[i] + np.arange(kernel[i]) * dilations[i] - before[i]
        counts = counts[..., None] * ((spots >= 0) & (spots < x.shape[2 + i])).sum(axis=1).astype(np.float32)
    if np.all(counts == math.prod(kernel)):
        return reshape(reduce("mean", windows, axes), out)
    factor = Constant(counts.shape, "float32", (1 / counts).astype(np.float32))
    return pointwise("mul", reshape(reduce("sum", windows, axes), out), factor)


def _pads(
    call: Call, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Padding before each spatial dimension, then behind."""
    auto = call.get("auto_pad", "NOTSET")
    spatial = len(kernel)
    if auto in ("NOTSET", "", b"NOTSET"):
        return list(call.get("pads") or [0] * (2 * spatial))
    if auto == "VALID":
        return [0] * (2 * spatial)
    before, behind = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        before.append(large if auto == "SAME_LOWER" else small)
        behind.append(small if auto == "SAME_LOWER" else large)
    return before + behind


_LONGEST_ROW = 16384
"""Elements of a row that a thread may keep on its stack."""


@rule("Softmax")
def softmax(call: Call) -> Node:
    x = call.tensor(0)
    rank = len(x.shape)
    if max(x.shape, default=1) > _LONGEST_ROW or x.dtype != "float32":
        raise NoRule("Softmax of rows this long, or of integers")
    axis = axis_of(call, rank, -1 if call.opset >= 13 else 1)
    if call.opset < 13 and axis != rank - 1:
        if math.prod(x.shape[axis:]) > _LONGEST_ROW:
            raise NoRule("Softmax of rows this long")
        folded = reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return reshape(Softmax(folded.shape, x.dtype, folded), x.shape)
    if axis == rank - 1:
        return Softmax(x.shape, x.dtype, x)
    perm = [i for i in range(rank) if i != axis] + [axis]
    turned = transpose(x, perm)
    return transpose(Softmax(turned.shape, x.dtype, turned), [perm.index(i) for i in range(rank)])


@rule("LayerNormalization")
def layer_normalization(call: Call) -> Node:
    x, scale, bias = call.tensor(0), call.tensor(1), call.optional(2)
    axis = axis_of(call, len(x.shape), -1)
    row = math.prod(x.shape[axis:])
    if row > _LONGEST_ROW:
        raise NoRule("LayerNormalization of rows this long")
    folded = reshape(x, (math.prod(x.shape[:axis]), row))
    found = pointwise(
        "mul", Normalise(folded.shape, x.dtype, folded, call.get("epsilon", 1e-5)), reshape(scale, (row,))
    )
    if bias is not None:
        found = pointwise("add", found, reshape(bias, (row,)))
    return reshape(found, x.shape)


# --- contractions ---------------------------------------------------------------------------------------------------


@rule("MatMul")
def matmul(call: Call) -> Node:
    left, right = call.tensor(0), call.tensor(1)
    if left.dtype != "float32":
        raise NoRule(f"MatMul of {left.dtype}")
    if len(left.shape) == 1:
        left = reshape(left, (1, *left.shape))
    if len(right.shape) == 1:
        right = reshape(right, (*right.shape, 1))
    if len(right.shape) == 2 and isinstance(right, Constant):
        rows = math.prod(left.shape[:-1])
        flat = reshape(left, (rows, left.shape[-1]))
        return reshape(MatMul((rows, right.shape[1]), "float32", flat, right), call.shape)
    rank = max(len(left.shape), len(right.shape))
    left = reshape(left, (1,) * (rank - len(left.shape)) + left.shape)
    right = reshape(right, (1,) * (rank - len(right.shape)) + right.shape)
    batch = tuple(np.broadcast_shapes(left.shape[:-2], right.shape[:-2]))
    return reshape(MatMul((*batch, left.shape[-2], right.shape[-1]), "float32", left, right), call.shape)


@rule("Gemm")
def gemm(call: Call) -> Node:
    left, right, bias = call.tensor(0), call.tensor(1), call.optional(2)
    if left.dtype != "float32":
        raise NoRule(f"Gemm of {left.dtype}")
    left = transpose(left, (1, 0)) if call.get("transA", 0) else left
    right = transpose(right, (1, 0)) if call.get("transB", 0) else right
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    found: Node = MatMul(call.shape, "float32", left, right)
    if alpha != 1.0:
        found = pointwise("mul", found, scalar(alpha))
    if bias is not None:
        found = pointwise("add", found, bias if beta == 1.0 else pointwise("mul", bias, scalar(beta)))
    return found


@rule("Conv")
def conv(call: Call) -> Node:
    x, weight, bias = call.tensor(0), call.tensor(1), call.optional(2)
    if x.dtype != "float32" or not isinstance(weight, Constant):
        raise NoRule("Conv with computed weights" if x.dtype == "float32" else f"Conv of {x.dtype}")
    kernel = weight.shape[2:]
    spatial = len(kernel)
    strides = tuple(call.get("strides") or [1] * spatial)
    dilations = tuple(call.get("dilations") or [1] * spatial)
    pads = _pads(call, x.shape[2:], kernel, strides, dilations)
    found: Node = _without_padding(
        Conv(call.shape, "float32", x, weight, strides, tuple(pads[:spatial]), dilations, call.get("group", 1))
    )
    if bias is not None:
        found = pointwise("add", found, reshape(bias, (weight.shape[0], *(1,) * spatial)))
    return found


_FEW = 4
"""Output places along a dimension for which convolutions are written apart."""


def _without_padding(conv: Conv) -> Node:
    """Along dimensions with few output places, a convolution for each place, with only those kernel taps that do not fall
    into the padding: in a deep network on short clips most of them do."""
    assert isinstance(conv.weight, Constant)
    for axis in range(len(conv.strides)):
        extent, places, taps = conv.source.shape[2 + axis], conv.shape[2 + axis], conv.weight.shape[2 + axis]
        if taps == 1 or places > _FEW:
            continue
        reads = [
            [o * conv.strides[axis] + t * conv.dilations[axis] - conv.pads[axis] for t in range(taps)]
            for o in range(places)
        ]
        inside = [[t for t, spot in enumerate(row) if 0 <= spot < extent] for row in reads]
        if not all(inside) or sum(map(len, inside)) > 0.85 * places * taps:
            continue
        parts: list[Node] = []
        for o, own in enumerate(inside):
            array = np.ascontiguousarray(conv.weight.array.take(range(own[0], own[-1] + 1), axis=2 + axis))
            pads = tuple(-reads[o][own[0]] if i == axis else pad for i, pad in enumerate(conv.pads))
            shape = tuple(1 if i == 2 + axis else size for i, size in enumerate(conv.shape))
            weight = Constant(array.shape, "float32", array)
            part = Conv(shape, "float32", conv.source, weight, conv.strides, pads, conv.dilations, conv.groups)
            parts.append(part if places > 1 else _without_padding(part))
        if places == 1:
            return parts[0]
        starts = tuple(tuple(o if i == 2 + axis else 0 for i in range(len(conv.shape))) for o in range(places))
        return Assembly(conv.shape, "float32", tuple(parts), starts, (1,) * len(conv.shape), split=True)
    return conv


@rule("ConvTranspose")
def conv_transpose(call: Call) -> Node:
    """By output phase: every place modulo the stride sees its own part of the kernel, as an ordinary convolution."""
    x, weight, bias = call.tensor(0), call.tensor(1), call.optional(2)
    if x.dtype != "float32" or not isinstance(weight, Constant):
        raise NoRule("ConvTranspose with computed weights")
    kernel = weight.shape[2:]
    spatial = len(kernel)
    strides = tuple(call.get("strides") or [1] * spatial)
    if any(d != 1 for d in call.get("dilations") or [1] * spatial) or call.get("group", 1) != 1:
        raise NoRule("ConvTranspose with dilations or groups")
    if call.get("auto_pad", "NOTSET") not in ("NOTSET", ""):
        raise NoRule("ConvTranspose with automatic padding")
    before = list(call.get("pads") or [0] * (2 * spatial))[:spatial]
    out = call.shape
    if any(size % stride for size, stride in zip(out[2:], strides, strict=True)):
        raise NoRule("ConvTranspose to a size that its stride does not divide")
    # Output o = s * q + phase takes x[i] * w[k] for s * i - pad + k = o, so k = first + s * t and i = q + shift - t.
    phases = list(np.ndindex(*strides))
    taps = [[_phase(*facts) for facts in zip(phase, strides, kernel, before, strict=True)] for phase in phases]
    columns = reshape(bias, (weight.shape[1], *(1,) * spatial)) if bias is not None else None
    ones = (1,) * spatial
    sizes = tuple(size // stride for size, stride in zip(out[2:], strides, strict=True))
    if len(phases) > 1 and weight.shape[1] * len(phases) <= _NARROW:
        return _interleaved(x, weight.array, columns, taps, sizes, call.shape)
    parts: list[Node] = []
    for own in taps:
        index = [chosen for chosen, _ in own]
        array = weight.array[np.ix_(np.arange(weight.shape[0]), np.arange(weight.shape[1]), *index)]
        turned = np.ascontiguousarray(np.flip(array, tuple(range(2, 2 + spatial))).swapaxes(0, 1))
        pads = tuple(len(chosen) - 1 - shift for chosen, shift in own)
        shape = (out[0], out[1], *sizes)
        part: Node = Conv(shape, "float32", x, Constant(turned.shape, "float32", turned), ones, pads, ones, 1)
        parts.append(pointwise("add", part, columns) if columns is not None else part)
    starts = tuple((0, 0, *phase) for phase in phases)
    return parts[0] if len(parts) == 1 else Assembly(out, "float32", tuple(parts), starts, (1, 1, *strides), split=True)


_NARROW = 16
"""Output channels, all phases together, that one vector can hold."""


def _phase(phase: int, stride: int, size: int, edge: int) -> tuple[np.ndarray, int]:
    """Kernel taps that outputs of a phase see, and `shift`."""
    first = (phase + edge) % stride
    if first >= size:
        raise NoRule("ConvTranspose with a kernel smaller than its stride")
    return np.arange(first, size, stride), (phase + edge - first) // stride


def _interleaved(
    x: Node,
    weight: np.ndarray,
    bias: Node | None,
    taps: Sequence[Sequence[tuple[np.ndarray, int]]],
    sizes: Shape,
    shape: Shape,
) -> Node:
    """All phases as the channels of one convolution, where few channels would leave vectors empty."""
    spatial, c_in, c_out = len(sizes), weight.shape[0], weight.shape[1]
    low = [min(shift - len(chosen) + 1 for chosen, shift in (own[axis] for own in taps)) for axis in range(spatial)]
    high = [max(shift for _, shift in (own[axis] for own in taps)) for axis in range(spatial)]
    span = [last - first + 1 for first, last in zip(low, high, strict=True)]
    full = np.zeros((len(taps), c_out, c_in, *span), np.float32)
    for number, own in enumerate(taps):
        index = np.ix_(np.arange(c_in), np.arange(c_out), *(chosen for chosen, _ in own))
        turned = np.flip(weight[index], tuple(range(2, 2 + spatial))).swapaxes(0, 1)
        where = tuple(
            slice(shift - len(chosen) + 1 - first, shift + 1 - first)
            for (chosen, shift), first in zip(own, low, strict=True)
        )
        full[number][(slice(None), slice(None), *where)] = turned
    ones = (1,) * spatial
    array = np.ascontiguousarray(full.reshape(-1, *full.shape[2:]))
    kernel = Constant(array.shape, "float32", array)
    pads = tuple(-first for first in low)
    made: Node = Conv((shape[0], len(array), *sizes), "float32", x, kernel, ones, pads, ones, 1)
    strides = tuple(size // own for size, own in zip(shape[2:], sizes, strict=True))
    apart = reshape(made, (shape[0], *strides, c_out, *sizes))
    order = [0, spatial + 1]
    for axis in range(spatial):
        order += [spatial + 2 + axis, 1 + axis]
    found = reshape(transpose(apart, order), shape)
    return pointwise("add", found, bias) if bias is not None else found
