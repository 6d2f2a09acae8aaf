"""Models full of what rewrite rules look for: operators that change nothing, chains that cancel, written-out functions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from bricolage.graph.inference import infer
from bricolage.graph.prepare import bind, symbolic_dimensions
from bricolage.testing.basics import Basics
from bricolage.testing.random_graph import FLOAT

_UNARY = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Neg",
    "Abs",
    "Softplus",
    "HardSwish",
    "LeakyRelu",
    "Elu",
    "Identity",
    "Dropout",
)
STEPS = (
    "function", "function", "binary", "binary", "reshape", "transpose", "slice", "concat", "pad", "reduce", "softmax",
    "matmul", "matmul", "conv", "conv", "conv_transpose", "pool", "nothing", "nothing", "turned", "turned", "viewed",
    "viewed", "affine", "affine", "affine", "batch_norm", "batch_norm", "gemm", "gelu", "layer_norm", "written_softmax",
    "again", "again", "divided", "factored", "sliced_twice", "gated", "attention", "padded_conv", "small_conv", "small_conv",
    "small_conv_transpose", "wide_conv_transpose", *["planted"] * 10,
)  # fmt: skip


class PatternExample(Protocol):
    """A small model that a rule applies to."""

    def model(self) -> ir.Model:
        """The model, with types and shapes."""


class Plant(Protocol):
    """What is planted among other operators: one of the examples, as rewrite rules have them."""

    @property
    def examples(self) -> Sequence[PatternExample]:
        """Any of them will do."""


class Patterns(Basics):
    """Steps in addition to those of `Basics`."""

    def __init__(self, seed: int, chance: random.Random | None = None, plants: Sequence[Plant] = ()) -> None:
        super().__init__(seed, chance)
        self.opset = self.random.choice([18, 20, 23, 24])
        self._plants = plants

    def planted(self) -> None:
        if self._plants:
            self.plant(self.random.choice(self._plants))

    def plant(self, rule: Plant) -> None:
        """The operators of an example, on existing tensors where their shapes fit; seldom on one for several inputs."""
        model = ir.to_proto(_bind_example(self.random.choice(rule.examples)))
        if model.opset_import[0].version > self.opset:
            return
        names: dict[str, str] = {"": ""}
        for value in model.graph.input:
            kind = value.type.tensor_type
            shape = tuple(d.dim_value for d in kind.shape.dim)
            if kind.elem_type == FLOAT:
                taken = set(names.values()) if self.random.random() < 0.9 else set()
                fitting = [
                    name for name, tensor_shape in self.shapes.items() if tensor_shape == shape and name not in taken
                ]
                names[value.name] = self.random.choice(fitting) if fitting else self.input(shape)
            else:
                names[value.name] = f"i{len(self.inputs)}"
                self.inputs.append(helper.make_tensor_value_info(names[value.name], kind.elem_type, shape))
        for weight in model.graph.initializer:
            names[weight.name] = self.constant(onnx.numpy_helper.to_array(weight))
        inferred = {value.name: value.type.tensor_type for value in (*model.graph.value_info, *model.graph.output)}
        for node in model.graph.node:
            for name in node.output:
                names[name] = f"p{len(self.nodes)}.{name}" if name else ""
                kind = inferred.get(name)
                if kind is not None and kind.elem_type == FLOAT:
                    self.shapes[names[name]] = tuple(d.dim_value for d in kind.shape.dim)
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:], copy.output[:] = [names[n] for n in node.input], [names[n] for n in node.output]
            self.nodes.append(copy)
        for value in model.graph.output:
            kind = value.type.tensor_type
            if kind.elem_type != FLOAT:
                self.add("Cast", [names[value.name]], tuple(d.dim_value for d in kind.shape.dim), to=FLOAT)

    def scalar(self, value: float) -> str:
        shape = self.random.choice([(), (), (1,)])
        return self.constant(np.full(shape, value, np.float32))

    def function(self) -> None:
        x = self.pick()
        if x is not None:
            self.add(self.random.choice(_UNARY), [x], self.shapes[x])

    def nothing(self) -> None:
        x = self.pick()
        if x is None:
            return
        shape = self.shapes[x]
        neutral = {
            "Mul": [self.scalar(1)], "Div": [self.scalar(1)], "Add": [self.scalar(0)], "Sub": [self.scalar(0)],
            "Expand": [self.ints(*shape)], "Reshape": [self.ints(*shape)], "Tile": [self.ints(*[1] * len(shape))],
            "Pad": [self.ints(*[0] * (2 * len(shape)))], "Cast": [], "Concat": [],
        }  # fmt: skip
        if not shape:
            return
        op_type = self.random.choice(sorted(neutral))
        attributes = {"Cast": {"to": 1}, "Concat": {"axis": -1}}.get(op_type, {})
        self.add(op_type, [x, *neutral[op_type]], shape, **attributes)

    def _turn(self, x: str, perm: list[int]) -> str:
        return self.add("Transpose", [x], tuple(self.shapes[x][axis] for axis in perm), perm=perm)

    def turned(self) -> None:
        x = self.pick(range(2, 6))
        if x is None:
            return
        perm = list(range(len(self.shapes[x])))
        self.random.shuffle(perm)
        x = self._turn(x, perm)
        if self.random.random() < 0.7:
            x = self.add(self.random.choice(_UNARY), [x], self.shapes[x])
        if self.random.random() < 0.5:
            x = self.add("Add", [x, self.weights(self.shapes[x][-1])], self.shapes[x])
        if self.random.random() < 0.5:
            self.random.shuffle(perm)
        else:
            perm = sorted(range(len(perm)), key=perm.__getitem__)
        self._turn(x, perm)

    def viewed(self) -> None:
        x = self.pick(range(1, 6))
        if x is None:
            return
        shape = self.shapes[x]
        y = self.add("Unsqueeze", [x, self.ints(1)], (shape[0], 1, *shape[1:]))
        if self.random.random() < 0.5:
            y = self.add(self.random.choice(_UNARY), [y], self.shapes[y])
        if self.random.random() < 0.5:
            self.add("Squeeze", [y, self.ints(1)], shape)
        else:
            self.add("Flatten", [y], (shape[0], math.prod(shape[1:])))

    def affine(self) -> None:
        x = self.pick(range(1, 6))
        if x is None:
            return
        shape = self.shapes[x]
        for _ in range(self.random.randint(1, 3)):
            op_type = self.random.choice(["Add", "Sub", "Mul", "Div"])
            kept = self.random.choice(
                [(), (1,), (shape[-1],), (shape[1], *[1] * (len(shape) - 2)) if len(shape) > 1 else ()]
            )
            constant = self.constant(self.numbers.uniform(0.5, 1.5, kept).astype(np.float32))
            inputs = [constant, x] if op_type != "Div" and self.random.random() < 0.3 else [x, constant]
            x = self.add(op_type, inputs, shape)

    def batch_norm(self) -> None:
        x = self.conv() if self.random.random() < 0.6 else self.pick(range(2, 6))
        if x is None:
            return
        count = self.shapes[x][1]
        variance = self.constant(self.numbers.uniform(0.5, 2, count).astype(np.float32))
        parameters = [self.weights(count), self.weights(count), self.weights(count), variance]
        self.add("BatchNormalization", [x, *parameters], self.shapes[x], epsilon=1e-3)

    def padded_conv(self) -> None:
        x = self.image()
        n, c, *sizes = self.shapes[x]
        around = [0, 0, *[self.random.randint(0, 1) for _ in sizes]]
        x = self.add(
            "Pad",
            [x, self.ints(*around, *around)],
            tuple(s + 2 * p for s, p in zip((n, c, *sizes), around, strict=True)),
        )
        kernel = [min(3, size) for size in sizes]
        output_sizes = tuple(size + 2 * p - k + 1 for size, p, k in zip(sizes, around[2:], kernel, strict=True))
        self.add("Conv", [x, self.weights(4, c, *kernel, fan=c * math.prod(kernel))], (n, 4, *output_sizes))

    def small_conv(self) -> None:
        """Over tensors so small that taps meet padding alone, with directions in which nothing happens."""
        x = self.small_image()
        n, c, *sizes = self.shapes[x]
        count = len(sizes)
        kernel, strides, dilations, pads = [], [], [], [[0, 0] for _ in sizes]
        for i in range(count):
            idle = self.random.random() < 0.3
            kernel.append(1 if idle else self.random.randint(1, 4))
            strides.append(1 if idle else self.random.choice([1, 1, 2, 3]))
            dilations.append(1 if idle else self.random.choice([1, 1, 1, 2]))
            pads[i] = [0, 0] if idle else [self.random.randint(0, 3), self.random.randint(0, 3)]
        output_sizes = [
            (size + sum(pads[i]) - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i, size in enumerate(sizes)
        ]
        if min(output_sizes) < 1:
            return
        groups = self.random.choice([g for g in (1, 1, 1, 2, c) if c % g == 0])
        outputs = groups * self.random.randint(1, 3)
        weights = [self.weights(outputs, c // groups, *kernel, fan=c // groups * math.prod(kernel))]
        if self.random.random() < 0.5:
            weights.append(self.weights(outputs))
        self.add(
            "Conv",
            [x, *weights],
            (n, outputs, *output_sizes),
            group=groups,
            strides=strides,
            dilations=dilations,
            pads=[before for before, _ in pads] + [after for _, after in pads],
        )

    def small_conv_transpose(self) -> None:
        """With one stride, most often, and of one place, often; `wide_conv_transpose` has all the rest."""
        x = self.small_image()
        n, c, *sizes = self.shapes[x]
        count = len(sizes)
        strides = [self.random.randint(1, 3)] * count
        if self.random.random() < 0.2:
            strides[0] = self.random.randint(1, 3)
        kernel = [self.random.randint(1, 5) for _ in sizes]
        pads = [self.random.choice([0, 0, 1, 2]) for _ in range(2 * count)]
        extra = [self.random.randrange(stride) if self.random.random() < 0.5 else 0 for stride in strides]
        output_sizes = [
            (size - 1) * strides[i] + extra[i] + kernel[i] - pads[i] - pads[count + i] for i, size in enumerate(sizes)
        ]
        if min(output_sizes) < 1:
            return
        outputs = self.random.randint(1, 3)
        weights = [self.weights(c, outputs, *kernel, fan=c * math.prod(kernel))]
        if self.random.random() < 0.5:
            weights.append(self.weights(outputs))
        self.add(
            "ConvTranspose",
            [x, *weights],
            (n, outputs, *output_sizes),
            strides=strides,
            pads=pads,
            output_padding=extra,
        )

    def small_image(self) -> str:
        """Of one to three places in each direction; existing, or new."""
        fitting = [
            name
            for name, shape in self.shapes.items()
            if len(shape) in (3, 4, 5) and shape[1] <= 8 and max(shape[2:]) <= 3
        ]
        if fitting and self.random.random() < 0.5:
            return self.random.choice(fitting)
        count = self.random.choice([1, 2, 2, 3, 3])
        sizes = [1] * count if self.random.random() < 0.3 else [self.random.randint(1, 3) for _ in range(count)]
        return self.input((self.random.randint(1, 2), self.random.randint(1, 4), *sizes))

    def gemm(self) -> None:
        x = self.pick(range(2, 3))
        if x is None:
            x = self.input((3, 5))
        rows, inner = self.shapes[x]
        y = self.add("MatMul", [x, self.weights(inner, 6, fan=inner)], (rows, 6))
        y = self.add("Add", [y, self.weights(*self.random.choice([(6,), (1, 6), (rows, 6), (1,)]))], (rows, 6))
        if self.random.random() < 0.5:
            self.add("Mul", [y, self.weights(6)], (rows, 6))

    def gelu(self) -> None:
        x = self.pick(range(1, 7))
        if x is None:
            return
        shape = self.shapes[x]
        e = self.add("Erf", [self.add("Div", [x, self.scalar(math.sqrt(2))], shape)], shape)
        gate = self.add("Add", [e, self.scalar(1)], shape)
        if self.random.random() < 0.5:
            self.add("Mul", [self.add("Mul", [x, gate], shape), self.scalar(0.5)], shape)
        else:
            self.add("Mul", [self.add("Mul", [self.scalar(0.5), x], shape), gate], shape)

    def layer_norm(self) -> None:
        x = self.pick(range(1, 5))
        if x is None or self.shapes[x][-1] < 3:
            return
        shape, last = self.shapes[x], self.ints(-1)
        small = (*shape[:-1], 1)
        centred = self.add("Sub", [x, self.add("ReduceMean", [x, last], small)], shape)
        square = self.add("Pow", [centred, self.scalar(2)], shape)
        variance = self.add("Add", [self.add("ReduceMean", [square, last], small), self.scalar(1e-2)], small)
        y = self.add("Div", [centred, self.add("Sqrt", [variance], small)], shape)
        if self.random.random() < 0.7:
            y = self.add("Mul", [y, self.weights(shape[-1])], shape)
            self.add("Add", [self.weights(shape[-1]), y], shape)

    def written_softmax(self) -> None:
        x = self.pick(range(1, 5))
        if x is None:
            return
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        small, axes = tuple(1 if i == axis else size for i, size in enumerate(shape)), self.ints(axis)
        e = self.add("Exp", [self.add("Sub", [x, self.add("ReduceMax", [x, axes], small)], shape)], shape)
        self.add("Div", [e, self.add("ReduceSum", [e, axes], small)], shape)

    def again(self) -> None:
        node = self.random.choice(self.nodes) if self.nodes else None
        if node is None or len(node.output) != 1 or node.output[0] not in self.shapes:
            return
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        name = self.fresh()
        self.shapes[name] = self.shapes[node.output[0]]
        copy.output[0] = name
        self.nodes.append(copy)

    def divided(self) -> None:
        x = self.pick(range(1, 5))
        if x is None or self.shapes[x][-1] % 2:
            return
        *lead, size = self.shapes[x]
        names = []
        for _ in range(2):
            names.append(self.fresh())
            self.shapes[names[-1]] = (*lead, size // 2)
        self.nodes.append(helper.make_node("Split", [x], names, axis=-1, num_outputs=2))
        if self.random.random() < 0.7:
            self.add("Concat", self.random.choice([names, names[::-1]]), (*lead, size), axis=len(lead))

    def factored(self) -> None:
        x = self.pick(range(1, 5))
        if x is None:
            return
        shape = self.shapes[x]
        left, right = (self.add(self.random.choice(_UNARY), [x], shape) for _ in range(2))
        products = [self.add("Mul", [x, other], shape) for other in (left, right)]
        self.add(self.random.choice(["Add", "Sub"]), products, shape)

    def sliced_twice(self) -> None:
        x = self.pick(range(1, 5))
        if x is None or self.shapes[x][0] < 3:
            return
        size, *rest = self.shapes[x]
        cut = self.random.randint(1, size - 1)
        first = self.add("Slice", [x, self.ints(0), self.ints(cut), self.ints(0)], (cut, *rest))
        second = self.add("Slice", [x, self.ints(cut), self.ints(2**40), self.ints(0)], (size - cut, *rest))
        self.add("Concat", [first, second], (size, *rest), axis=0)

    def gated(self) -> None:
        x = self.pick()
        if x is not None:
            self.add("Mul", [x, self.add("Sigmoid", [x], self.shapes[x])], self.shapes[x])

    def attention(self) -> None:
        batch, length, heads, width = 2, self.random.randint(2, 5), 2, 3
        x = self.input((batch, length, heads * width))
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            y = self.add("MatMul", [x, self.weights(heads * width, heads * width, fan=6)], self.shapes[x])
            y = self.add("Add", [y, self.weights(heads * width)], self.shapes[x])
            y = self.add("Reshape", [y, self.ints(0, 0, heads, width)], (batch, length, heads, width))
            parts.append(self._turn(y, perm))
        q, k, v = parts
        scores = (batch, heads, length, length)
        s = self.add("Div", [self.add("MatMul", [q, k], scores), self.scalar(math.sqrt(width))], scores)
        p = self.add("Softmax", [s], scores, axis=-1)
        c = self._turn(self.add("MatMul", [p, v], (batch, heads, length, width)), [0, 2, 1, 3])
        self.add("Reshape", [c, self.ints(batch, length, heads * width)], (batch, length, heads * width))


def _bind_example(example: PatternExample) -> ir.Model:
    """The model of an example, with a size for each symbolic dimension."""
    model = example.model()
    bound = bind(model, dict.fromkeys(symbolic_dimensions(model), 3))
    infer(bound)
    return bound
