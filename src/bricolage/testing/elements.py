"""Random operators on elements and places: functions, conditions, integers, movement, look-ups by computed places."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from bricolage.testing.random_graph import BOOL, FLOAT, INT32, INT64, MOST, RandomGraph


class Elements(RandomGraph):
    """One operator each, as in `Basics`."""

    # --- element-wise

    def quotient(self) -> str | None:
        x, y = self.pick(), self.pick()
        if x is None or y is None or self.shapes[x] != self.shapes[y]:
            y = x
        return None if x is None or y is None else self.add("Div", [x, self.positive(y)], self.shapes[x])

    def power(self) -> str | None:
        x = self.pick()
        if x is None:
            return None
        base = self.positive(x)
        op_type = self.random.choice(["Sqrt", "Log", "Reciprocal", "Pow", "Pow"])
        if op_type != "Pow":
            return self.add(op_type, [base], self.shapes[x])
        exponents = [self.number(e) for e in (0.5, 2, -0.5, -1, 1.3)]
        exponents.append(self.weights(*self.shapes[x][-1:]))
        return self.add("Pow", [base, self.random.choice(exponents)], self.shapes[x])

    def parametric(self) -> str | None:
        x = self.pick()
        if x is None:
            return None
        shape = self.shapes[x]
        which = self.random.randrange(7)
        if which == 0:
            slope = tuple(extent if self.random.random() < 0.5 else 1 for extent in shape[-2:])
            return self.add("PRelu", [x, self.weights(*slope)], shape)
        if which == 1:
            return self.add("HardSigmoid", [x], shape, alpha=0.3, beta=0.4)
        if which == 2:
            return self.add("Gelu", [x], shape, approximate="tanh")
        if which == 3:
            return self.add("Clip", [x, "", self.number(0.7)], shape)
        if which == 4:
            return self.add("Clip", [x, self.number(-0.2)], shape)
        if which == 5:
            return self.add("Swish", [x], shape, alpha=1.5)
        return self.add(self.random.choice(["Identity", "Dropout", "Ceil", "Round"]), [x], shape)

    def several(self) -> str | None:
        x = self.pick()
        if x is None:
            return None
        shape = self.shapes[x]
        others = [name for name, other_shape in self.shapes.items() if other_shape in (shape, shape[1:], ())]
        parts = [x, *self.random.choices(others, k=self.random.randint(1, 3))]
        return self.add(self.random.choice(["Sum", "Mean", "Max", "Min"]), parts, shape)

    def condition(self) -> str | None:
        """Of floats that are certain, or of integers."""
        kind = self.random.choice(["float", "int", "logic", "given", "special"])
        compare = self.random.choice(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
        if kind == "float" and self.raw:
            x = self.random.choice(self.raw)
            return self.add_other(compare, [x, self.weights(*self.shapes[x][-1:])], self.shapes[x], BOOL)
        if kind == "int" and (n := self.pick_other(INT64)) is not None:
            return self.add_other(compare, [n, self.constant(np.int64(1))], self.others[n], BOOL)
        if kind == "logic" and (b := self.pick_other(BOOL)) is not None:
            if self.random.random() < 0.3:
                return self.add_other("Not", [b], self.others[b], BOOL)
            alike = [
                n
                for n, element_type in self.types.items()
                if element_type == BOOL and self.others[n] in (self.others[b], ())
            ]
            op_type = self.random.choice(["And", "Or", "Xor"])
            return self.add_other(op_type, [b, self.random.choice(alike)], self.others[b], BOOL)
        if kind == "special" and (y := self.pick()) is not None:
            return self.add_other(self.random.choice(["IsNaN", "IsInf"]), [y], self.shapes[y], BOOL)
        x = self.pick() or self.input(self.sized())
        return self.whole_numbers(self.shapes[x], 2, BOOL)

    def choice(self) -> str | None:
        b = self.pick_other(BOOL) or self.condition()
        if b is None:
            return None
        fits = [
            name
            for name, other_shape in self.shapes.items()
            if other_shape in (self.others[b], self.others[b][-1:], ())
        ]
        x, y = (self.random.choice(fits) if fits else self.weights(*self.others[b][-1:]) for _ in range(2))
        shape = np.broadcast_shapes(self.others[b], self.shapes.get(x, ()), self.shapes.get(y, ()))
        return self.add("Where", [b, x, y], tuple(shape))

    def count(self) -> str | None:
        """Arithmetic of integers, small again at its end."""
        type_ = self.random.choice([INT32, INT64, INT64])
        n = self.pick_other(type_) or self.whole_numbers(self.sized(), 9, type_)
        shape = self.others[n]
        dtype = helper.tensor_dtype_to_np_dtype(type_)
        other = self.constant(np.asarray(self.numbers.integers(1, 6, shape[-1:]), dtype))
        op_type = self.random.choice(
            ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "BitwiseAnd", "BitwiseXor", "BitwiseOr"]
        )
        combined = self.add_other(op_type, [n, other], shape, type_)
        return self.add_other("Mod", [combined, self.constant(np.asarray(11, dtype))], shape, type_)

    def as_float(self) -> str | None:
        name = self.pick_other(self.random.choice([INT32, INT64, BOOL]))
        return None if name is None else self.add("Cast", [name], self.others[name], to=FLOAT)

    def as_integer(self) -> str | None:
        if not self.raw:
            return None
        x = self.random.choice(self.raw)
        scaled = self.add("Mul", [x, self.number(4)], self.shapes[x])  # exact
        return self.add_other("Cast", [scaled], self.shapes[x], type_ := self.random.choice([INT32, INT64]), to=type_)

    # --- movement

    def split(self) -> None:
        x = self.pick(range(1, 7))
        if x is None:
            return
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        if shape[axis] < 2:
            return
        cut = self.random.randint(1, shape[axis] - 1)
        parts = [(*shape[:axis], extent, *shape[axis + 1 :]) for extent in (cut, shape[axis] - cut)]
        self.add_all("Split", [x, self.ints(cut, shape[axis] - cut)], parts, axis=axis)

    def expand(self) -> str | None:
        x = self.pick(range(5))
        if x is None:
            return None
        shape = tuple(self.random.choice([1, 2, 3]) if extent == 1 else extent for extent in self.shapes[x])
        shape = (*self.random.choice([(), (2,), (3, 1)]), *shape)
        return self.add("Expand", [x, self.ints(*shape)], shape) if 0 < math.prod(shape) <= MOST and shape else None

    def ones(self) -> str | None:
        """Dimensions of one come and go."""
        x = self.pick()
        if x is None:
            return None
        shape = self.shapes[x]
        single = [axis for axis, extent in enumerate(shape) if extent == 1]
        if single and self.random.random() < 0.6:
            axis = self.random.choice(single)
            return self.add("Squeeze", [x, self.ints(axis)], (*shape[:axis], *shape[axis + 1 :]))
        axis = self.random.randint(0, len(shape))
        if self.random.random() < 0.3:
            flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
            return self.add("Flatten", [x], flat, axis=axis)
        return (
            self.add("Unsqueeze", [x, self.ints(axis)], (*shape[:axis], 1, *shape[axis:])) if len(shape) < 6 else None
        )

    def tile(self) -> str | None:
        x = self.pick(range(1, 6))
        if x is None:
            return None
        times = [self.random.choice([1, 1, 2, 3]) for _ in self.shapes[x]]
        shape = tuple(extent * by for extent, by in zip(self.shapes[x], times, strict=True))
        return self.add("Tile", [x, self.ints(*times)], shape) if math.prod(shape) <= MOST else None

    def blocks(self) -> str | None:
        """Between depth and space."""
        x = self.pick(range(4, 5)) or self.image()
        if len(self.shapes[x]) != 4:
            return None
        n, c, h, w = self.shapes[x]
        if c % 4 == 0:
            mode = self.random.choice(["DCR", "CRD"])
            return self.add("DepthToSpace", [x], (n, c // 4, 2 * h, 2 * w), blocksize=2, mode=mode)
        if h % 2 == 0 and w % 2 == 0:
            return self.add("SpaceToDepth", [x], (n, 4 * c, h // 2, w // 2), blocksize=2)
        even = (n, c, h + h % 2, w + w % 2)
        return self.add("CenterCropPad", [x, self.ints(*even[2:])], even, axes=[2, 3])

    def look_up(self) -> str | None:
        """At places that are known only when it runs."""
        x = self.pick(range(1, 5))
        if x is None:
            return None
        shape = self.shapes[x]
        axis = self.random.randrange(len(shape))
        kind = self.random.choice(["Gather", "GatherElements", "GatherND", "OneHot"])
        if kind == "Gather":
            index_shape = self.random.choice([(), (3,), (2, 5)])
            output_shape = (*shape[:axis], *index_shape, *shape[axis + 1 :])
            return self.add(
                kind, [x, self.whole_numbers(index_shape, shape[axis])], output_shape, axis=axis - len(shape)
            )
        if kind == "GatherElements":
            output_shape = (*shape[:axis], self.random.randint(1, 4), *shape[axis + 1 :])
            return self.add(kind, [x, self.whole_numbers(output_shape, shape[axis])], output_shape, axis=axis)
        if kind == "GatherND":
            depth = self.random.randint(1, len(shape))
            places = self.whole_numbers((4, depth), min(shape[:depth]))
            return self.add(kind, [x, places], (4, *shape[depth:]))
        hot = self.whole_numbers(shape[:2], 4)
        values = self.constant(np.asarray([-0.5, 2], np.float32))
        return self.add(kind, [hot, self.constant(np.int64(4)), values], (*shape[:2], 4), axis=-1)

    def reverse_sequence(self) -> str | None:
        x = self.pick(range(2, 5))
        if x is None:
            return None
        time, batch = self.shapes[x][:2]
        lengths = self.constant(np.asarray(self.numbers.integers(1, time + 1, batch), np.int64))
        return self.add("ReverseSequence", [x, lengths], self.shapes[x], time_axis=0, batch_axis=1)

    def resize(self) -> str | None:
        x = self.pick(range(3, 5))
        if x is None:
            return None
        shape = self.shapes[x]
        scales = [self.random.choice([0.5, 1.0, 1.5, 2.0, 3.0]) for _ in shape[2:]]
        sizes = tuple(math.floor(extent * by) for extent, by in zip(shape[2:], scales, strict=True))
        if min(sizes) < 1 or math.prod(shape[:2]) * math.prod(sizes) > MOST:
            return None
        mode = self.random.choice(["nearest", "linear", "cubic"])
        coordinates = self.random.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
        extra = {"antialias": 1} if mode != "nearest" and self.random.random() < 0.2 else {}
        scale = self.constant(np.asarray([1, 1, *scales], np.float32))
        return self.add(
            "Resize",
            [x, "", scale],
            (*shape[:2], *sizes),
            mode=mode,
            coordinate_transformation_mode=coordinates,
            **extra,
        )

    def facts(self) -> str | None:
        """What is known of a tensor without its values."""
        x = self.pick(range(1, 7))
        if x is None:
            return None
        if self.random.random() < 0.5:
            extents = self.add_other("Shape", [x], (len(self.shapes[x]),), INT64)
        else:
            extents = self.add_other("Size", [x], (), INT64)
        value = self.add("Cast", [extents], self.others[extents], to=FLOAT)
        return self.add("Mul", [value, self.number(0.125)], self.shapes[value])

    def made(self) -> str | None:
        """Tensors of which only the shape is computed."""
        x = self.pick(range(2, 3))
        if x is None or self.random.random() < 0.5:
            steps = [self.constant(np.float32(value)) for value in (-1, 1, 0.25)]
            return self.add("Range", steps, (8,))
        if self.random.random() < 0.5:
            return self.add("EyeLike", [x], self.shapes[x], k=self.random.randint(-1, 1), dtype=FLOAT)
        shape = self.shapes[x][-1:]
        value = helper.make_tensor("value", FLOAT, [1], [0.25])
        return self.add("ConstantOfShape", [self.ints(*shape)], shape, value=value)


ELEMENT_STEPS = (
    "quotient", "power", "parametric", "several", "condition", "choice", "choice", "count", "as_float", "as_float",
    "as_integer", "split", "expand", "ones", "tile", "blocks", "look_up", "reverse_sequence", "resize", "facts",
    "made",
)  # fmt: skip
