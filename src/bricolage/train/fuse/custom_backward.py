"""The user's functions with a backward of their own (`torch.autograd.Function`), carried into a lane's graph.

The exporter runs the forward of such a function and forgets its backward. So while a lane is traced, each application of one
becomes an operator of its own, which the program of all lanes computes by the function itself: once for each lane, or through
`torch.vmap` where the function says how.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from bricolage.train.step.step import calling_line

if TYPE_CHECKING:
    import torch

OPERATOR = "bricolage::autograd_function"
"""What represents an application in a graph: of its tensors, and a number by which `application` knows the rest."""
Apply: TypeAlias = Callable[..., object]
Kind: TypeAlias = "type[torch.autograd.Function]"


@dataclass(frozen=True)
class _Tensor:
    """The place of a tensor among arguments or results."""

    number: int


@dataclass(frozen=True)
class OwnFunction:
    """A function with those of its arguments that are no tensors."""

    function: Kind
    given: tuple[object, ...]
    """Its arguments, with `_Tensor` where tensors are."""

    def __call__(self, tensors: Sequence[torch.Tensor]) -> object:
        """What it returns for these tensors, with its own backward."""
        return _original()(self.function, *_several(_fill_places(self.given, tensors)))

    def results(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those of its results that are tensors."""
        import torch

        return [output for output in _several(self(tensors)) if isinstance(output, torch.Tensor)]

    @property
    def batches(self) -> bool:
        """Whether it says how `torch.vmap` computes it."""
        import torch

        return bool(self.function.generate_vmap_rule) or self.function.vmap is not torch.autograd.Function.vmap


_known: list[OwnFunction] = []
_numbers: dict[tuple[Kind, str], int] = {}
_shapes: dict[int, object] = {}
"""By application: what it returns, with `_Tensor` where tensors are."""


def application(number: int) -> OwnFunction:
    """The application that has this number in graphs of this process."""
    return _known[number]


@dataclass
class Applied:
    """What was applied in a step."""

    refused: dict[Kind, str] = field(default_factory=dict)
    """By function, why a graph does not carry it."""
    carried: set[Kind] = field(default_factory=set)

    def reason(self, function: Kind) -> str:
        """Why a graph does not carry it; empty if it does."""
        return "" if function in self.carried - set(self.refused) else self.refused.get(function, "it was not seen")


@contextlib.contextmanager
def record_functions() -> Iterator[Applied]:
    """Notes which functions are applied, and which of them a graph can carry."""
    applied = Applied()

    def apply(function: Kind, *given: object) -> object:
        places, tensors = _split_tensors(given)
        versions = [tensor._version for tensor in tensors]
        outputs = _original()(function, *given)
        reason = _unlike_data(places) or _holding(function) or _unlike_tensors(outputs)
        if not reason and [tensor._version for tensor in tensors] != versions:
            reason = "it writes to its argument"
        if reason:
            applied.refused.setdefault(function, f"{reason}; {calling_line()}")
        applied.carried.add(function)
        return outputs

    with _applying(apply):
        yield applied


@contextlib.contextmanager
def keep_functions() -> Iterator[None]:
    """Each application becomes an operator of its own meanwhile."""

    def apply(function: Kind, *given: object) -> object:
        places, tensors = _split_tensors(given)
        if _unlike_data(places):
            return _original()(function, *given)
        number = _numbers.setdefault((function, repr(places)), len(_known))
        if number == len(_known):
            _known.append(OwnFunction(function, places))
        results = _operator()(tensors, number)
        return _fill_places(_shapes[number], results)

    with _applying(apply):
        yield


@cache
def _operator() -> Callable[[list[torch.Tensor], int], list[torch.Tensor]]:
    import torch

    library = torch.library.Library("bricolage", "FRAGMENT")
    name = OPERATOR.partition("::")[2]
    library.define(f"{name}(Tensor[] tensors, int number) -> Tensor[]")

    def compute(tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        with torch.no_grad():
            outputs = application(number)(tensors)
        places, results = _split_tensors(_several(outputs))
        _shapes[number] = places if isinstance(outputs, tuple) else places[0]
        return [result.clone() for result in results]  # an operator's results are no memory of its arguments

    library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(OPERATOR, compute, lib=library)
    _libraries.append(library)
    custom_operator: Callable[[list[torch.Tensor], int], list[torch.Tensor]] = getattr(torch.ops.bricolage, name)
    return custom_operator


_libraries: list[object] = []
"""Operators are gone with their library."""


@contextlib.contextmanager
def _applying(apply: Apply) -> Iterator[None]:
    """`apply` is called in the place of `torch.autograd.Function.apply`, of functions of any kind."""
    import torch

    _original()
    before = torch.autograd.Function.__dict__["apply"]
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = before  # type: ignore[method-assign]


@cache
def _original() -> Apply:
    """`torch.autograd.Function.apply` as PyTorch has it, of a function that is given first."""
    import torch

    original_apply: Apply = torch.autograd.Function.__dict__["apply"].__func__
    return original_apply


def _split_tensors(given: Sequence[object]) -> tuple[tuple[object, ...], list[torch.Tensor]]:
    """Values with `_Tensor` where tensors are, and the tensors."""
    import torch

    tensors: list[torch.Tensor] = []
    places: list[object] = []
    for argument in given:
        if isinstance(argument, torch.Tensor):
            places.append(_Tensor(len(tensors)))
            tensors.append(argument)
        else:
            places.append(argument)
    return tuple(places), tensors


def _fill_places(places: object, tensors: Sequence[torch.Tensor]) -> object:
    if isinstance(places, tuple):
        return tuple(_fill_places(place, tensors) if isinstance(place, _Tensor) else place for place in places)
    return tensors[places.number] if isinstance(places, _Tensor) else places


def _several(found: object) -> tuple[object, ...]:
    return found if isinstance(found, tuple) else (found,)


def _unlike_data(given: Sequence[object]) -> str:
    """Why lanes cannot share those of its arguments that are no tensors."""
    import torch

    plain = bool | int | float | complex | str | None | _Tensor | torch.dtype | torch.Size
    for argument in given:
        if not all(isinstance(value, plain) for value in _several(argument)):
            return f"it is given a {type(argument).__name__}, which may be of one lane"
    return ""


def _unlike_tensors(made: object) -> str:
    import torch

    for output in _several(made):
        if not isinstance(output, torch.Tensor | None):
            return f"it returns a {type(output).__name__}"
    return ""


def _holding(function: Kind) -> str:
    """Whether its code holds a tensor or a module of one lane, as that of a function inside of another may."""
    import torch

    for part in (function.forward, function.backward):
        for cell in inspect.unwrap(part).__closure__ or ():
            with contextlib.suppress(ValueError):  # a name that has no value yet
                if isinstance(cell.cell_contents, torch.nn.Module | torch.Tensor):
                    return f"its code holds a {type(cell.cell_contents).__name__} from outside"
    return ""
