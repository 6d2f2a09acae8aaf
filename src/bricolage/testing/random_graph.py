"""A graph that grows by one operator after another on tensors that it already has."""

from __future__ import annotations

import math
import random

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT, INT32, INT64, BOOL = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT64,
    onnx.TensorProto.BOOL,
)
MOST = 20_000
"""Elements of a tensor that others are made of."""
_EXTENTS = (1, 2, 3, 5, 7, 17, 33)
"""Of inputs: smaller than a vector, and vectors of 4, 8 and 16 numbers with a rest."""
_LARGEST_RANK = 6

Shape = tuple[int, ...]


class RandomGraph:
    """Grows one operator after another. Tensors that others are made of keep moderate values and are never empty.

    Classes that add to it are collections of steps: methods without arguments that add an operator, or a few, on existing tensors,
    and return the name of the result; None where nothing fits.
    """

    def __init__(self, seed: int, chance: random.Random | None = None, opset: int = 24) -> None:
        """`seed` of the weights, and of all choices unless `chance` makes these (hypothesis has one that it can shrink)."""
        self.random = chance or random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.shapes: dict[str, Shape] = {}
        """Of tensors of float32."""
        self.types: dict[str, int] = {}
        """Element types of tensors that are not float32, whose shapes are in `others`."""
        self.others: dict[str, Shape] = {}
        self.below: dict[str, int] = {}
        """What integers given as inputs lie below, counted from its negative."""
        self.raw: list[str] = []
        """Inputs of floats: no two ways to compute them round differently, so that orders and comparisons of them are certain."""
        self._ends: list[str] = []

    # --- tensors

    def fresh(self) -> str:
        """A name that no tensor has."""
        return f"t{len(self.shapes) + len(self.others)}"

    def input(self, shape: Shape) -> str:
        """An input of float32."""
        name = self.fresh()
        self.shapes[name] = shape
        self.inputs.append(helper.make_tensor_value_info(name, FLOAT, shape))
        self.raw.append(name)
        return name

    def whole_numbers(self, shape: Shape, below: int, type_: int = INT64) -> str:
        """An input of integers in [-below, below), or of booleans."""
        name = self.fresh()
        self.others[name], self.types[name], self.below[name] = shape, type_, below
        self.inputs.append(helper.make_tensor_value_info(name, type_, shape))
        return name

    def sized(self) -> Shape:
        """A random shape of rank 0 to 6 and moderate size."""
        shape: Shape = ()
        for _ in range(self.random.randint(0, _LARGEST_RANK)):
            extent = self.random.choice(_EXTENTS)
            shape = (*shape, extent if math.prod(shape) * extent <= 4_000 else 1)
        return shape

    def constant(self, array: np.ndarray | np.generic) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weights(self, *shape: int, fan: int = 1) -> str:
        """Normal numbers of variance 1 / fan."""
        return self.constant(np.asarray(self.numbers.standard_normal(shape) / math.sqrt(fan), np.float32))

    def ints(self, *values: int) -> str:
        """A constant list of int64."""
        return self.constant(np.asarray(values, np.int64))

    def number(self, value: float) -> str:
        """A constant scalar."""
        return self.constant(np.asarray(value, np.float32))

    def add(self, op_type: str, inputs: list[str], shape: Shape, **attributes: object) -> str:
        """An operator with one result, of float32."""
        name = self.fresh()
        self.shapes[name] = shape
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def add_other(self, op_type: str, inputs: list[str], shape: Shape, type_: int, **attributes: object) -> str:
        """An operator with a result that is not float32."""
        name = self.fresh()
        self.others[name], self.types[name] = shape, type_
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def add_all(self, op_type: str, inputs: list[str], shapes: list[Shape], **attributes: object) -> list[str]:
        """An operator with several results, all of float32."""
        names = []
        for shape in shapes:
            names.append(self.fresh())
            self.shapes[names[-1]] = shape
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names

    def pick(self, ranks: range | None = None) -> str | None:
        """A tensor of float32, most often one of the last; None where there is none of such a rank."""
        candidates = [
            name
            for name, shape in self.shapes.items()
            if (ranks is None or len(shape) in ranks) and 0 < math.prod(shape) <= MOST
        ]
        return self.random.choice(candidates[-6:] if self.random.random() < 0.8 else candidates) if candidates else None

    def pick_other(self, type_: int) -> str | None:
        """A tensor of another type."""
        candidates = [
            name
            for name, element_type in self.types.items()
            if element_type == type_ and 0 < math.prod(self.others[name]) <= MOST
        ]
        return self.random.choice(candidates) if candidates else None

    def positive(self, x: str) -> str:
        """Of the size of `x`, and not near zero."""
        return self.add("Add", [self.add("Abs", [x], self.shapes[x]), self.number(0.5)], self.shapes[x])

    def image(self) -> str:
        """An input of one to three spatial dimensions."""
        spatial = self.random.choice([1, 2, 2, 2, 3])
        channels = self.random.choice([1, 3, 4, 8, 16, 20])
        sizes = (self.random.randint(5, 9) for _ in range(spatial))
        return self.input((self.random.choice([1, 1, 2]), channels, *sizes))

    # --- the whole

    def info(self, name: str) -> onnx.ValueInfoProto:
        """Type and shape of a tensor."""
        if name in self.types:
            return helper.make_tensor_value_info(name, self.types[name], self.others[name])
        return helper.make_tensor_value_info(name, FLOAT, self.shapes[name])

    def proto(self) -> onnx.ModelProto:
        """The graph as a model. Outputs are all tensors that nothing reads, and one that something does."""
        ends = self._ends = self._ends or self._outputs()
        return helper.make_model(
            helper.make_graph(self.nodes, "random", self.inputs, [self.info(name) for name in ends], self.constants),
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=10,
        )

    def _outputs(self) -> list[str]:
        read = {name for node in self.nodes for name in node.input}
        computed = [name for node in self.nodes for name in node.output if name]
        ends = [name for name in computed if name not in read]
        inner = [name for name in computed if name in read and name in self.shapes]
        if inner:
            ends.append(self.random.choice(inner))
        return ends

    def feeds(self, seed: int) -> dict[str, np.ndarray]:
        """Values of the inputs by name."""
        draw = np.random.default_rng(seed)
        input_values: dict[str, np.ndarray] = {}
        for info in self.inputs:
            kind = self.types.get(info.name, FLOAT)
            shape = self.others[info.name] if info.name in self.others else self.shapes[info.name]
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            if kind == FLOAT:
                input_values[info.name] = np.asarray(draw.standard_normal(shape), dtype)
            elif kind == BOOL:
                input_values[info.name] = np.asarray(draw.integers(0, 2, shape), dtype)
            else:
                below = self.below[info.name]
                input_values[info.name] = np.asarray(draw.integers(-below, below, shape), dtype)
        return input_values
