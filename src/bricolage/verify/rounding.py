"""What rounding in float32 makes of a model: copies of it that are evaluated in float64, with rounding put in as noise.

Every value that a runtime rounds is changed by about what rounding changes it, with signs drawn at random, and float64
carries that on to the outputs: Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic", 1997), tensor by tensor. So how
far rounding moves an answer is measured on the model itself, and depends neither on a runtime nor on its order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import bodies, find_captured
from bricolage.graph.operator_kinds import operator_types
from bricolage.verify.randomness import remove_seeds
from bricolage.work.values import ModelValue

_ROUNDOFF = {ir.DataType.FLOAT: 2.0**-24, ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}
_SINGLE = _ROUNDOFF[ir.DataType.FLOAT]
_RMS = 0.5
"""Root mean square of an error of rounding, in units of the roundoff."""
_FUNCTION = 4.0
"""Roundoffs by which runtimes' exponentials, roots and the like are off, roughly."""
_RANGE = 2.0
"""Roundoffs of one by which functions with values around one are off, however small their value is."""
_PARTIAL_SUMS = 16
"""Runtimes add up in at least this number of partial sums, those of a vector register or two. What remains of their orders of
summation, the worst of which is one sum alone, is within the factor of the bound (`bricolage.verify.bound`)."""
_UNKNOWN_TERMS = 256
_LARGEST = 1e30
_FIELDS = 16
"""Fields of signs of one shape, of which each value takes two at random: this number serves a model of any size, and that two
values have the same noise is rare."""

_EXACT_WORDS = """
    Abs ArgMax ArgMin BitCast Ceil CenterCropPad Col2Im Compress Concat ConcatFromSequence Constant ConstantOfShape
    DepthToSpace Dropout Expand EyeLike Flatten Floor Gather GatherElements GatherND GlobalMaxPool Identity If Loop Max
    MaxPool MaxRoiPool MaxUnpool Min Neg NonMaxSuppression NonZero OneHot Optional OptionalGetElement Pad RandomNormal
    RandomNormalLike RandomUniform RandomUniformLike ReduceMax ReduceMin Relu Reshape ReverseSequence Round Scan Scatter
    ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert Shape Sign Size
    Slice SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile TopK Transpose Trilu Unique Unsqueeze Where
"""
_EXACT = frozenset(_EXACT_WORDS.split())
"""Operators that move, choose or compare: their floats were there before."""
_BOUNDED = frozenset(["Celu", "Cos", "Elu", "HardSigmoid", "LogSoftmax", "Selu", "Sigmoid", "Sin", "Softplus"])
"""Functions that runtimes compute by way of values around one, so that a small result has an error of those. Of softmax, tanh
and erf even small results are accurate."""
_GATED = frozenset(["BiasGelu", "FastGelu", "Gelu", "HardSwish", "Mish", "QuickGelu", "Swish"])
"""x · f(x) for such functions."""
_ARITHMETIC = frozenset(
    ["Add", "Cast", "CastLike", "Clip", "Div", "LeakyRelu", "Mul", "PRelu", "Sub", "Sum", "ThresholdedRelu"]
)
_WEIGHTED_WORDS = """
    Add Attention BatchNormalization Conv ConvTranspose Div Einsum GRU Gemm GroupNormalization InstanceNormalization
    LSTM LayerNormalization MatMul Mul PRelu RMSNormalization RNN Sub
"""
_WEIGHTED = frozenset(_WEIGHTED_WORDS.split())
"""Operators whose float constants runtimes fold, scale and reorder."""


_DIVISORS: Mapping[str, int] = {
    "DynamicQuantizeLSTM": 0,
    "DynamicQuantizeLinear": 0,
    "QGemm": 7,
    "QLinearAdd": 6,
    "QLinearAveragePool": 3,
    "QLinearConcat": 0,
    "QLinearConv": 6,
    "QLinearGlobalAveragePool": 3,
    "QLinearLeakyRelu": 3,
    "QLinearMatMul": 6,
    "QLinearMul": 6,
    "QLinearSigmoid": 3,
    "QLinearSoftmax": 3,
    "QLinearWhere": 7,
    "QuantizeLinear": 1,
}
"""Operators that round to integers, and the input by which they divide before (or what they divide). Runtimes differ in its last
places, and what is near a tie goes one way or the other."""
_COARSE: Mapping[int, float] = {2: 2.0**-11, 3: 2.0**-8, 4: 2.0**-7}
"""Roundoff of a factor by the `accuracy_level` that a MatMulNBits allows: float16, bfloat16, and 8-bit integers with a scale for
each block, of which the largest element is some three times the root mean square."""


