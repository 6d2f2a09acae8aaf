"""The graph of one lane as a program for several: each operator as the operator table computes it, in the way that is fastest
here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bricolage.errors import NotFusible
from bricolage.train.fuse.operators.call import Call, Compute, Joined, Mask, Operand, Result, only
from bricolage.train.fuse.operators.choose import choose
from bricolage.train.fuse.operators.table import joined
from bricolage.train.fuse.trace import (
    Traced,
    arguments,
    is_ignored,
    keywords,
    operator_name,
    overload_name,
    where,
    without_gradient,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Choice:
    """How an operator is computed for all lanes."""

    operator: str
    way: str
    ms: Mapping[str, float]
    """Forward and backward, by way; empty where nothing was measured."""


@dataclass
class _Value:
    stacked: bool
    constant: bool
    """Known without the batch and the weights."""
    root: int
    """The node whose memory it shares, as far as views say."""


class Program:
    """Computes the losses of all lanes. Built by running it once on a batch, while the ways of each operator are timed."""

    def __init__(
        self,
        traced: Traced,
        numbers: Sequence[tuple[tuple[float, ...], ...]],
        shared_batch: bool,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        batch: Sequence[torch.Tensor],
        known: Mapping[str, str] | None = None,
    ) -> None:
        """Builds it.

        Args:
            traced: graph of one lane.
            numbers: for each lane its own constants.
            shared_batch: whether all lanes see one batch, [batch, *] instead of [lanes, batch, *].
            parameters: by name, [lanes, *].
            buffers: by name, [lanes, *]; they are not written to.
            batch: an example.
            known: ways chosen before, by node: these are not timed again.

        Raises:
            NotFusible: an operator cannot be computed for several lanes; the reason names it and its line.
        """
        self.lanes = len(numbers)
        self.masks: list[Mask] = []
        self.choices: dict[str, Choice] = {}
        self._traced = traced
        self._numbers = numbers
        self._known = known or {}
        self._places = {node: index for index, node in enumerate(traced.graph.nodes)}
        self._start: list[Any] = [None] * len(self._places)
        self._program: list[tuple[int, Callable[..., Any], tuple[int, ...]]] = []
        self._bound: dict[int, int] = {}
        """Nodes that were written to in place → the node that has the new value."""
        self._own = 0
        self._unbound: dict[tuple[int, int], int] = {}
        """By tensor and dimension: where all that is selected along it lies."""
        self._build(shared_batch, parameters, {name: one.clone() for name, one in buffers.items()}, batch)

    def __call__(
        self,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        batch: Sequence[torch.Tensor],
        masks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """The losses, [lanes]. Running statistics in the buffers are updated."""
        values = self._start.copy()
        for place, name in self._parameters:
            values[place] = parameters[name]
        for place, name in self._buffers:
            values[place] = buffers[name]
        for place, one in zip(self._batch, batch, strict=True):
            values[place] = one
        for place, one in zip(self._mask_places, masks, strict=True):
            values[place] = one
        for place, compute, reads in self._program:
            values[place] = compute(*[values[one] for one in reads])
        losses: torch.Tensor = values[self._end]
        return losses.reshape(self.lanes)

    @property
    def ways(self) -> dict[str, str]:
        """The way chosen for each node that had several."""
        return {name: choice.way for name, choice in self.choices.items() if choice.ms}

    def _build(
        self,
        shared_batch: bool,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        batch: Sequence[torch.Tensor],
    ) -> None:
        traced, start = self._traced, self._start
        self._parameters = [
            (self._places[n], traced.parameters[n.name]) for n in self._places if n.name in traced.parameters
        ]
        self._buffers = [(self._places[n], traced.buffers[n.name]) for n in self._places if n.name in traced.buffers]
        named = {node.name: place for node, place in self._places.items()}
        self._batch = [named[name] for name in traced.batch]
        self._mask_places: list[int] = []
        self._end = -1
        self._infos: dict[int, _Value] = {}
        values: list[Any] = list(start)
        for place, name in self._parameters:
            values[place], self._infos[place] = parameters[name], _Value(True, False, place)
        for place, name in self._buffers:
            values[place], self._infos[place] = buffers[name], _Value(True, False, place)
        for place, one in zip(self._batch, batch, strict=True):
            values[place], self._infos[place] = one, _Value(not shared_batch, False, place)
        for name, constant in traced.constants.items():
            place = named[name]
            values[place] = start[place] = constant
            self._infos[place] = _Value(False, True, place)
        for node, place in self._places.items():
            if node.op == "call_function" and not is_ignored(node):
                self._add(node, place, values)
            elif node.op == "output":
                (end,) = node.args[0]
                self._end = self._slot(end)
                if not self._infos[self._end].stacked or values[self._end].numel() != self.lanes:
                    raise NotFusible(reason="its loss is no scalar that depends on the weights")

    def _add(self, node: torch.fx.Node, place: int, values: list[Any]) -> None:
        import torch

        target: Any = node.target
        name = operator_name(node)
        if not isinstance(target, torch._ops.OpOverload) and name != "getitem":
            raise NotFusible(reason=f"its graph calls {name}, which is no operator on tensors; {where(node)}")
        numbers: tuple[tuple[float, ...], ...] = ()
        if name in _own_numbers():
            numbers = tuple(lane[self._own] for lane in self._numbers)
            self._own += 1
        if name == "getitem" and self._take_out(node, place, values):
            return
        if name == "aten::select.int" and self._select_at_once(node, place, values):
            return
        written = written_argument(node)
        inside = False
        """Whether the result has to stand in the memory that is written to: others see it, or it outlasts the step."""
        if written is not None:
            target, inside = self._out_of_place(node, name, written)
            name = overload_name(target)
        call = self._call(node, name, target, values, numbers)
        reads = tuple(one.place for one in call.operands)
        random = _draws(call, target)
        if not call.stacked and not random and not inside:
            constant = all(self._infos[one].constant for one in reads)
            root = self._root(node, place, reads) if written is None else place
            self._infos[place] = _Value(False, constant, root)
            self._emit(node, place, _plain(call), reads, values)
            if constant:
                self._program.pop()
                self._start[place] = values[place]
        else:
            found = joined(call) if call.stacked or random else only("unchanged", _plain(call))
            if random and not found.masks:
                raise NotFusible(
                    reason=f"{name} draws random numbers, and only dropout has a stream for each lane; {where(node)}"
                )
            way = self._way(node, name, found, [values[one] for one in reads])
            for mask in found.masks:
                self.masks.append(mask)
                self._start.append(None)
                values.append(torch.ones((self.lanes, *mask.shape), dtype=mask.dtype))
                self._mask_places.append(len(values) - 1)
            extra = tuple(self._mask_places[len(self._mask_places) - len(found.masks) :]) if found.masks else ()
            root = self._infos[self._slot(written)].root if inside and written is not None else place
            root = self._root(node, place, reads) if written is None else root
            self._infos[place] = _Value(True, False, root)
            try:
                if inside and written is not None:
                    self._write(node, place, written, found.ways[way], (*reads, *extra), values)
                else:
                    self._emit(node, place, found.ways[way], (*reads, *extra), values)
            except NotFusible:
                raise
            except Exception as error:  # whatever PyTorch says of it
                raise NotFusible(reason=f"{name} fails for several lanes: {_first(error)}; {where(node)}") from error
        if written is not None and not inside:
            self._bound[self._places[written]] = place

    def _take_out(self, node: torch.fx.Node, place: int, values: list[Any]) -> bool:
        """One of several results of an operator."""
        import torch

        whole, at = node.args[0], node.args[1]
        if not isinstance(whole, torch.fx.Node) or not isinstance(values[self._slot(whole)], tuple | list):
            return False
        source = self._slot(whole)
        self._infos[place] = _Value(self._infos[source].stacked, self._infos[source].constant, place)
        self._emit(node, place, lambda several: several[at], (source,), values)
        return True

    def _select_at_once(self, node: torch.fx.Node, place: int, values: list[Any]) -> bool:
        """Where everything along a dimension is selected, one by one, it is taken apart in one operator: the gradient of one
        selection is a tensor as large as the whole, mostly of zeros, and all of them are added up."""
        import torch

        source = node.args[0]
        if not isinstance(source, torch.fx.Node):
            return False
        _, dimension, number = arguments(node)
        at = self._slot(source)
        one = values[at]
        if not self._infos[at].stacked or not isinstance(one, torch.Tensor) or one.ndim < 2:
            return False
        dimension %= one.ndim - 1
        count = one.shape[dimension + 1]
        numbers = [
            arguments(user)[2] % count
            for user in source.users
            if operator_name(user) == "aten::select.int" and arguments(user)[1] % (one.ndim - 1) == dimension
        ]
        if count < 2 or sorted(numbers) != list(range(count)) or len(source.users) != count:
            return False
        if (at, dimension) not in self._unbound:
            self._start.append(None)
            values.append(None)
            self._unbound[at, dimension] = len(values) - 1
            self._emit(source, len(values) - 1, lambda x: x.unbind(dimension + 1), (at,), values)
        self._infos[place] = _Value(True, False, self._infos[at].root)
        self._emit(node, place, lambda several: several[number], (self._unbound[at, dimension],), values)
        return True

    def _emit(
        self,
        node: torch.fx.Node,
        place: int,
        compute: Callable[..., Any],
        reads: tuple[int, ...],
        values: list[Any],
    ) -> None:
        compute = _without_gradient(compute) if without_gradient(node) else compute
        values[place] = compute(*[values[one] for one in reads])
        self._program.append((place, compute, reads))

    def _write(
        self,
        node: torch.fx.Node,
        place: int,
        written: torch.fx.Node,
        compute: Callable[..., Any],
        reads: tuple[int, ...],
        values: list[Any],
    ) -> None:
        """Writes what is computed into what is there: a buffer, a weight, another tensor, or a part of one."""
        source = self._slot(written)
        memory = values[source]
        root = self._infos[source].root
        if memory.untyped_storage().data_ptr() != values[root].untyped_storage().data_ptr():
            raise NotFusible(reason=f"{operator_name(node)} writes to a part of a tensor that is a copy; {where(node)}")
        weights = any(root == one for one, _ in self._parameters)
        write = _into(compute, weights or any(root == one for one, _ in self._buffers))
        write = _without_gradient(write) if without_gradient(node) else write
        # Building must leave weights as they are; buffers are copies meanwhile.
        values[place] = memory if weights else write(memory, *[values[one] for one in reads])
        self._program.append((place, write, (source, *reads)))

    def _way(self, node: torch.fx.Node, name: str, found: Joined, tensors: list[Any]) -> str:
        first = next(iter(found.ways))
        if found.plain:
            self.choices[node.name] = Choice(name, first, {})
            return first
        known = self._known.get(node.name)
        if known is not None and known in found.ways:
            self.choices[node.name] = Choice(name, known, {known: 0.0})
            return known
        try:
            way, ms = choose(found, tensors)
        except RuntimeError as error:
            raise NotFusible(
                reason=f"{name} cannot be computed for several lanes: {_first(error)}; {where(node)}"
            ) from error
        self.choices[node.name] = Choice(name, way, ms)
        return way

    def _call(
        self, node: torch.fx.Node, name: str, target: Any, values: list[Any], numbers: tuple[tuple[float, ...], ...]
    ) -> Call:
        shown: Any = node.meta.get("val")
        shown = shown[0] if isinstance(shown, list | tuple) and shown else shown
        shape = tuple(shown.shape) if hasattr(shown, "shape") else ()
        outside = _out(node)
        args = tuple(self._operand(one, values) for one in arguments(node))
        named = {key: self._operand(one, values) for key, one in keywords(node).items() if key != outside}
        return Call(name, target, args, named, self.lanes, numbers, shape)

    def _operand(self, value: Any, values: list[Any]) -> Any:
        import torch

        if isinstance(value, torch.fx.Node):
            place = self._slot(value)
            one = values[place]
            if place not in self._infos or not isinstance(one, torch.Tensor):
                raise NotFusible(reason=f"{operator_name(value)} gives no tensor; {where(value)}")
            info = self._infos[place]
            shape = tuple(one.shape[1:] if info.stacked else one.shape)
            return Operand(place, info.stacked, shape, one.dtype, _order(value.meta.get("val")))
        if isinstance(value, list | tuple):
            return (
                tuple(self._operand(one, values) for one in value)
                if isinstance(value, tuple)
                else [self._operand(one, values) for one in value]
            )
        return value

    def _slot(self, node: torch.fx.Node) -> int:
        place = self._places[node]
        return self._bound.get(place, place)

    def _root(self, node: torch.fx.Node, place: int, reads: tuple[int, ...]) -> int:
        schema = getattr(node.target, "_schema", None)
        aliases = schema is not None and any(one.alias_info is not None for one in schema.returns)
        return self._infos[reads[0]].root if aliases and reads else place

    def _out_of_place(self, node: torch.fx.Node, name: str, written: torch.fx.Node) -> tuple[Any, bool]:
        """The operator that gives a new tensor instead of writing to one; and whether that has to be written back, since others see
        it, or it outlasts the step.

        Raises:
            NotFusible: there is no such operator; or a tensor that all lanes share is written to.
        """
        found, place = functional(node.target), self._slot(written)
        info = self._infos.get(place)
        if info is None or found is None:
            raise NotFusible(reason=f"{name} writes to a tensor in a way that has no other form; {where(node)}")
        if any(info.root == one for one, _ in (*self._buffers, *self._parameters)):
            return found, True
        later = [one for one in self._places if self._places[one] > self._places[node]]
        aliased = [
            n
            for n, at in self._places.items()
            if at in self._infos and self._infos[at].root == info.root and at != place
        ]
        seen = any(user in aliased for one in later for user in one.all_input_nodes)
        if written.op == "placeholder" or (seen and not info.stacked):
            raise NotFusible(reason=f"{name} writes to a tensor that others see; {where(node)}")
        return found, seen


def _own_numbers() -> Mapping[str, tuple[int, ...]]:
    from bricolage.train.fuse.trace import LANE_CONSTANTS

    return LANE_CONSTANTS


def _out(node: torch.fx.Node) -> str:
    """The name of the argument that says where results go; empty if there is none."""
    schema = getattr(node.target, "_schema", None)
    return next((one.name for one in schema.arguments if _is_out(one)), "") if schema is not None else ""


def written_argument(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor that an operator writes to; None where it gives a new one.

    Raises:
        NotFusible: it writes to several.
    """
    import torch

    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None
    places = [at for at, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write]
    if not places:
        return None
    at = places[0]
    found = node.args[at] if at < len(node.args) else node.kwargs.get(schema.arguments[at].name)
    if len(places) > 1 or not isinstance(found, torch.fx.Node):
        raise NotFusible(reason=f"{operator_name(node)} writes to several tensors; {where(node)}")
    return found


