"""Sizes of open dimensions that the user does not give: which a model settles by itself, and what is asked of him.

A batch takes 1, a dimension that weights fix takes their size, an expression of other dimensions its value, and a dimension that
must be equal to one with a size takes that. All others are asked for at once, with proposals that were tried on the model.
"""

from __future__ import annotations

import ast
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from bricolage.errors import BricolageError, UnboundDimension, UnknownDimension
from bricolage.graph.prepare import dimension_name, prepare, quote_names, symbolic_dimensions, unbound
from bricolage.graph.size_hints import IMAGE, SEQUENCE, SIGNAL, VOLUME, Hint, hint, total_stride

Shapes = Mapping[str, tuple[int, ...]]

_TRYING_S = 6.0
"""Seconds of processor time for trying sizes. Only a model that lacks some is tried."""
_MOST_TRIED = 4_000
"""Operators of a model on which sizes are tried; each try prepares it as a whole."""
_MOST_PAIRED = 10
"""Open dimensions of which pairs are tried."""
_BATCH = 2
"""A batch at which sizes are tried: one would go together with any."""
_PRIMES = (31, 37)
"""A dimension that takes these takes any size."""
_KINDS = {
    IMAGE: "size of an image",
    SEQUENCE: "length of a sequence",
    SIGNAL: "length of a signal",
    VOLUME: "size of a volume",
}


@dataclass(frozen=True)
class Settled:
    """Sizes of every open dimension, and what is to be said of those that were not given."""

    shapes: dict[str, tuple[int, ...]]
    notes: tuple[str, ...] = ()


def settle_sizes(model: ir.Model, given: Shapes) -> Settled:
    """Sizes of all open dimensions of a clean model.

    Args:
        model: not changed.
        given: sizes by name; several of each are for several buckets, paired by position.

    Raises:
        UnknownDimension: `given` has a name that the model does not have.
        UnboundDimension: sizes are missing; all of them are named, with a proposal where the model hints at one.
    """
    dimensions = _check_dimensions(model, given)
    if not set(dimensions) - set(given):
        return Settled(dict(given))
    return _Settling(model, dimensions, given).settled()


def standing_in(model: ir.Model, given: Mapping[str, int], first: Mapping[str, int]) -> dict[str, int]:
    """Sizes at which the model can be computed, for checks that hold for any: `first` where they fit.

    Raises:
        UnknownDimension: as `settled`.
        UnboundDimension: none were found; give some.
    """
    dimensions = _check_dimensions(model, given)
    settling = _Settling(model, dimensions, {name: (size,) for name, size in given.items()})
    sizes = settling.whole(dict(first)) | dict(given)
    if set(dimensions) <= set(given) or settling.fits(sizes):
        return sizes
    feasible_sizes = settling.feasible()
    if feasible_sizes is None:
        raise settling.asking(set(dimensions) - set(given) - set(settling.expressions))
    return feasible_sizes


def _check_dimensions(model: ir.Model, given: Mapping[str, object]) -> dict[str, list[str]]:
    dimensions = symbolic_dimensions(model)
    for name in given:
        if name not in dimensions:
            raise UnknownDimension(dimension=name, known=", ".join(dimensions) or "none, all its shapes are fixed")
    return dimensions