@dataclass(frozen=True)
class Rounded:
    """A model with places for noise, which are inputs: one is prepared, and evaluated with as many draws as are wanted."""

    model: ir.Model
    fields: Mapping[str, tuple[tuple[int, ...], float]]
    """Shapes and sizes of the inputs that are noise, by name."""

    def noise(self, draw: int) -> dict[str, np.ndarray]:
        """Those inputs, in float64: random signs, times their sizes. The same draw gives the same noise."""
        rng = np.random.default_rng([draw, len(self.fields)])
        return {name: size * _signs(shape, rng) for name, (shape, size) in self.fields.items()}


def round_model(model: ir.Model, *, shaped: bool = True, guarded: bool = False) -> Rounded:
    """A copy of a model, to be evaluated in float64, with the noise that rounding is: on results of arithmetic, on what
    is summed up (the more the longer the sum is), and on constants. Noise on inputs is the caller's
    (`rounded_inputs`). Values that rest on integers and single constants alone stay exact.

    Args:
        model: with unique names; the copy shares its weights.
        shaped: signs differ from element to element. Otherwise one sign serves a whole tensor, for models whose declared shapes
            are not those of the values.
        guarded: infinite values stay infinite (they become NaN otherwise); this takes a third more time.
    """
    copy = model.clone()
    remove_seeds(copy)
    noise = _Noise(copy, shaped, guarded)
    noise.add()
    return Rounded(copy, noise.fields)


def rounded_inputs(inputs: Mapping[str, ModelValue], draw: int) -> dict[str, ModelValue]:
    """Inputs by name with floats that are no whole numbers changed by half a unit in the last place, in float64."""
    rng = np.random.default_rng([draw, 1 << 20])
    return {name: _rounded_value(value, rng) for name, value in inputs.items()}


def _rounded_value(value: ModelValue, rng: np.random.Generator) -> ModelValue:
    if isinstance(value, list | tuple):
        return [_rounded_value(member, rng) for member in value]
    array = np.asarray(value)
    roundoff = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}.get(array.dtype.name)
    if roundoff is None:
        return value
    exact = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        noise = np.where(exact == np.rint(exact), 0.0, _RMS * roundoff * _signs(exact.shape, rng))
    return exact * (1.0 + noise)


