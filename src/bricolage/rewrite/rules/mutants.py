"""Mutations of convolutions over images by enumeration, as PET's generator makes them (Wang et al., OSDI 2021).

A mutation moves factors of axes: the height of an image, say, is divided, and the parts become images of the batch, groups of
channels, or lie side by side. It knows nothing of windows and borders: what is wrong is corrected (`rewrite.rules.correction`).
Each move is a rule. Of the mutations of two moves, which `enumerate_mutations` lists as well, none is a program that single moves
one after the other do not make: `benchmarks.rewrites.mutants` shows it, and races the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import onnx_ir as ir

from bricolage.rewrite.analyses.linear import Window
from bricolage.rewrite.predicates import require, sizes
from bricolage.rewrite.rule import Example, Operators, Rule
from bricolage.rewrite.rules.correction import Convolve, CorrectedConvolution, Sizes

_BATCH, _CHANNELS, _HEIGHT, _WIDTH = range(4)
_WORDS = ("batch", "groups", "height", "width")
MOST_MOVES = 2
"""Of a mutation: with more, more time goes into moving data than any convolution can save."""


@dataclass(frozen=True)
class AxisMove:
    """A factor of one axis of the data becomes a part of another axis."""

    axis: int
    """Of the data: the batch, the height or the width."""
    factor: int
    """0: all of the axis."""
    phases: bool
    """Elements whose distance is a multiple of the factor stay together; else neighbours do."""
    to: int
    """The axis that gets longer; of the channels, the number of groups."""
    interleaved: bool
    """Elements of the parts take turns on that axis; else each part stays together."""

    def __str__(self) -> str:
        parts = ("all of " if self.factor == 0 else "phases of " if self.phases else "parts of ") + _WORDS[self.axis]
        return f"{parts} {'between' if self.interleaved else 'into'} {_WORDS[self.to]}"

    @property
    def word(self) -> str:
        """Of a rule's name."""
        of = _WORDS[self.axis] if self.factor == 0 else f"{'phases' if self.phases else 'parts'}-of-{_WORDS[self.axis]}"
        return f"{of}-{'between' if self.interleaved else 'into'}-{_WORDS[self.to]}"


Mutation = tuple[AxisMove, ...]


def enumerate_moves(factor: int = 2) -> Iterator[AxisMove]:
    """All moves of a factor, and of the whole batch."""
    for axis, to in itertools.product((_BATCH, _HEIGHT, _WIDTH), range(4)):
        if axis == to:
            continue
        for phases, interleaved in itertools.product((False, True), (False, True)):
            # The order of images in a batch changes nothing; groups lie one behind the other.
            if (interleaved and to in (_BATCH, _CHANNELS)) or (phases and axis == _BATCH):
                continue
            yield AxisMove(axis, 0 if axis == _BATCH else factor, phases, to, interleaved)


def enumerate_mutations(most: int = MOST_MOVES) -> Iterator[Mutation]:
    """All mutations of at most `most` moves, short ones first."""
    moves = list(enumerate_moves())
    for count in range(1, most + 1):
        yield from itertools.product(moves, repeat=count)


@dataclass(frozen=True)
class _Moved:
    """A move with its factor."""

    move: AxisMove
    factor: int


@dataclass(frozen=True)
class MovedConvolution:
    """What a mutation convolves: the data, and attributes of the convolution; and how to undo the moves."""

    data: ir.Value
    copies: int
    """Of the groups, and of the weights."""
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    moved: tuple[_Moved, ...]
    result: tuple[int, ...]
    """Sizes that the convolution must have."""

    def undo(self, op: Operators, result: ir.Value) -> ir.Value:
        """The result of the original convolution from that of the moved one."""
        require(sizes(result) == self.result, "the mutant has other sizes")
        for each in reversed(self.moved):
            move, factor = each.move, each.factor
            result = _move_back(op, result, move, factor)
        return result


def move_data(op: Operators, mutation: Mutation, data: ir.Value, window: Window, to: Sequence[int]) -> MovedConvolution:
    """Moves the data of a convolution whose result has the sizes `to`.

    Raises:
        MatchFailure: a factor does not divide a size.
    """
    result_sizes, copies, moved = list(to), 1, list[_Moved]()
    strides, dilations = list(window.strides), list(window.dilations)
    before, after = list(window.before), list(window.after)
    for move in mutation:
        factor = move.factor or sizes(data)[move.axis]
        require(factor > 1, "there is one image")
        require(
            not sizes(data)[move.axis] % factor and not result_sizes[move.axis] % factor,
            "a size is no multiple of the factor",
        )
        if move.phases:
            which = move.axis - _HEIGHT
            require(strides[which] == 1, "there is a stride")
            # Where the distance of a window's elements is no multiple, they lie in other phases, and everything comes out wrong.
            require(not dilations[which] % factor, "the dilation is no multiple of the factor")
            dilations[which] //= factor
            before[which], after[which] = before[which] // factor, after[which] // factor
        if move.interleaved:
            which = move.to - _HEIGHT
            require(strides[which] == 1, "there is a stride")
            dilations[which] *= factor
            before[which], after[which] = before[which] * factor, after[which] * factor
        data = _move(op, data, move, factor)
        result_sizes[move.axis] //= factor
        result_sizes[move.to] *= factor
        copies *= factor if move.to == _CHANNELS else 1
        moved.append(_Moved(move, factor))
    return MovedConvolution(
        data, copies, tuple(strides), tuple(dilations), (*before, *after), tuple(moved), tuple(result_sizes)
    )


