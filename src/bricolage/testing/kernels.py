"""Random operators that kernels are built around: reductions, orders, normalisations, pooling, losses, products, recurrences."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from bricolage.testing.random_graph import INT64, MOST, RandomGraph


class Kernels(RandomGraph):
    """One operator each, as in `Basics`."""

    # --- reductions and rows

    def put_together(self) -> str | None:
        x = self.pick(range(1, 7))
        if x is None:
            return None
        op_type = self.random.choice(
            ["ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceProd"]
        )
        x = self.positive(x) if op_type in ("ReduceLogSum", "ReduceProd") else x
        shape = self.shapes[x]
        axes = sorted(self.random.sample(range(len(shape)), self.random.randint(1, len(shape))))
        if op_type == "ReduceProd" and math.prod(shape[axis] for axis in axes) > 10:
            axes = [min(range(len(shape)), key=lambda axis: shape[axis])]
        keep = self.random.random() < 0.5
        reduced_shape = tuple(1 if i in axes else e for i, e in enumerate(shape) if keep or i not in axes)
        every = [] if len(axes) == len(shape) else [self.ints(*axes)]
        return self.add(op_type, [x, *every], reduced_shape, keepdims=int(keep))

    def order(self) -> str | None:
        """Of inputs, and of what is computed of them exactly."""
        candidates = [name for name in self.raw if self.shapes[name] and math.prod(self.shapes[name]) <= MOST]
        if not candidates:
            return None
        x = self.random.choice(candidates)
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        x = self.add(self.random.choice(["Neg", "Abs", "Relu"]), [x], shape)
        kind = self.random.choice(["ArgMax", "ArgMin", "Hardmax", "TopK"])
        if kind == "Hardmax":
            return self.add(kind, [x], shape, axis=axis)
        if kind != "TopK":
            last = self.random.randint(0, 1)
            keep = (*shape[:axis], 1, *shape[axis + 1 :])
            return self.add_other(kind, [x], keep, INT64, axis=axis, select_last_index=last)
        k = self.random.randint(1, shape[axis])
        kept = (*shape[:axis], k, *shape[axis + 1 :])
        values, places = self.fresh(), f"{self.fresh()}_places"
        self.shapes[values] = kept
        self.others[places], self.types[places] = kept, INT64
        words = {"axis": axis, "largest": self.random.randint(0, 1)}
        self.nodes.append(helper.make_node(kind, [x, self.ints(k)], [values, places], **words))
        return values

    def normalise_more(self) -> str | None:
        kind = self.random.choice(
            ["LayerNormalization", "RMSNormalization", "GroupNormalization", "BatchNormalization", "LRN", "Lp"]
        )
        ranks = range(3, 6) if kind in ("GroupNormalization", "LRN", "BatchNormalization") else range(1, 7)
        x = self.pick(ranks)
        if x is None:
            return None
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        if kind in ("LayerNormalization", "RMSNormalization"):
            inner = shape[axis:]
            if math.prod(inner) < 3:
                return None
            words = {"axis": axis, "epsilon": 1e-2}
            if kind == "RMSNormalization":
                return self.add(kind, [x, self.weights(*inner)], shape, **words)
            few = (*shape[:axis], *(1,) * len(inner))
            outputs = [shape, few, few] if self.random.random() < 0.4 else [shape]
            self.add_all(kind, [x, self.weights(*inner), self.weights(*inner)], outputs, **words)
            return None
        if kind == "Lp":
            return self.add("LpNormalization", [self.positive(x)], shape, axis=axis, p=self.random.choice([1, 2]))
        channels = shape[1]
        if kind == "LRN":
            return self.add(kind, [x], shape, size=self.random.choice([1, 3, 5]), alpha=0.01, bias=1.5)
        if kind == "BatchNormalization":
            spread = self.constant(self.numbers.uniform(0.5, 2, channels).astype(np.float32))
            return self.add(kind, [x, *(self.weights(channels) for _ in range(3)), spread], shape)
        if math.prod(shape[2:]) < 2:
            return None
        groups = self.random.choice([g for g in range(1, channels + 1) if channels % g == 0])
        words = {"num_groups": groups, "epsilon": 0.1}
        return self.add(kind, [x, self.weights(channels), self.weights(channels)], shape, **words)

    def pool_more(self) -> str | None:
        x = self.pick(range(3, 6))
        if x is None:
            return None
        n, c, *sizes = self.shapes[x]
        which = self.random.choice(["global", "MaxPool", "AveragePool", "LpPool"])
        if which == "global":
            op_type = self.random.choice(["GlobalAveragePool", "GlobalMaxPool"])
            return self.add(op_type, [x], (n, c, *(1 for _ in sizes)))
        if min(sizes) < 4:
            return None
        kernel, strides = [self.random.randint(2, 3) for _ in sizes], [self.random.randint(1, 2) for _ in sizes]
        words: dict[str, object] = {"kernel_shape": kernel, "strides": strides}
        if self.random.random() < 0.4:
            words["auto_pad"] = self.random.choice(["SAME_UPPER", "SAME_LOWER"])
            out = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
        else:
            ceil = int(self.random.random() < 0.4)
            out = [(size - k + ceil * (s - 1)) // s + 1 for size, k, s in zip(sizes, kernel, strides, strict=True)]
            words["ceil_mode"] = ceil
        if which == "AveragePool" and not words.get("ceil_mode"):
            words["count_include_pad"] = self.random.randint(0, 1)
        return self.add(which, [x], (n, c, *out), **words)

    def loss(self) -> str | None:
        x = self.pick(range(2, 4))
        if x is None:
            return None
        n, c, *rest = self.shapes[x]
        labels = self.add_other(
            "Mod", [self.whole_numbers((n, *rest), c), self.constant(np.int64(c))], (n, *rest), INT64
        )
        reduction = self.random.choice(["mean", "sum", "none"])
        shape = (n, *rest) if reduction == "none" else ()
        op_type = self.random.choice(["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
        return self.add(op_type, [x, labels, self.positive_weights(c)], shape, reduction=reduction)

    def positive_weights(self, size: int) -> str:
        return self.constant(self.numbers.uniform(0.5, 2, size).astype(np.float32))

    # --- products

    def gemm(self) -> str | None:
        x = self.pick(range(2, 3))
        if x is None:
            return None
        turned = self.random.randint(0, 1)
        m, k = self.shapes[x][::-1] if turned else self.shapes[x]
        n = self.random.choice([1, 5, 16, 37])
        weights = self.weights(n, k, fan=k) if (across := self.random.randint(0, 1)) else self.weights(k, n, fan=k)
        bias = self.random.choice(
            [[], [self.weights(n)], [self.weights(m, 1)], [self.weights(m, n)], [self.number(0.3)]]
        )
        words = {"alpha": self.random.choice([1.0, 0.5]), "beta": self.random.choice([1.0, 2.0])}
        return self.add("Gemm", [x, weights, *bias], (m, n), transA=turned, transB=across, **words)

    def computed_product(self) -> str | None:
        """Of two computed tensors, with batches that broadcast, or of a vector."""
        x = self.pick(range(1, 6))
        if x is None:
            return None
        shape = self.shapes[x]
        k = shape[-1]
        scaled = self.add("Mul", [x, self.number(1 / math.sqrt(k))], shape)
        if len(shape) == 1 or self.random.random() < 0.2:
            return self.add("MatMul", [scaled, self.input((k,))], shape[:-1])
        n = self.random.choice([1, 4, 9, 18])
        batch = tuple(extent if self.random.random() < 0.6 else 1 for extent in shape[:-2])
        batch = batch[self.random.randint(0, len(batch)) :]
        y = self.add("Tanh", [self.input((*batch, k, n))], (*batch, k, n))
        if self.random.random() < 0.3:
            back = (*range(len(batch)), len(batch) + 1, len(batch))
            given = self.add(
                "Transpose",
                [scaled],
                (*shape[:-2], k, shape[-2]),
                perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2],
            )
            turned = self.add("Transpose", [y], (*batch, n, k), perm=list(back))
            return self.add("MatMul", [turned, given], (*shape[:-2], n, shape[-2]))
        return self.add("MatMul", [scaled, y], (*shape[:-1], n))

    def einsum(self) -> str | None:
        b, h, i, j, d = (self.random.choice([1, 2, 3, 5, 9, 17]) for _ in range(5))
        sizes = {"b": b, "h": h, "i": i, "j": j, "d": d}
        equation = self.random.choice(
            [
                "bhid,bhjd->bhij",
                "bihd,bjhd->bhij",
                "bhij,bjhd->bihd",
                "id,dj->ij",
                "bi,bi->b",
                "bij->jb",
                "i,j->ij",
                "...id,...jd->...ij",
            ]
        )
        given, wanted = equation.replace("...", "b").split("->")
        terms = [self.input(tuple(sizes[c] for c in term)) for term in given.split(",")]
        first = self.add("Sin", [terms[0]], self.shapes[terms[0]])
        return self.add("Einsum", [first, *terms[1:]], tuple(sizes[c] for c in wanted), equation=equation)

    def attention(self) -> str | None:
        """Written out with a mask, or as one operator."""
        batch, heads, rows, keys, width = (
            self.random.choice(c) for c in ((1, 2), (1, 3), (1, 5, 18), (4, 7, 33), (4, 8, 18))
        )
        q, k, v = (self.input((batch, heads, length, width)) for length in (rows, keys, keys))
        if self.random.random() < 0.4:
            mask = [self.weights(rows, keys)] if self.random.random() < 0.5 else []
            causal = int(not mask and rows == keys)
            return self.add("Attention", [q, k, v, *mask], (batch, heads, rows, width), is_causal=causal)
        turned = self.add("Transpose", [k], (batch, heads, width, keys), perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [q, turned], (batch, heads, rows, keys))
        scaled = self.add("Mul", [scores, self.number(width**-0.5)], self.shapes[scores])
        if self.random.random() < 0.6:
            scaled = self.add(
                "Add", [scaled, self.weights(*self.random.choice([(keys,), (rows, keys)]))], self.shapes[scores]
            )
        shares = self.add("Softmax", [scaled], self.shapes[scores], axis=-1)
        mixed = self.add("MatMul", [shares, v], (batch, heads, rows, width))
        back = self.add("Transpose", [mixed], (batch, rows, heads, width), perm=[0, 2, 1, 3])
        return self.add("Reshape", [back, self.ints(batch, rows, heads * width)], (batch, rows, heads * width))

    def rotary(self) -> str | None:
        batch, heads, length, width = (self.random.choice(c) for c in ((1, 2), (1, 3), (1, 5), (4, 6, 18)))
        x = self.input((batch, heads, length, width))
        angles = [self.weights(batch, length, width // 2) for _ in range(2)]
        return self.add("RotaryEmbedding", [x, *angles], self.shapes[x], interleaved=self.random.randint(0, 1))

    def wide_conv(self) -> str | None:
        """Of more channels than a vector has numbers."""
        channels, out = self.random.choice([17, 32, 48]), self.random.choice([16, 33, 64])
        size, kernel = self.random.choice([6, 9, 14]), self.random.choice([1, 3])
        x = self.input((1, channels, size, size))
        groups = self.random.choice([1, 1, channels])
        out = channels if groups > 1 else out
        weights = self.weights(out, channels // groups, kernel, kernel, fan=channels // groups * kernel**2)
        convolved = self.add(
            "Conv", [x, weights, self.weights(out)], (1, out, size, size), group=groups, auto_pad="SAME_UPPER"
        )
        return self.add(self.random.choice(["Relu", "Sigmoid", "HardSwish"]), [convolved], self.shapes[convolved])

    def sampled(self) -> str | None:
        x = self.pick(range(4, 5))
        if x is None:
            return None
        n, c, *_ = self.shapes[x]
        grid = self.weights(n, 3, 4, 2)
        words = {
            "mode": self.random.choice(["linear", "nearest"]),
            "padding_mode": self.random.choice(["zeros", "border"]),
        }
        return self.add("GridSample", [x, grid], (n, c, 3, 4), **words)

    def states(self) -> None:
        """A recurrence with all its outputs."""
        steps, batch, inputs, hidden = (self.random.choice(c) for c in ((1, 3, 6), (1, 3), (2, 5), (1, 6, 17)))
        kind, gates = self.random.choice([("RNN", 1), ("GRU", 3), ("LSTM", 4)])
        x = self.add("Tanh", [self.input((steps, batch, inputs))], (steps, batch, inputs))
        weights = [
            self.weights(1, gates * hidden, inputs, fan=inputs),
            self.weights(1, gates * hidden, hidden, fan=hidden),
        ]
        shapes = [(steps, 1, batch, hidden), *[(1, batch, hidden)] * (2 if kind == "LSTM" else 1)]
        self.add_all(kind, [x, *weights], shapes, hidden_size=hidden)


KERNEL_STEPS = (
    "put_together", "order", "normalise_more", "pool_more", "loss", "rotary", "gemm", "computed_product",
    "einsum", "attention", "wide_conv", "sampled", "states",
)  # fmt: skip
