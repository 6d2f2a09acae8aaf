"""Steps that add one operator each: element-wise, movement, reductions, products, convolutions, recurrences, pooling."""

from __future__ import annotations

import math

import numpy as np

from bricolage.testing.random_graph import MOST, RandomGraph

UNARY = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Exp",
    "Neg",
    "Abs",
    "Floor",
    "Softplus",
    "HardSwish",
    "LeakyRelu",
    "Elu",
    "Gelu",
    "Selu",
    "Celu",
    "Mish",
    "Softsign",
    "Shrink",
    "ThresholdedRelu",
    "Sin",
    "Cos",
    "Sign",
)
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class Basics(RandomGraph):
    """One operator each; None where nothing fits."""

    def unary(self) -> str | None:
        x = self.pick()
        if x is None:
            return None
        op_type = self.random.choice(UNARY)
        if op_type == "Exp":
            x = self.add("Clip", [x, self.constant(np.float32(-3)), self.constant(np.float32(3))], self.shapes[x])
        return self.add(op_type, [x], self.shapes[x])

    def binary(self) -> str | None:
        x, y = self.pick(), self.pick()
        if x is None or y is None:
            return None
        try:
            shape = np.broadcast_shapes(self.shapes[x], self.shapes[y])
        except ValueError:
            base_shape = self.shapes[x]
            kept = tuple(extent if self.random.random() < 0.5 else 1 for extent in base_shape)
            y, shape = self.weights(*kept[self.random.randrange(len(kept) + 1) :]), base_shape
        if math.prod(shape) > MOST:
            return None
        return self.add(self.random.choice(BINARY), [x, y], tuple(shape))

    def reshape(self) -> str | None:
        x = self.pick()
        if x is None:
            return None
        left, factors = math.prod(self.shapes[x]), list[int]()
        while left > 1 and len(factors) < 5:
            divisors = [d for d in range(2, left + 1) if left % d == 0][:8]
            factors.append(self.random.choice(divisors))
            left //= factors[-1]
        factors.append(left)
        self.random.shuffle(factors)
        return self.add("Reshape", [x, self.ints(*factors)], tuple(factors))

    def transpose(self) -> str | None:
        x = self.pick(range(2, 7))
        if x is None:
            return None
        perm = list(range(len(self.shapes[x])))
        self.random.shuffle(perm)
        return self.add("Transpose", [x], tuple(self.shapes[x][axis] for axis in perm), perm=perm)

    def slice(self) -> str | None:
        x = self.pick(range(1, 7))
        if x is None:
            return None
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        if shape[axis] < 2:
            return None
        step = self.random.choice([1, 1, 2, -1])
        start = self.random.randrange(shape[axis])
        stop = shape[axis] if step > 0 else -shape[axis] - 1
        extent = len(range(shape[axis])[slice(start, stop if step > 0 else None, step)])
        parameters = [self.ints(start), self.ints(stop), self.ints(axis), self.ints(step)]
        return self.add("Slice", [x, *parameters], (*shape[:axis], extent, *shape[axis + 1 :]))

    def concat(self) -> str | None:
        x = self.pick(range(1, 7))
        if x is None:
            return None
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        alike = [
            name
            for name, other_shape in self.shapes.items()
            if len(other_shape) == len(shape)
            and all(a == b for i, (a, b) in enumerate(zip(other_shape, shape, strict=True)) if i != axis)
        ]
        parts = [x, *self.random.choices(alike, k=self.random.randint(1, 3))]
        extent = sum(self.shapes[part][axis] for part in parts)
        return self.add("Concat", parts, (*shape[:axis], extent, *shape[axis + 1 :]), axis=axis)

    def pad(self) -> str | None:
        x = self.pick(range(1, 5))
        if x is None:
            return None
        shape = self.shapes[x]
        before = [self.random.randint(0, 2) for _ in shape]
        behind = [self.random.randint(0, 2) for _ in shape]
        padded_shape = tuple(a + b + c for a, b, c in zip(before, shape, behind, strict=True))
        return self.add("Pad", [x, self.ints(*before, *behind), self.constant(np.float32(0.5))], padded_shape)

    def gather(self) -> str | None:
        x = self.pick(range(1, 5))
        if x is None:
            return None
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        indices = self.numbers.integers(-shape[axis], shape[axis], self.random.choice([(3,), (2, 2), ()]))
        output_shape = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
        return self.add("Gather", [x, self.constant(np.asarray(indices, np.int64))], output_shape, axis=axis)

    def reduce(self) -> str | None:
        x = self.pick(range(1, 7))
        if x is None:
            return None
        shape = self.shapes[x]
        axes = sorted(self.random.sample(range(len(shape)), self.random.randint(1, len(shape))))
        keep = self.random.random() < 0.5
        reduced_shape = tuple(1 if i in axes else e for i, e in enumerate(shape) if keep or i not in axes)
        op_type = self.random.choice(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceMean"])
        return self.add(op_type, [x, self.ints(*axes)], reduced_shape, keepdims=int(keep))

    def softmax(self) -> str | None:
        x = self.pick(range(1, 6))
        if x is None:
            return None
        return self.add("Softmax", [x], self.shapes[x], axis=self.random.randrange(len(self.shapes[x])))

    def normalise(self) -> str | None:
        x = self.pick(range(1, 6))
        if x is None or self.shapes[x][-1] < 4:
            return None
        n = self.shapes[x][-1]
        return self.add("LayerNormalization", [x, self.weights(n), self.weights(n)], self.shapes[x], epsilon=1e-2)

    def matmul(self) -> str | None:
        x = self.pick(range(2, 5))
        if x is None:
            return None
        *lead, k = self.shapes[x]
        if self.random.random() < 0.3:
            turned = self.add(
                "Transpose", [x], (*lead[:-1], k, lead[-1]), perm=[*range(len(lead) - 1), len(lead), len(lead) - 1]
            )
            scaled = self.add("Mul", [turned, self.constant(np.float32(1 / k))], self.shapes[turned])
            return self.add("MatMul", [x, scaled], (*lead, lead[-1]))
        n = self.random.choice([1, 3, 16, 33, 70])
        return self.add("MatMul", [x, self.weights(k, n, fan=k)], (*lead, n))

    def conv(self) -> str | None:
        x = self.pick(range(3, 6))
        x = x if x is not None and self.random.random() < 0.7 else self.image()
        n, c, *sizes = self.shapes[x]
        groups = self.random.choice([g for g in (1, 1, 2, 4, c) if c % g == 0])
        out = groups * self.random.choice([1, 2, 5, 16]) if groups < c or c == 1 else c
        spatial = len(sizes)
        kernel = [self.random.randint(1, min(3, size)) for size in sizes]
        strides = [self.random.choice([1, 1, 2]) for _ in sizes]
        dilations = [
            self.random.choice([1, 1, 2]) if (k - 1) * 2 < size else 1 for k, size in zip(kernel, sizes, strict=True)
        ]
        pads = [self.random.randint(0, 1) for _ in range(2 * spatial)]
        output_sizes = tuple(
            (size + pads[i] + pads[spatial + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
            for i, size in enumerate(sizes)
        )
        if out > 64 or min(output_sizes) < 1:
            return None
        fan = c // groups * math.prod(kernel)
        return self.add(
            "Conv",
            [x, self.weights(out, c // groups, *kernel, fan=fan), self.weights(out)],
            (n, out, *output_sizes),
            group=groups,
            kernel_shape=kernel,
            strides=strides,
            dilations=dilations,
            pads=pads,
        )

    def conv_transpose(self) -> str | None:
        x = self.pick(range(4, 5))
        if x is None or self.shapes[x][1] > 32:
            return None
        n, c, h, w = self.shapes[x]
        stride, kernel, edge, out = self.random.choice([(2, 4, 1, 3), (1, 3, 1, 5), (2, 2, 0, 4), (3, 5, 1, 2)])
        return self.add(
            "ConvTranspose",
            [x, self.weights(c, out, kernel, kernel, fan=c * kernel), self.weights(out)],
            (n, out, *((size - 1) * stride + kernel - 2 * edge for size in (h, w))),
            strides=[stride] * 2,
            kernel_shape=[kernel] * 2,
            pads=[edge] * 4,
        )

    def wide_conv_transpose(self) -> str | None:
        """With groups, dilations, padding of one side, and sizes that are no multiple of the stride."""
        x = self.pick(range(3, 5))
        if x is None or self.shapes[x][1] > 32:
            return None
        n, c, *sizes = self.shapes[x]
        spatial = len(sizes)
        groups = self.random.choice([g for g in (1, 2, c) if c % g == 0])
        strides = [self.random.randint(1, 3) for _ in sizes]
        dilations = [self.random.randint(1, 2) for _ in sizes]
        kernel = [self.random.randint(1, 3) for _ in sizes]
        extra = [self.random.randrange(stride) for stride in strides]
        pads = [self.random.randint(0, 1) for _ in range(2 * spatial)]
        output_sizes = tuple(
            (size - 1) * strides[i] + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[spatial + i]
            for i, size in enumerate(sizes)
        )
        if min(output_sizes) < 1:
            return None
        out = self.random.choice([1, 2, 3])
        weights = [self.weights(c, out, *kernel, fan=c * math.prod(kernel)), self.weights(out * groups)]
        return self.add(
            "ConvTranspose",
            [x, *weights],
            (n, out * groups, *output_sizes),
            group=groups,
            strides=strides,
            dilations=dilations,
            kernel_shape=kernel,
            pads=pads,
            output_padding=extra,
        )

    def normalise_channels(self) -> str | None:
        x = self.pick(range(3, 6))
        if x is None or math.prod(self.shapes[x][2:]) < 2:
            return None
        shape = self.shapes[x]
        return self.add(
            "InstanceNormalization", [x, self.weights(shape[1]), self.weights(shape[1])], shape, epsilon=0.1
        )

    def log_softmax(self) -> str | None:
        x = self.pick(range(1, 6))
        if x is None:
            return None
        axis = self.random.randrange(len(self.shapes[x]))
        return self.add("LogSoftmax", [x], self.shapes[x], axis=axis)

    def running_sum(self) -> str | None:
        x = self.pick(range(1, 5))
        if x is None:
            return None
        axis = self.random.randrange(len(self.shapes[x]))
        ways = {name: self.random.randint(0, 1) for name in ("exclusive", "reverse")}
        total = self.add("CumSum", [x, self.constant(np.int64(axis))], self.shapes[x], **ways)
        return self.add("Mul", [total, self.constant(np.float32(1 / self.shapes[x][axis]))], self.shapes[x])

    def mirrored_pad(self) -> str | None:
        x = self.pick(range(1, 5))
        if x is None or min(self.shapes[x]) < 3:
            return None
        shape = self.shapes[x]
        before, behind = ([self.random.randint(0, 2) for _ in shape] for _ in range(2))
        padded_shape = tuple(a + b + c for a, b, c in zip(before, shape, behind, strict=True))
        mode = self.random.choice(["reflect", "edge", "wrap"])
        return self.add("Pad", [x, self.ints(*before, *behind)], padded_shape, mode=mode)

    def triangle(self) -> str | None:
        x = self.pick(range(2, 6))
        if x is None:
            return None
        k = self.constant(np.int64(self.random.randint(-2, 2)))
        return self.add("Trilu", [x, k], self.shapes[x], upper=self.random.randint(0, 1))

    def gather_elements(self) -> str | None:
        x = self.pick(range(1, 5))
        if x is None:
            return None
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        output_shape = (*shape[:axis], self.random.randint(1, 4), *shape[axis + 1 :])
        indices = self.constant(self.numbers.integers(-shape[axis], shape[axis], output_shape))
        return self.add("GatherElements", [x, indices], output_shape, axis=axis)

    def recurrence(self) -> str | None:
        x = self.pick(range(2, 4))
        if x is None:
            return None
        if len(self.shapes[x]) == 2:
            x = self.add("Unsqueeze", [x, self.ints(1)], (self.shapes[x][0], 1, self.shapes[x][1]))
        steps, batch, inputs = self.shapes[x]
        if steps > 12:
            return None
        kind, gates = self.random.choice([("RNN", 1), ("GRU", 3), ("LSTM", 4)])
        hidden, direction = (
            self.random.choice([1, 5, 16, 20]),
            self.random.choice(["forward", "reverse", "bidirectional"]),
        )
        d = 1 + (direction == "bidirectional")
        weights = [
            self.weights(d, gates * hidden, inputs, fan=inputs),
            self.weights(d, gates * hidden, hidden, fan=hidden),
            self.weights(d, 2 * gates * hidden, fan=9),
        ]
        output_shape = (steps, d, batch, hidden)
        return self.add(kind, [x, *weights], output_shape, hidden_size=hidden, direction=direction)

    def pool(self) -> str | None:
        x = self.pick(range(3, 6))
        if x is None or min(self.shapes[x][2:]) < 3:
            return None
        n, c, *sizes = self.shapes[x]
        spatial = len(sizes)
        kernel = [self.random.randint(1, 3) for _ in sizes]
        strides = [self.random.randint(1, 2) for _ in sizes]
        pads = [self.random.randint(0, k // 2) for k in (*kernel, *kernel)]
        output_sizes = tuple(
            (size + pads[i] + pads[spatial + i] - kernel[i]) // strides[i] + 1 for i, size in enumerate(sizes)
        )
        op_type = self.random.choice(["MaxPool", "AveragePool"])
        return self.add(op_type, [x], (n, c, *output_sizes), kernel_shape=kernel, strides=strides, pads=pads)


BASIC_STEPS = (
    "unary", "unary", "binary", "binary", "binary", "reshape", "transpose", "slice", "concat", "pad", "gather", "reduce",
    "softmax", "normalise", "matmul", "matmul", "conv", "conv", "conv", "conv_transpose", "pool", "wide_conv_transpose",
    "normalise_channels", "log_softmax", "running_sum", "mirrored_pad", "triangle", "gather_elements", "recurrence",
)  # fmt: skip
