"""Terms of other tools (`taso`) as ONNX graphs.

A variable is a matrix, an image or a kernel by where it stands; all of a kind have one shape, as in TASO's generator, so that one
variable may stand in several places. `split` divides where its argument was joined, which is followed from operator to operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_value
from bricolage.rewrite.builder import GraphBuilder
from bricolage.rewrite.rule import MatchFailure
from bricolage.rulemaking.taso import Term, TermEquation

_SIZE = 4
"""Of rows, columns, samples and channels."""
_PIXELS = 5
_KERNEL = 3
_ACTIVATIONS = {1: "Sigmoid", 2: "Relu", 3: "Tanh"}

Cut: TypeAlias = "tuple[int, Cut | None, Cut | None]"
"""Where a dimension was joined: the size of the first part, and how the parts were."""


class UnknownTerm(Exception):
    """An operator that has no counterpart here, or shapes that do not fit."""


@dataclass(frozen=True)
class Shapes:
    """What the variables of an equation are."""

    sizes: Mapping[str, tuple[int, ...]]
    weights: frozenset[str]
    """Those that are kernels of convolutions or right sides of products and nothing else."""


def shapes(equation: TermEquation) -> Shapes:
    """Shapes of the variables, by where they stand."""
    roles = _Roles()
    roles.same(equation.left, equation.right)
    for side in (equation.left, equation.right):
        roles.visit(side)
    sizes = {name: roles.shape(name) for side in (equation.left, equation.right) for name in side.variables}
    data = _data(equation.left) | _data(equation.right)
    return Shapes(sizes, frozenset(set(sizes) - data))


def _data(term: Term, *, weight: bool = False) -> set[str]:
    """Variables that stand where no weight does: anywhere but on the right of a product or a convolution."""
    if term.is_variable:
        return set() if weight else {term.name}
    if term.name in ("matmul", "conv2d"):
        first, second = term.terms
        return _data(first, weight=weight) | _data(second, weight=True)
    return set[str]().union(*(_data(child, weight=weight) for child in term.terms))


@dataclass
class _Roles:
    """Terms that have one shape but for joined dimensions, together; and what is known of each."""

    parent: dict[Term, Term] = field(default_factory=dict)
    known: dict[Term, set[str]] = field(default_factory=dict)

    def find(self, term: Term) -> Term:
        while (above := self.parent.get(term, term)) != term:
            term = above
        return term

    def same(self, first: Term, second: Term) -> None:
        a, b = self.find(first), self.find(second)
        if a != b:
            self.parent[a] = b
            self.known.setdefault(b, set()).update(self.known.pop(a, set()))

    def be(self, term: Term, role: str) -> None:
        self.known.setdefault(self.find(term), set()).add(role)

    def visit(self, term: Term) -> None:
        for child in term.terms:
            self.visit(child)
        name, terms = term.name, term.terms
        if name in ("matmul", "transpose"):
            for operand in (term, *terms):
                self.be(operand, "matrix")
        elif name == "conv2d":
            self.be(terms[0], "image")
            self.be(terms[1], "kernel")
            self.same(term, terms[0])
        elif name in ("poolavg", "poolmax"):
            self.be(term, "image")
            self.same(term, terms[0])
        elif name == "enlarge":
            self.be(terms[0], "small")
            self.be(term, "kernel")
        elif name == "smul":
            self.be(terms[1], "number")
            self.same(term, terms[0])
        else:
            if name == "concat" and len(term.numbers) > 1 and term.numbers[1] == 4:
                self.be(term, "image")
            for operand in terms:
                self.same(term, operand)

    def shape(self, name: str) -> tuple[int, ...]:
        roles = self.known.get(self.find(Term(name)), set())
        if "number" in roles:
            return ()
        if "small" in roles:
            return (_SIZE, _SIZE, 1, 1)
        if "kernel" in roles:
            return (_SIZE, _SIZE, _KERNEL, _KERNEL)
        return (_SIZE, _SIZE, _PIXELS, _PIXELS) if "image" in roles else (_SIZE, _SIZE)


class TermBuilder:
    """Writes terms over given variables, equal ones once."""

    def __init__(self, op: GraphBuilder, variables: Mapping[str, ir.Value]) -> None:
        self._op, self._variables = op, variables
        self._made: dict[Term, ir.Value] = {}
        self._cuts: dict[ir.Value, dict[int, Cut]] = {}

    def value(self, term: Term) -> ir.Value:
        """The tensor of a term.

        Raises:
            UnknownTerm: it has none.
        """
        if term not in self._made:
            try:
                self._made[term] = self._variables[term.name] if term.is_variable else self._written(term)
            except (MatchFailure, ValueError, IndexError) as error:
                raise UnknownTerm(f"{term}: {error}") from error
        return self._made[term]

    def _written(self, term: Term) -> ir.Value:
        name, numbers = term.name, term.numbers
        if name in ("split_0", "split_1"):
            return self._part(term.terms[0], int(name[-1]))
        if name in ("Imatmul", "Iewmul", "Iconv", "Cpool"):
            return self._constant(term)
        given = [self.value(child) for child in term.terms]
        operand_cuts = [self._cuts.get(value, {}) for value in given]
        cuts = {axis: cut for axis_cuts in reversed(operand_cuts) for axis, cut in axis_cuts.items()}
        match name:
            case "ewadd" | "ewmul":
                output = (self._op.Add if name == "ewadd" else self._op.Mul)(*given)
            case "smul":
                output, cuts = self._op.Mul(*given), operand_cuts[0]
            case "relu":
                output = self._op.Relu(*given)
            case "transpose":
                output, cuts = (
                    self._op.Transpose(*given, perm=[1, 0]),
                    {1 - axis: cut for axis, cut in operand_cuts[0].items()},
                )
            case "matmul":
                output = self._apply_activation(self._op.MatMul(*given), numbers[0] if numbers else 0)
                cuts = _drop_missing_cuts({0: operand_cuts[0].get(0), 1: operand_cuts[1].get(1)})
            case "concat":
                output = self._op.Concat(*given, axis=numbers[0])
                cuts = {a: cut for a, cut in cuts.items() if a != numbers[0]}
                cuts[numbers[0]] = (
                    _sizes(given[0])[numbers[0]],
                    operand_cuts[0].get(numbers[0]),
                    operand_cuts[1].get(numbers[0]),
                )
            case "conv2d":
                output = self._convolution(given[0], given[1], numbers)
                cuts = _drop_missing_cuts({0: operand_cuts[0].get(0), 1: operand_cuts[1].get(0)})
            case "poolavg" | "poolmax":
                output = self._pool(given[0], name, numbers)
            case "enlarge":
                by = [numbers[0] - _sizes(given[0])[2], numbers[1] - _sizes(given[0])[3]]
                pads = [0, 0, by[0] // 2, by[1] // 2, 0, 0, by[0] - by[0] // 2, by[1] - by[1] // 2]
                output = self._op.Pad(given[0], self._op.integers(pads))
            case _:
                raise UnknownTerm(f"{name} has no counterpart")
        self._cuts[output] = cuts
        return output

    def _apply_activation(self, value: ir.Value, activation: int) -> ir.Value:
        if not activation:
            return value
        if activation not in _ACTIVATIONS:
            raise UnknownTerm(f"activation {activation} has no counterpart")
        output: ir.Value = getattr(self._op, _ACTIVATIONS[activation])(value)
        return output

    def _convolution(self, data: ir.Value, kernel: ir.Value, numbers: Sequence[int]) -> ir.Value:
        strides, (padding, activation) = list(numbers[:2]), numbers[2:4]
        image, weight = _sizes(data), _sizes(kernel)
        pads = _pads(image[2:], weight[2:], strides) if padding == 0 else [0] * 4
        if image[1] % weight[1]:
            raise UnknownTerm(f"{image[1]} channels are no groups of {weight[1]}")
        conv = self._op.Conv(
            data, kernel, strides=strides, pads=pads, group=image[1] // weight[1], kernel_shape=list(weight[2:])
        )
        return self._apply_activation(conv, activation)

    def _pool(self, data: ir.Value, name: str, numbers: Sequence[int]) -> ir.Value:
        window, strides, padding = list(numbers[:2]), list(numbers[2:4]), numbers[4]
        pads = _pads(_sizes(data)[2:], window, strides) if padding == 0 else [0] * 4
        if name == "poolmax":
            return self._op.MaxPool(data, kernel_shape=window, strides=strides, pads=pads)
        return self._op.AveragePool(data, kernel_shape=window, strides=strides, pads=pads, count_include_pad=1)

    def _part(self, split: Term, place: int) -> ir.Value:
        value, axis = self.value(split.terms[0]), split.numbers[0]
        cut = self._cuts.get(value, {}).get(axis)
        if cut is None:
            raise UnknownTerm("it is split where nothing was joined")
        whole = _sizes(value)[axis]
        parts = self._op.many("Split", 2, value, self._op.integers([cut[0], whole - cut[0]]), axis=axis)
        for part, below in zip(parts, cut[1:], strict=True):
            self._cuts[part] = _drop_missing_cuts({**self._cuts[value], axis: below})
        self._made.update({Term(f"split_{i}", (), (split,)): part for i, part in enumerate(parts)})
        return parts[place]

    def _constant(self, term: Term) -> ir.Value:
        """Kernels and matrices that change nothing; the kernel of an average."""
        eye = np.eye(_SIZE, dtype=np.float32)
        if term.name == "Imatmul":
            return self._op._constant(eye)
        if term.name == "Iewmul":
            return self._op._constant(np.ones((), np.float32))
        height, width = term.numbers
        kernel = np.zeros((_SIZE, _SIZE, height, width), np.float32)
        if term.name == "Iconv":
            kernel[:, :, height // 2, width // 2] = eye
        else:
            kernel += eye[:, :, None, None] / np.float32(height * width)
        return self._op._constant(kernel)


def _drop_missing_cuts(cuts: Mapping[int, Cut | None]) -> dict[int, Cut]:
    return {axis: cut for axis, cut in cuts.items() if cut is not None}


def _sizes(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return value.shape.numpy()


def _pads(image: Sequence[int], window: Sequence[int], strides: Sequence[int]) -> list[int]:
    """What keeps the size, divided by the stride: the rest behind."""
    whole = [
        max((-(-size // stride) - 1) * stride + kernel - size, 0)
        for size, kernel, stride in zip(image, window, strides, strict=True)
    ]
    return [pad // 2 for pad in whole] + [pad - pad // 2 for pad in whole]


def make_inputs(found: Shapes, constant: bool) -> dict[str, ir.Value]:
    """Inputs of these shapes; with `constant`, the weights are initializers with some numbers."""
    draw = np.random.default_rng(0)
    inputs: dict[str, ir.Value] = {}
    for name, sizes in found.sizes.items():
        if constant and name in found.weights:
            inputs[name] = constant_value(name, draw.uniform(0.5, 1.5, sizes).astype(np.float32))
        else:
            inputs[name] = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(sizes))
    return inputs