def _signs(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    return 1.0 - 2.0 * rng.integers(0, 2, tuple(shape))


class _Noise:
    """Adds noise to one model, in place."""

    def __init__(self, model: ir.Model, shaped: bool, guarded: bool) -> None:
        self.fields: dict[str, tuple[tuple[int, ...], float]] = {}
        self._graph, self._shaped, self._guarded = model.graph, shaped, guarded
        self._choice = np.random.default_rng(0)
        self._places: dict[tuple[tuple[int, ...], float, ir.DataType, int], ir.Value] = {}
        self._edges: dict[tuple[float, ir.DataType], ir.Value] = {}
        self._count = 0
        self._real: set[ir.Value] = {value for value in model.graph.inputs if value.dtype in _ROUNDOFF}

    def add(self) -> None:
        """On constants, then on results, in the order of the nodes."""
        constants = [value for value in self._graph.initializers.values() if _is_weight(value)]
        self._real.update(constants)
        first, nodes = next(iter(self._graph), None), tuple(self._graph)
        self._nodes(self._graph, nodes)
        for value in constants:
            users = [(node, at) for node, at in value.uses() if node.op_type in _WEIGHTED and not node.domain]
            if users and first is not None:
                noise = self._relative(value, _RMS * _ROUNDOFF[_dtype(value)])
                self._graph.insert_before(next(iter(self._graph)), noise)
                for node, at in users:
                    node.replace_input_with(at, noise[-1].outputs[0])

    def _nodes(self, graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
        for node in nodes:
            if node.op_type in _DIVISORS:
                self._divisor(graph, node)
            read = [value for value in (*node.inputs, *find_captured(node)) if value is not None]
            if not any(value in self._real for value in read):
                continue
            self._real.update(node.outputs)
            for body in bodies(node):
                self._real.update(value for value in body.inputs if value.dtype in _ROUNDOFF)
                self._nodes(body, tuple(body))
            if node.op_type in _EXACT and not node.domain:
                continue
            terms = _terms(node)
            if terms > 1:
                self._operand(graph, node, terms)
            for value in node.outputs:
                if value.dtype in _ROUNDOFF and value.name:
                    self._result(graph, node, value, terms)

    def _operand(self, graph: ir.Graph, node: ir.Node, terms: float) -> None:
        """Noise on one factor of each product is that of a sum of products whose signs differ."""
        at = next((i for i, v in enumerate(node.inputs) if v is not None and v.const_value is None), None)
        value = node.inputs[at] if at is not None else None
        if at is None or value is None or value.dtype != ir.DataType.FLOAT:
            return  # sums of half precision are taken in single precision: nothing compared with their own rounding
        size = max(_SINGLE * _growth(terms), _COARSE.get(node.attributes.get_int("accuracy_level", 0), 0.0))
        noise = self._relative(value, _RMS * size)
        graph.insert_before(node, noise)
        node.replace_input_with(at, noise[-1].outputs[0])

    def _divisor(self, graph: ir.Graph, node: ir.Node) -> None:
        """Noise on what an operator divides by before it rounds to integers: enough to be there after rounding to float32."""
        at = _DIVISORS[node.op_type]
        value = node.inputs[at] if at < len(node.inputs) else None
        if value is not None and value.dtype in _ROUNDOFF:
            noise = self._relative(value, 2.0 * _ROUNDOFF[_dtype(value)])
            graph.insert_before(node, noise)
            node.replace_input_with(at, noise[-1].outputs[0])

    def _result(self, graph: ir.Graph, node: ir.Node, value: ir.Value, terms: float) -> None:
        if node.op_type in ("Cast", "CastLike") and node.inputs[0] is not None:
            before = _ROUNDOFF.get(node.inputs[0].dtype or ir.DataType.UNDEFINED)
            if before is not None and before >= _ROUNDOFF[_dtype(value)]:
                return
        simple = node.domain or node.op_type in _ARITHMETIC or terms > 1
        size = max(_ROUNDOFF[_dtype(value)], _SINGLE * max(_growth(terms), 1.0 if simple else _FUNCTION))
        users, name = value.uses(), value.name
        at_end = [i for i, output in enumerate(graph.outputs) if output is value]
        noise = self._relative(value, _RMS * size)
        if node.op_type in _BOUNDED and not node.domain:
            noise += self._absolute(noise[-1].outputs[0], _RMS * _RANGE * _ROUNDOFF[_dtype(value)])
        elif node.op_type in _GATED and node.inputs[0] is not None:
            size = _RMS * _RANGE * _ROUNDOFF[_dtype(value)]
            noise += self._relative(noise[-1].outputs[0], size, of=node.inputs[0])
        graph.insert_after(node, noise)
        last = noise[-1].outputs[0]
        for user, at in users:
            user.replace_input_with(at, last)
        for i in at_end:
            graph.outputs[i] = last
        if at_end:
            value.name, last.name = last.name, name
        self._real.update(noise_node.outputs[0] for noise_node in noise)

    def _relative(self, value: ir.Value, size: float, of: ir.Value | None = None) -> list[ir.Node]:
        """value + size · signs · (`of`, or value)."""
        left, right = self._signs(value, size)
        nodes = [self._node("Mul", value if of is None else of, left, value)]
        nodes.append(self._node("Mul", nodes[-1].outputs[0], right, value))
        if self._guarded:
            nodes.append(self._node("Max", nodes[-1].outputs[0], self._edge(-_LARGEST, value), value))
            nodes.append(self._node("Min", nodes[-1].outputs[0], self._edge(_LARGEST, value), value))
        return [*nodes, self._node("Add", value, nodes[-1].outputs[0], value)]

    def _absolute(self, value: ir.Value, size: float) -> list[ir.Node]:
        """value + size · signs, as (value · signs + size · other signs) · signs: nothing that could be folded to a constant
        as large as the value."""
        left, right = self._signs(value, size)
        nodes = [self._node("Mul", value, left, value)]
        nodes.append(self._node("Add", nodes[-1].outputs[0], right, value))
        return [*nodes, self._node("Mul", nodes[-1].outputs[0], left, value)]

    def _signs(self, value: ir.Value, size: float) -> tuple[ir.Value, ir.Value]:
        """Two fields of random signs, the second times `size`, whose product has the shape of the value: its elements are
        pairwise independent, and both together are as small as a product of two can be. A dimension of unknown size
        has one sign."""
        sizes = (
            [d if isinstance(d, int) else 1 for d in value.shape] if self._shaped and value.shape is not None else []
        )
        rank = len(sizes)
        cut = min(range(rank + 1), key=lambda k: math.prod(sizes[:k]) + math.prod(sizes[k:]))
        left, right = [*sizes[:cut], *[1] * (rank - cut)], [*[1] * cut, *sizes[cut:]]
        return self._field(tuple(left), 1.0, value), self._field(tuple(right), size, value)

    def _field(self, shape: tuple[int, ...], size: float, like: ir.Value) -> ir.Value:
        """One of `_FIELDS` inputs of this shape and size."""
        key = (shape, size, _dtype(like), int(self._choice.integers(_FIELDS)))
        if key not in self._places:
            value = ir.Value(name=self._name(), shape=ir.Shape(shape), type=ir.TensorType(_dtype(like)))
            self._graph.inputs.append(value)
            self._places[key] = value
            self.fields[value.name or ""] = shape, size
        return self._places[key]

    def _edge(self, at: float, like: ir.Value) -> ir.Value:
        key = (at, _dtype(like))
        if key not in self._edges:
            with np.errstate(over="ignore"):
                tensor = ir.tensor(np.asarray(at).astype(_dtype(like).numpy()), dtype=like.dtype)
            value = ir.Value(
                name=self._name(), shape=ir.Shape(()), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            self._graph.register_initializer(value)
            self._edges[key] = value
        return self._edges[key]

    def _node(self, kind: str, left: ir.Value, right: ir.Value, like: ir.Value) -> ir.Node:
        result = ir.Value(name=self._name(), shape=like.shape, type=like.type)
        return ir.Node("", kind, [left, right], outputs=[result], name=result.name)

    def _name(self) -> str:
        self._count += 1
        return f"rounding~{self._count}"


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _is_weight(value: ir.Value) -> bool:
    """Whether a constant holds real numbers: floats, several of them, not all whole."""
    tensor = value.const_value
    if tensor is None or value.dtype not in _ROUNDOFF or tensor.size < 2:
        return False
    sample = tensor.numpy().reshape(-1)[:4096].astype(np.float64)
    with np.errstate(invalid="ignore"):
        return bool((sample != np.rint(sample)).any())


# --- how many terms a sum has -----------------------------------------------------------------------------------------


def _growth(terms: float) -> float:
    """Roundoffs by which a sum is off: its error walks at random."""
    return max(1.0, math.sqrt(terms / _PARTIAL_SUMS)) if terms > 1 else 1.0


_AS: Mapping[str, str] = {
    "DynamicQuantizeMatMul": "MatMul",
    "FusedConv": "Conv",
    "FusedGemm": "Gemm",
    "MatMulIntegerToFloat": "MatMul",
    "MatMulNBits": "MatMul",
    "SimplifiedLayerNormalization": "RMSNormalization",
    "SkipLayerNormalization": "LayerNormalization",
    "SkipSimplifiedLayerNormalization": "RMSNormalization",
}
"""Operators of ONNX Runtime's, by those of ONNX's that sum up as many terms."""


def _terms(node: ir.Node) -> float:
    """Terms that one element of a result sums up; 1 where nothing is summed."""
    kind = _AS.get(node.op_type, node.op_type)
    sizes = [_sizes(value) for value in node.inputs]
    try:
        if kind in ("MatMul", "MatMulInteger"):
            return float(sizes[0][-1])
        if kind == "Gemm":
            return float(sizes[0][0 if node.attributes.get_int("transA", 0) else 1])
        if kind == "Conv":
            return float(math.prod(sizes[1][1:]))
        if kind == "ConvTranspose":
            return float(sizes[1][0] * math.prod(sizes[1][2:]))
        if kind in operator_types("recurrent"):
            return float(sizes[1][2] + sizes[2][2])
        if kind in ("AveragePool", "LpPool"):
            return float(math.prod(node.attributes.get_ints("kernel_shape", ())))
        if kind == "CumSum" or kind in operator_types("softmax"):
            return float(sizes[0][node.attributes.get_int("axis", -1)])
        if kind in ("LayerNormalization", "RMSNormalization", "LpNormalization"):
            return float(math.prod(sizes[0][node.attributes.get_int("axis", -1) :]))
        if kind in ("InstanceNormalization", "GlobalAveragePool", "GlobalLpPool"):
            return float(math.prod(sizes[0][2:]))
        if kind in ("GroupNormalization", "MeanVarianceNormalization"):
            return float(math.prod(sizes[0][1:]))
        if kind == "Attention":
            return float(sizes[0][-1] + sizes[1][-2])
        if kind == "Einsum":
            return float(max(size for shape in sizes for size in shape))
    except (IndexError, ValueError):
        return _UNKNOWN_TERMS
    if kind.startswith("Reduce"):
        before, after = math.prod(sizes[0]), math.prod(_sizes(node.outputs[0]))
        return before / max(after, 1) if sizes[0] else _UNKNOWN_TERMS
    return _UNKNOWN_TERMS if node.domain not in ("", "ai.onnx") else 1.0


def _sizes(value: ir.Value | None) -> tuple[int, ...]:
    """Sizes of a value; empty where they are not all known."""
    if value is None:
        return ()
    shape = tuple(
        value.const_value.shape if value.shape is None and value.const_value is not None else value.shape or ()
    )
    sizes = tuple(d for d in shape if isinstance(d, int))
    return sizes if len(sizes) == len(shape) else ()