def functional(target: Any) -> Any:
    """The overload of an operator that works in place, or into a given tensor, which gives a new one; None if there is none."""
    import torch

    space, _, name = str(target._schema.name).partition("::")
    name = f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")  # as `__ior__` for `|=`
    packet = getattr(getattr(torch.ops, space), name, None)
    wanted = _signature(target._schema)
    for overload in packet.overloads() if packet is not None else ():
        found = getattr(packet, overload)
        writes = any(one.alias_info is not None and one.alias_info.is_write for one in found._schema.arguments)
        if not writes and _signature(found._schema) == wanted:
            return found
    return None


def _signature(schema: Any) -> list[tuple[str, str]]:
    """Arguments by name and type, but for the tensor that results go to. The first has other names in some operators."""
    given = [one for one in schema.arguments if not _is_out(one)]
    return [(one.name if at else "", str(one.type)) for at, one in enumerate(given)]


def _is_out(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write)


def _draws(call: Call, target: Any) -> bool:
    """Whether a call draws random numbers: not where its rate is 0 in all lanes, nor outside of training."""
    import torch

    schema = getattr(target, "_schema", None)
    if schema is None:
        return False
    recurrent = "num_layers" in (names := [one.name for one in schema.arguments]) and "dropout" in names
    if not recurrent and torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = {**dict(zip(names, call.args, strict=False)), **call.keywords}
    if recurrent and given["num_layers"] == 1:
        return False
    if any(given.get(name) is False for name in ("train", "training")):
        return False
    rates = [name for name in ("p", "dropout_p", "dropout") if name in given]
    own = [one[0] for one in call.numbers]
    return not rates or bool(any(own) if own else given[rates[0]])


def _into(compute: Callable[..., Any], lasting: bool) -> Callable[..., Any]:
    """What is computed, written into the memory that is given first. That of buffers and weights is written to as data: what a
    module writes there has no gradient, whose bookkeeping would last, too."""

    def write(memory: Any, *tensors: Any) -> Any:
        # What it was before may be kept for the gradient.
        made = compute(*[one.clone() if one is memory else one for one in tensors])
        (memory.data if lasting else memory).copy_(made)
        return memory

    return write


def _without_gradient(compute: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def plain(*tensors: Any) -> Any:
        with torch.no_grad():
            return compute(*tensors)

    return plain


def _plain(call: Call) -> Compute:
    """The operator as it stands, for tensors that all lanes share."""

    def compute(*tensors: torch.Tensor) -> Result:
        args, named = call.filled(tensors)
        made: Result = call.target(*args, **named)
        return made

    return compute


def _order(alone: object) -> tuple[int, ...]:
    """Dimensions of a tensor as they lie in memory; empty where they lie as they stand, or overlap."""
    import torch

    if not isinstance(alone, torch.Tensor) or alone.is_contiguous():
        return ()
    strides = alone.stride()
    return tuple(sorted(range(alone.ndim), key=lambda one: (-strides[one], one)))


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