def _move(op: Operators, data: ir.Value, move: AxisMove, factor: int) -> ir.Value:
    shape = list(sizes(data))
    rest = shape[move.axis] // factor
    split = [*shape[: move.axis], *((rest, factor) if move.phases else (factor, rest)), *shape[move.axis + 1 :]]
    part = move.axis + 1 if move.phases else move.axis
    place = move.to + (move.to > move.axis)
    order = [axis for axis in range(5) if axis != part]
    order.insert(order.index(place) + move.interleaved, part)
    shape[move.axis], shape[move.to] = rest, shape[move.to] * factor
    parts = op.Reshape(data, op.integers(split))
    return op.Reshape(op.Transpose(parts, perm=order), op.integers(shape))


def _move_back(op: Operators, result: ir.Value, move: AxisMove, factor: int) -> ir.Value:
    shape = list(sizes(result))
    rest = shape[move.to] // factor
    split = [*shape[: move.to], *((rest, factor) if move.interleaved else (factor, rest)), *shape[move.to + 1 :]]
    part = move.to + move.interleaved
    place = move.axis + (move.axis > move.to)
    order = [axis for axis in range(5) if axis != part]
    order.insert(order.index(place) + move.phases, part)
    shape[move.to], shape[move.axis] = rest, shape[move.axis] * factor
    parts = op.Reshape(result, op.integers(split))
    return op.Reshape(op.Transpose(parts, perm=order), op.integers(shape))


class MovedParts(CorrectedConvolution):
    """A convolution of moved data, moved back."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation

    @property
    def examples(self) -> tuple[Example, ...]:  # type: ignore[override]
        """One with groups and a bias among them."""
        return _examples(self.mutation)

    @property
    def counterexamples(self) -> tuple[Example, ...]:  # type: ignore[override]
        """Sizes that no factor divides, and what is no image."""
        return _counterexamples(self.mutation)

    @property
    def name(self) -> str:
        """Such as `corrected-parts-of-height-into-batch`."""
        return "corrected-" + "-then-".join(move.word for move in self.mutation)

    @property
    def equation(self) -> str:
        """What is moved."""
        moves = " and ".join(map(str, self.mutation))
        return f"Conv(x, w, b) = the result, moved back, of Conv(x with {moves})"

    @property
    def conditions(self) -> str:
        """The same for all."""
        return "what is wrong computed again, for sizes that the factors divide"

    def mutant(
        self, op: Operators, data: ir.Value, weight: ir.Value, convolve: Convolve, to: Sizes, window: Window
    ) -> ir.Value:
        """See `correction.Mutant`."""
        moved = move_data(op, self.mutation, data, window, to)
        kernel = weight if moved.copies == 1 else op.Concat(*[weight] * moved.copies, axis=0)
        attributes = {"dilations": list(moved.dilations), "pads": list(moved.pads)}
        return moved.undo(op, convolve(moved.data, kernel, moved.copies, **attributes))


@cache
def generated_mutants() -> tuple[Rule, ...]:
    """A rule for each move."""
    return tuple(MovedParts((move,)) for move in enumerate_moves())


def _examples(mutation: Mutation) -> tuple[Example, ...]:
    if any(move.phases for move in mutation):
        body, weight = "y = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, w)", (2, 2, 3, 3)
    elif any({move.axis, move.to} == {_HEIGHT, _WIDTH} and not move.interleaved for move in mutation):
        body, weight = "y = Conv<pads=[0,2,0,2]>(x, w)", (2, 2, 1, 5)
    else:
        body, weight = "y = Conv<pads=[1,1,1,1]>(x, w)", (2, 2, 3, 3)
    plain = Example("float[2,2,16,16] x", body, {"w": weight})
    grouped = body.replace("<", "<group=2, ").replace("w)", "w, b)")
    return plain, plain.but(body=grouped, inputs="float[2,4,16,16] x", b=(2,))


def _counterexamples(mutation: Mutation) -> tuple[Example, ...]:
    (plain, _), first = _examples(mutation), mutation[0]
    if first.axis == _BATCH:
        return plain.but("one image", inputs="float[1,2,16,16] x"), plain.but("not known", inputs="float[N,2,16,16] x")
    line = plain.but("two spatial", "y = Conv(x, w)", inputs="float[1,2,16] x", w=(2, 2, 3))
    return plain.but("multiple", inputs="float[1,2,15,15] x"), line