@dataclass
class _Settling:
    """One model, and what of its open dimensions is known so far."""

    model: ir.Model
    known: Mapping[str, list[str]]
    given: Shapes
    hints: dict[str, Hint] = field(default_factory=dict)
    expressions: dict[str, Callable[[Mapping[str, int]], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inputs = {value.name: value for value in self.model.graph.inputs}
        divisor = total_stride(self.model)
        for name, readers in self.known.items():
            places = [place for reader in dict.fromkeys(readers) for place in _places(inputs[reader], name)]
            nameless = all(name == f"{value.name}.{axis}" for value, axis in places)
            self.hints[name] = hint(self.model, name, places, nameless, divisor)
            expression = _expression(name, self.known)
            if expression is not None:
                self.expressions[name] = expression
        self._stop = time.process_time() + _TRYING_S
        self._found: dict[str, int] | None = None
        self._failure = ""

    def settled(self) -> Settled:
        """All sizes.

        Raises:
            UnboundDimension
        """
        shapes, notes = {name: tuple(sizes) for name, sizes in self.given.items()}, list[str]()
        for name, size_hint in self.hints.items():
            if name not in shapes and size_hint.fixed is not None:
                shapes[name] = (size_hint.fixed,)
                notes.append(f"'{name}' takes {size_hint.fixed}: {size_hint.because} leave no other size")
        self._derive(shapes, notes)
        ties = self._ties(shapes)
        for name, other in ties.items():
            if name not in shapes and other in shapes:
                shapes[name] = shapes[other]
                notes.append(f"'{name}' takes the sizes of '{other}', which it must be equal to")
        batches = [name for name, size_hint in self.hints.items() if size_hint.batch and name not in shapes]
        if batches:
            shapes.update(dict.fromkeys(batches, (1,)))
            take = "takes" if len(batches) == 1 else "take"
            notes.insert(
                0,
                f"the batch {quote_names(batches)} {take} 1, since no size is given; --shape {batches[0]}=1,8 gives others",
            )
        self._derive(shapes, notes)
        missing = set(self.known) - set(shapes) - set(self.expressions)
        if missing:
            follow = {name: other for name, other in ties.items() if other in missing}
            raise self.asking(missing - set(follow), [f"'{name}' takes that of '{of}'" for name, of in follow.items()])
        for name in set(self.known) - set(shapes):  # an expression of what has no size at all
            raise self.asking({name})
        return Settled(shapes, tuple(notes))

    def _derive(self, shapes: dict[str, tuple[int, ...]], notes: list[str]) -> None:
        """Sizes of expressions whose parts have one."""
        for name, value in self.expressions.items():
            if name in shapes:
                continue
            count = max((len(sizes) for sizes in shapes.values()), default=1)
            rows = [{n: s[i if len(s) > 1 else 0] for n, s in shapes.items()} for i in range(count)]
            try:
                derived = [value(row) for row in rows]
            except (KeyError, ZeroDivisionError):
                continue
            if min(derived) > 0:
                shapes[name] = tuple(derived) if len(set(derived)) > 1 else (derived[0],)
                notes.append(f"'{name}' takes {','.join(map(str, shapes[name]))}, as its name says")

    def asking(self, missing: set[str], more: Sequence[str] = ()) -> UnboundDimension:
        """The question for all of them; `more` is added to it."""
        feasible_sizes = self.feasible()
        names = [name for name in self.known if name in missing]
        proposals: dict[str, int] = {}
        reasons: list[str] = []
        if feasible_sizes is None and self._failure:
            reasons.append(f"of the usual sizes none fits: {self._failure}")
        for (kind, divisor), alike in _group_by_hint(names, self.hints).items():
            if feasible_sizes is not None and kind:
                proposals.update({name: feasible_sizes[name] for name in alike})
                even = f", which strides divide by {divisor}" if divisor > 1 else ""
                reasons.append(f"{quote_names(alike)}: {_KINDS[kind]}{even}")
            elif feasible_sizes is not None:
                for name in alike:
                    self._survey(name, feasible_sizes, proposals, reasons)
        return unbound({name: self.known[name] for name in names}, proposals, [*reasons, *more])

    def _survey(self, name: str, start: Mapping[str, int], proposals: dict[str, int], reasons: list[str]) -> None:
        """Of a dimension at whose size nothing hints: the least part of a size that fits which fits, too, where not all do."""
        batches = {other: 1 for other, hint in self.hints.items() if hint.batch and other not in self.given}

        def at(size: int) -> bool:
            return self.fits(self.whole({**start, **batches, name: size}))

        if self._over or all(at(size) for size in _PRIMES):
            return
        least = start[name]
        for prime in (2, 3, 5, 7, 11):
            while least % prime == 0 and at(least // prime):
                least //= prime
        if not at(least):
            return  # only at another batch
        proposals[name] = least
        every = at(2 * least) and at(3 * least)
        reasons.append(
            f"'{name}': {'a multiple of' if every else 'the model does not take every size, it takes'} {least}"
        )

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the model can be prepared at these sizes."""
        try:
            prepare(self.model, sizes)
        except BricolageError as error:
            self._failure = error.sentence
            return False
        return True

    @property
    def _over(self) -> bool:
        return time.process_time() > self._stop or len(self.model.graph) > _MOST_TRIED

    def feasible(self) -> dict[str, int] | None:
        """Sizes that fit together: those given, and of every other dimension its most usual one that fits. None where none is
        found in time."""
        if self._found is None:
            for sizes in self._combinations():
                if self._over:
                    break
                if self.fits(sizes):
                    self._found = sizes
                    break
        return self._found

    def _combinations(self) -> Iterator[dict[str, int]]:
        """First the n-th of every dimension together; then one dimension after the other leaves the first."""
        lists = {name: self._candidates(name) for name in self.known if name not in self.expressions}
        for number in range(max((len(candidates) for candidates in lists.values()), default=0)):
            yield self.whole({name: candidates[min(number, len(candidates) - 1)] for name, candidates in lists.items()})
        for name, candidates in lists.items():
            for size in candidates[1:]:
                yield self.whole({n: size if n == name else other[0] for n, other in lists.items()})

    def whole(self, sizes: dict[str, int]) -> dict[str, int]:
        """With the sizes that names say as expressions of others, in place."""
        for name, value in self.expressions.items():
            try:
                sizes[name] = max(1, value(sizes))
            except (KeyError, ZeroDivisionError):
                sizes[name] = 1
        return sizes

    def _candidates(self, name: str) -> Sequence[int]:
        hint = self.hints[name]
        if name in self.given:
            return self.given[name][:1]
        if hint.fixed is not None:
            return (hint.fixed,)
        first, *rest = (_BATCH, *hint.candidates) if hint.batch else hint.candidates
        return tuple(dict.fromkeys((first, *(sizes[0] for sizes in self.given.values()), *rest)))

    def _ties(self, shapes: Shapes) -> dict[str, str]:
        """Dimensions without a size that must be equal to another one: the model takes another size of both, and of neither alone.
        Found by trying; none where that takes too long."""
        free = [name for name in self.known if name not in self.expressions and self.hints[name].fixed is None]
        missing = [name for name in free if name not in shapes]
        if not missing or not 2 <= len(free) <= _MOST_PAIRED:
            return {}
        start = self.feasible()
        if start is None:
            return {}
        ties: dict[str, str] = {}
        leading = [name for name in free if name in shapes]
        for name in missing:
            others = [other for other in leading if start[other] == start[name]]
            leading.append(name)
            size = self._another(name, start[name])
            if not others or self._over or self.fits(self.whole({**start, name: size})):
                continue
            for other in others:
                if not self._over and self.fits(self.whole({**start, name: size, other: size})):
                    ties[name] = other
                    leading.remove(name)
                    break
        return ties

    def _another(self, name: str, size: int) -> int:
        """Another size of a dimension; a smaller one where that can be, since tables of positions end somewhere."""
        hint = self.hints[name]
        if hint.batch or size < 4:
            return size + 1
        return size - hint.divisor if size > hint.divisor > 1 else size // 2


def _places(value: ir.Value, name: str) -> list[tuple[ir.Value, int]]:
    assert value.shape is not None
    return [
        (value, axis)
        for axis, size in enumerate(value.shape)
        if not isinstance(size, int) and dimension_name(value, axis) == name
    ]


def _group_by_hint(names: Sequence[str], hints: Mapping[str, Hint]) -> dict[tuple[str, int], list[str]]:
    """Names by what is hinted of them."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in names:
        hint = hints[name]
        groups.setdefault((hint.kind if hint.usual else "", hint.divisor), []).append(name)
    return groups


# --- names that are expressions of others -----------------------------------------------------------------------

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _expression(name: str, known: Mapping[str, object]) -> Callable[[Mapping[str, int]], int] | None:
    """`past_sequence_length + 1` as a function of the sizes of other dimensions; None where a name is just a name."""
    try:
        tree = ast.parse(name, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.BinOp):
        return None
    parts = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if not parts or not parts <= set(known):
        return None

    def value(node: ast.expr, sizes: Mapping[str, int]) -> int:
        match node:
            case ast.Name(id=other):
                return sizes[other]
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
                return _OPERATORS[type(sign)](value(left, sizes), value(right, sizes))
        raise KeyError(name)

    return lambda sizes: value(tree, sizes)
