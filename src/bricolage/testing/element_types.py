"""Random operators in element types other than float32, and the operators that make and use them."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from bricolage.testing.random_graph import BOOL, FLOAT, INT32, INT64, RandomGraph

_T = onnx.TensorProto
FLOAT16, BFLOAT16, FLOAT64 = _T.FLOAT16, _T.BFLOAT16, _T.DOUBLE
INT8, UINT8 = _T.INT8, _T.UINT8
UNSIGNED = (_T.UINT8, _T.UINT16, _T.UINT32, _T.UINT64)
SMALL = (_T.INT8, _T.INT16, INT32, INT64, *UNSIGNED, FLOAT16, BFLOAT16, FLOAT64, FLOAT)
"""Types that hold small whole numbers without rounding them."""
SIDEWAYS = ("Acos", "Asin", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Asinh")
"""Functions of numbers between -1 and 1."""


class Types(RandomGraph):
    """One operator, or a few, each, as in `Basics`."""

    def converted(self) -> str | None:
        """Small whole numbers from one type to another, with a sum in it. No step rounds, so float64 gives the same."""
        name = self.whole_numbers(self.sized(), 9, self.random.choice([INT32, INT64]))
        shape = self.others[name]
        name = self.add_other("Abs", [name], shape, self.types[name])
        for _ in range(self.random.randint(1, 3)):
            type_ = self.random.choice(SMALL)
            if self.random.random() < 0.5:
                name = self.add_other("Cast", [name], shape, type_, to=type_)
            else:
                like = self.constant(np.zeros(2, helper.tensor_dtype_to_np_dtype(type_)))
                name = self.add_other("CastLike", [name, like], shape, type_)
            ones = self.constant(np.ones((), helper.tensor_dtype_to_np_dtype(type_)))
            name = self.add_other(self.random.choice(["Add", "Max", "Mul"]), [name, ones], shape, type_)
        return self.add("Cast", [name], shape, to=FLOAT)

    def wide(self) -> str | None:
        """A few functions in float64."""
        x = self.pick()
        if x is None:
            return None
        shape = self.shapes[x]
        name = self.add_other("Cast", [x], shape, FLOAT64, to=FLOAT64)
        for _ in range(self.random.randint(1, 3)):
            op_type = self.random.choice(
                ["Tanh", "Sigmoid", "Erf", "Sin", "Softplus", "Abs", "Neg", "Atan", "ReduceSum"]
            )
            if op_type == "ReduceSum" and shape:
                axis = self.random.randrange(len(shape))
                shape = (*shape[:axis], 1, *shape[axis + 1 :])
                name = self.add_other(op_type, [name, self.ints(axis)], shape, FLOAT64)
            elif op_type != "ReduceSum":
                name = self.add_other(op_type, [name], shape, FLOAT64)
        return self.add("Cast", [name], shape, to=FLOAT)

    def sideways(self) -> str | None:
        """Functions of angles, and their inverses."""
        x = self.pick()
        if x is None:
            return None
        shape = self.shapes[x]
        tame = self.add("Mul", [self.add("Tanh", [x], shape), self.number(0.9)], shape)
        op_type = self.random.choice([*SIDEWAYS, "Acosh"])
        if op_type == "Acosh":
            tame = self.add("Add", [tame, self.number(2)], shape)
        return self.add(op_type, [tame], shape)

    def bits(self) -> str | None:
        """Of unsigned integers, and of signed ones inverted."""
        type_ = self.random.choice(UNSIGNED)
        dtype = helper.tensor_dtype_to_np_dtype(type_)
        n = self.whole_numbers(self.sized(), 9, INT64)
        shape = self.others[n]
        name = self.add_other("Cast", [self.add_other("Abs", [n], shape, INT64)], shape, type_, to=type_)
        by = self.constant(np.asarray(self.random.choice([0, 1, 3, 100]), dtype))
        name = self.add_other("BitShift", [name, by], shape, type_, direction=self.random.choice(["LEFT", "RIGHT"]))
        back = self.add_other("Cast", [name], shape, INT64, to=INT64)
        back = self.add_other("BitwiseNot", [back], shape, INT64)
        return self.add_other("Mod", [back, self.constant(np.int64(11))], shape, INT64)

    def logical(self) -> str | None:
        """Two conditions on the same numbers, put together."""
        n = self.whole_numbers(self.sized(), 9, INT64)
        shape = self.others[n]
        low = self.add_other("Less", [n, self.constant(np.int64(3))], shape, BOOL)
        high = self.add_other("Greater", [n, self.constant(np.int64(-4))], shape, BOOL)
        return self.add_other(self.random.choice(["And", "Or", "Xor"]), [low, high], shape, BOOL)

    def quantised(self) -> str | None:
        """Whole numbers to 8 bits, multiplied, and back; scales are powers of two, so that nothing is rounded."""
        n = self.whole_numbers((self.random.choice([1, 3]), 6, 5), 9, INT64)
        shape = self.others[n]
        x = self.add("Cast", [n], shape, to=FLOAT)
        dtype = self.random.choice([np.uint8, np.int8])
        type_ = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        scale, zero = self.number(self.random.choice([0.5, 1.0, 2.0])), self.constant(np.asarray(20, dtype))
        q = self.add_other("QuantizeLinear", [x, scale, zero], shape, type_)
        kind = self.random.randrange(3)
        if kind == 0:
            return self.add("DequantizeLinear", [q, scale, zero], shape)
        weights = self.constant(self.numbers.integers(1, 9, (shape[-1], 4)).astype(np.uint8))
        if kind == 1:
            product = self.add_other("MatMulInteger", [q, weights, zero], (*shape[:-1], 4), INT32)
            return self.add("Cast", [product], (*shape[:-1], 4), to=FLOAT)
        # Half a unit, so that no quotient lies between two whole numbers.
        out = [self.number(64.0), self.constant(np.asarray(3, dtype))]
        given = [q, scale, zero, weights, self.number(0.25), self.constant(np.uint8(1)), *out]
        product = self.add_other("QLinearMatMul", given, (*shape[:-1], 4), type_)
        return self.add("Cast", [product], (*shape[:-1], 4), to=FLOAT)

    def integer_window(self) -> str | None:
        """An integer convolution, padded or not."""
        n = self.whole_numbers((1, 3, 7, 6), 9, INT64)
        shape = self.others[n]
        name = self.add_other("Cast", [self.add_other("Abs", [n], shape, INT64)], shape, UINT8, to=UINT8)
        pad = self.random.randint(0, 1)
        weights = self.constant(self.numbers.integers(0, 9, (4, 3, 3, 3)).astype(np.uint8))
        out = (1, 4, 5 + 2 * pad, 4 + 2 * pad)
        attributes = {"pads": [pad] * 4}
        if self.random.random() < 0.5:
            convolved = self.add_other("ConvInteger", [name, weights], out, INT32, **attributes)
            return self.add("Cast", [convolved], out, to=FLOAT)
        scale, zero = self.number(0.5), self.constant(np.uint8(0))
        given = [name, scale, zero, weights, scale, zero, self.number(32.0), zero]
        return self.add("Cast", [self.add_other("QLinearConv", given, out, UINT8, **attributes)], out, to=FLOAT)

    def dynamic_quantised(self) -> str | None:
        """The scale alone: what lies between two whole numbers may be rounded to either."""
        x = self.pick()
        if x is None:
            return None
        scale, shape = self.fresh(), self.shapes[x]
        self.shapes[scale] = ()
        quantised = [f"{scale}_bytes", scale, f"{scale}_zero"]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], quantised))
        for name, rank in ((quantised[0], len(shape)), (quantised[2], 0)):
            self.add_other("Shape", [name], (rank,), INT64)
        return self.add("Mul", [scale, self.number(2)], ())

    def scattered(self) -> str | None:
        x = self.pick(range(1, 4))
        if x is None or math.prod(self.shapes[x]) > 500:
            return None
        shape = self.shapes[x]
        if self.random.random() < 0.5:
            axis = self.random.randrange(len(shape))
            rows = (*shape[:axis], min(2, shape[axis]), *shape[axis + 1 :])
            order = np.argsort(self.numbers.random(shape), axis)  # no place twice: which update counts is then certain
            places = self.constant(np.take(order, range(rows[axis]), axis).astype(np.int64))
            reduction = self.random.choice(["none", "add", "mul", "max", "min"])
            given = [x, places, self.weights(*rows)]
            return self.add("ScatterElements", given, shape, axis=axis, reduction=reduction)
        place = self.constant(np.array([[self.random.randrange(shape[0])]], np.int64))
        reduction = self.random.choice(["none", "add", "max"])
        return self.add("ScatterND", [x, place, self.weights(1, *shape[1:])], shape, reduction=reduction)

    def kept(self) -> str | None:
        """A cache that is written to."""
        cache, update = self.input((2, 3, 8, 4)), self.input((2, 3, 2, 4))
        start = self.constant(np.array([1, 5], np.int64))
        return self.add("TensorScatter", [cache, update, start], (2, 3, 8, 4), axis=2)

    def unpooled(self) -> str | None:
        x = self.input((1, 2, 6, 6))
        pooled = self.fresh()
        self.shapes[pooled] = (1, 2, 3, 3)
        places = f"{pooled}_places"
        self.nodes.append(helper.make_node("MaxPool", [x], [pooled, places], kernel_shape=[2, 2], strides=[2, 2]))
        return self.add("MaxUnpool", [pooled, places], (1, 2, 6, 6), kernel_shape=[2, 2], strides=[2, 2])

    def determinant(self) -> str | None:
        size = self.random.randint(1, 4)
        return self.add("Det", [self.input((3, size, size))], (3,))

    def standardised(self) -> str | None:
        x = self.input((2, 3, 5, 4))
        if self.random.random() < 0.5:
            return self.add("GlobalLpPool", [x], (2, 3, 1, 1), p=2)
        return self.add("MeanVarianceNormalization", [x], (2, 3, 5, 4))

    def window_function(self) -> str | None:
        size = self.constant(np.int64(12))
        return self.add(self.random.choice(["HannWindow", "HammingWindow", "BlackmanWindow"]), [size], (12,))

    def moving_weights(self) -> str | None:
        """Convolutions whose weights are computed."""
        if self.random.random() < 0.5:
            x, w = self.input((2, 4, 7, 6)), self.input((6, 2, 3, 3))
            return self.add("Conv", [x, w], (2, 6, 4, 3), group=2, strides=[2, 2], pads=[1, 1, 1, 1])
        x, w = self.input((1, 4, 3, 4)), self.input((4, 3, 3, 2))
        return self.add("ConvTranspose", [x, w], (1, 6, 7, 8), group=2, strides=[2, 2])


TYPE_STEPS = (
    "converted", "converted", "wide", "wide", "sideways", "sideways", "bits", "logical", "quantised", "integer_window",
    "dynamic_quantised", "scattered", "kept", "unpooled", "determinant", "standardised", "window_function", "moving_weights",
)  # fmt: skip
