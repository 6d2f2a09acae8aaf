"""Steps at the edges of what operators allow: empty tensors, padding of one side with ceiling, chains of casts, shared operands."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from bricolage.testing.random_graph import BOOL, FLOAT, INT32, INT64, RandomGraph, Shape

_CASTS = (
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    INT32,
    INT64,
    BOOL,
)
_IDENTITIES = ("Identity", "Relu", "Abs")


def count_pool_places(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], ceil: bool) -> int:
    """Places of a pool in one direction. A last window that would start behind the tensor and its first pad is none
    (ONNX, MaxPool since opset 22; all runtimes do so for older ones too)."""
    reach = size + sum(pads) - dilation * (kernel - 1) - 1
    places = (-(-reach // stride) if ceil else reach // stride) + 1
    return places - 1 if ceil and (places - 1) * stride >= size + pads[0] else places


class Edges(RandomGraph):
    """One operator each, or a few, as in `Basics`."""

    def pool_at_the_edge(self) -> str | None:
        """With pads that differ between sides, dilations and rounding up."""
        x = self.pick(range(3, 6))
        if x is None:
            return None
        n, c, *sizes = self.shapes[x]
        which = self.random.choice(["MaxPool", "MaxPool", "AveragePool"])
        kernel = [self.random.randint(1, 4) for _ in sizes]
        strides = [self.random.randint(1, 4) for _ in sizes]
        dilations = [self.random.choice([1, 1, 1, 2]) for _ in sizes]
        ceil = self.random.random() < 0.6
        pads = [
            (self.random.randint(0, k - 1) if k > 1 else 0, self.random.randint(0, k - 1) if k > 1 else 0)
            for k in kernel
        ]
        if any(size + sum(p) < d * (k - 1) + 1 for size, p, d, k in zip(sizes, pads, dilations, kernel, strict=True)):
            return None
        output_sizes = [
            count_pool_places(*words, ceil) for words in zip(sizes, kernel, strides, dilations, pads, strict=True)
        ]
        if min(output_sizes) < 1 or n * c * math.prod(output_sizes) > 20_000:
            return None
        words: dict[str, object] = {"count_include_pad": self.random.randint(0, 1)} if which == "AveragePool" else {}
        return self.add(
            which,
            [x],
            (n, c, *output_sizes),
            kernel_shape=kernel,
            strides=strides,
            dilations=dilations,
            pads=[before for before, _ in pads] + [behind for _, behind in pads],
            ceil_mode=int(ceil),
            **words,
        )

    def emptied(self) -> str | None:
        """A tensor without elements, and what can be made of it: sums of nothing, the other part of a Concat, pads alone."""
        x = self.pick(range(1, 5))
        if x is None:
            return None
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        none = (*shape[:axis], 0, *shape[axis + 1 :])
        at = self.random.randint(0, shape[axis])
        empty = self.add("Slice", [x, self.ints(at), self.ints(at), self.ints(axis)], none)
        if self.random.random() < 0.5:
            empty = self.add(self.random.choice(["Relu", "Neg", "Sigmoid"]), [empty], none)
        kind = self.random.choice(["sum", "concat", "pad", "product", "gather", "leave"])
        if kind == "sum":
            return self.add("ReduceSum", [empty, self.ints(axis)], (*shape[:axis], *shape[axis + 1 :]), keepdims=0)
        if kind == "concat":
            return self.add("Concat", [empty, x, empty], shape, axis=axis)
        if kind == "pad":
            before = [int(i == axis) for i in range(len(shape))]
            return self.add(
                "Pad",
                [empty, self.ints(*before, *[0] * len(shape)), self.number(0.25)],
                tuple(1 if i == axis else extent for i, extent in enumerate(shape)),
            )
        if kind == "product" and axis == len(shape) - 1 and len(shape) > 1:
            return self.add("MatMul", [empty, self.constant(np.zeros((0, 5), np.float32))], (*shape[:-1], 5))
        if kind == "gather":
            return self.add("Gather", [x, self.constant(np.zeros((0,), np.int64))], none, axis=axis)
        return empty

    def cast_chain(self) -> str | None:
        """Through one to three other types and back; the tensor is scaled, so that most integers differ."""
        if not self.raw:
            return None
        x = self.random.choice(self.raw)
        shape = self.shapes[x]
        y, kind = self.add("Mul", [x, self.number(4)], shape), FLOAT
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choice(_CASTS)
            if kind == onnx.TensorProto.UINT8:  # of negative numbers it is undefined
                y = self._cast(self._cast(y, shape, BOOL), shape, kind)
            else:
                y = self._cast(y, shape, kind)
        if kind == BOOL and self.random.random() < 0.5:
            y = self.add_other("Not", [y], shape, BOOL)
        return self.add("Cast", [y], shape, to=FLOAT)

    def _cast(self, x: str, shape: Shape, kind: int) -> str:
        return self.add_other("Cast", [x], shape, kind, to=kind)

    def shared(self) -> str | None:
        """One tensor several times over: as both operands, by two equal operators, and in two parts that are joined again."""
        x = self.pick()
        if x is None:
            return None
        shape = self.shapes[x]
        op_type = self.random.choice(["Tanh", "Sigmoid", "Neg", "Abs"])
        left, right = self.add(op_type, [x], shape), self.add(op_type, [x], shape)
        both = self.add(
            self.random.choice(["Add", "Sub", "Mul", "Max"]), [left, self.random.choice([left, right])], shape
        )
        return self.add(self.random.choice(["Add", "Sub", "Mul"]), [both, self.random.choice([x, left])], shape)

    def passed_through(self) -> str | None:
        """An input, or a constant, that becomes an output by an operator that may change nothing."""
        x = self.random.choice(self.raw) if self.raw and self.random.random() < 0.7 else None
        if x is None:
            shape = self.random.choice([(), (1,), (3,), (2, 1, 3)])
            return self.add(self.random.choice(_IDENTITIES), [self.weights(*shape)], shape)
        return self.add(self.random.choice(_IDENTITIES), [x], self.shapes[x])

    def stepped_slice(self) -> str | None:
        """With starts, ends and steps that reach beyond both ends of the tensor."""
        x = self.pick(range(1, 6))
        if x is None:
            return None
        shape = self.shapes[x]
        axes = sorted(self.random.sample(range(len(shape)), self.random.randint(1, len(shape))))
        starts = [self.random.randint(-shape[axis] - 3, shape[axis] + 3) for axis in axes]
        ends = [self.random.choice([-(2**40), 2**40, self.random.randint(-9, 9)]) for _ in axes]
        steps = [self.random.choice([-3, -1, 1, 1, 2, 5]) for _ in axes]
        output_shape = list(shape)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            output_shape[axis] = measure_slice(shape[axis], start, end, step)
        named = [axis - len(shape) if self.random.random() < 0.5 else axis for axis in axes]
        parameters = [self.ints(*starts), self.ints(*ends), self.ints(*named), self.ints(*steps)]
        return self.add("Slice", [x, *parameters], tuple(output_shape))

    def mixed_output(self) -> str | None:
        """Conditions of comparisons, chosen by them: booleans and floats."""
        if not self.raw:
            return None
        x = self.random.choice(self.raw)
        shape = self.shapes[x]
        over = self.add_other("Greater", [x, self.number(0)], shape, BOOL)
        kept = self.add("Where", [over, x, self.number(-0.5)], shape)
        if self.random.random() < 0.5:
            self.nodes.append(helper.make_node("Not", [over], [under := self.fresh()]))
            self.others[under], self.types[under] = shape, BOOL
        return kept


def measure_slice(size: int, start: int, end: int, step: int) -> int:
    """Extent of a slice as ONNX defines it: negative positions count from the end, then both are clamped."""
    low, high = (0, size) if step > 0 else (0, size - 1)
    first = min(max(start + size if start < 0 else start, low), high)
    least, most = (0, size) if step > 0 else (-1, size - 1)
    last = min(max(end + size if end < 0 else end, least), most)
    return max(0, -(-(last - first) // step))


EDGE_STEPS = (
    "pool_at_the_edge", "pool_at_the_edge", "emptied", "cast_chain", "cast_chain", "shared", "passed_through",
    "stepped_slice", "mixed_output",
)  # fmt: skip
