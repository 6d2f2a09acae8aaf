"""Random regions with tensors that are not float32, and what operators of them need."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from tests.backends.native.random_regions import FLOAT, Region

INT32, INT64, BOOL = onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
MOST = 20_000
"""Elements of a tensor that others are made of."""
_EXTENTS = (1, 2, 3, 5, 7, 17, 33)
"""Of inputs: smaller than a vector, and vectors of 4, 8 and 16 numbers with a rest."""


class TypedRegion(Region):
    """Grows as `Region` does. Tensors that are not float32 have their types in `types` and their shapes in `others`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.types: dict[str, int] = {}
        self.others: dict[str, tuple[int, ...]] = {}
        self.below: dict[str, int] = {}
        """What integers given as inputs lie below, counted from its negative."""
        self.raw: list[str] = []
        """Inputs of floats: no two ways to compute them round differently, so that orders and comparisons of them are certain."""

    # --- tensors

    def fresh(self) -> str:
        return f"t{len(self.shapes) + len(self.others)}"

    def input(self, shape: tuple[int, ...]) -> str:
        name = super().input(shape)
        self.raw.append(name)
        return name

    def sized(self) -> tuple[int, ...]:
        """A random shape of rank 0 to 6 and moderate size."""
        shape: tuple[int, ...] = ()
        for _ in range(self.random.randint(0, 6)):
            extent = self.random.choice(_EXTENTS)
            shape = (*shape, extent if math.prod(shape) * extent <= 4_000 else 1)
        return shape

    def whole_numbers(self, shape: tuple[int, ...], below: int, type_: int = INT64) -> str:
        """An input of integers in [-below, below)."""
        name = self.fresh()
        self.others[name], self.types[name], self.below[name] = shape, type_, below
        self.inputs.append(helper.make_tensor_value_info(name, type_, shape))
        return name

    def add_other(
        self, op_type: str, inputs: list[str], shape: tuple[int, ...], type_: int, **attributes: object
    ) -> str:
        """An operator with a result that is not float32."""
        name = self.fresh()
        self.others[name], self.types[name] = shape, type_
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def add_all(self, op_type: str, inputs: list[str], shapes: list[tuple[int, ...]], **attributes: object) -> None:
        """An operator with several results, all float32."""
        names = []
        for shape in shapes:
            names.append(self.fresh())
            self.shapes[names[-1]] = shape
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))

    def pick_other(self, type_: int) -> str | None:
        found = [name for name, own in self.types.items() if own == type_ and math.prod(self.others[name]) <= MOST]
        return self.random.choice(found) if found else None

    def positive(self, x: str) -> str:
        """Of the size of `x`, and not near zero."""
        return self.add("Add", [self.add("Abs", [x], self.shapes[x]), self.number(0.5)], self.shapes[x])

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def info(self, name: str) -> onnx.ValueInfoProto:
        if name in self.types:
            return helper.make_tensor_value_info(name, self.types[name], self.others[name])
        return super().info(name)

    def proto(self, opset: int = 24) -> onnx.ModelProto:
        return super().proto(opset)

    def feeds(self, seed: int) -> dict[str, np.ndarray]:
        """Values of the inputs."""
        draw = np.random.default_rng(seed)
        found: dict[str, np.ndarray] = {}
        for info in self.inputs:
            kind = self.types.get(info.name, FLOAT)
            shape = self.others[info.name] if info.name in self.others else self.shapes[info.name]
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            if kind == FLOAT:
                found[info.name] = draw.standard_normal(shape).astype(dtype)
            elif kind == BOOL:
                found[info.name] = np.asarray(draw.integers(0, 2, shape), dtype)
            else:
                found[info.name] = np.asarray(
                    draw.integers(-self.below[info.name], self.below[info.name], shape), dtype
                )
        return found
