"""Building what several lanes compute as one from the graph of one lane: each operator as the operator table computes it, in the
way that is fastest here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bricolage.errors import NotFusible
from bricolage.train.fuse.lane_graph import (
    LANE_CONSTANTS,
    Traced,
    arguments,
    is_ignored,
    keywords,
    operator_name,
    overload_name,
    where,
    without_gradient,
)
from bricolage.train.fuse.lane_program import Choice, FusedProgram
from bricolage.train.fuse.operator_schema import draws, functional, memory_order, out_argument, written_argument
from bricolage.train.fuse.operators.call import Call, Compute, Joined, Mask, Operand, Result, only
from bricolage.train.fuse.operators.choose import choose_way
from bricolage.train.fuse.operators.operator_rules import join_lanes

if TYPE_CHECKING:
    import torch


def build_program(
    traced: Traced,
    numbers: Sequence[tuple[tuple[float, ...], ...]],
    shared_batch: bool,
    parameters: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    batch: Sequence[torch.Tensor],
    known: Mapping[str, str] | None = None,
) -> FusedProgram:
    """Builds the program by running it once on a batch, while the ways of each operator are timed.

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
    builder = _Builder(traced, numbers, known or {})
    builder.run(shared_batch, parameters, {name: buffer.clone() for name, buffer in buffers.items()}, batch)
    return builder.program


@dataclass
class _Value:
    stacked: bool
    constant: bool
    """Known without the batch and the weights."""
    root: int
    """The node whose memory it shares, as far as views say."""


class _Builder:
    """Adds one node of the graph after the other."""

    def __init__(
        self, traced: Traced, numbers: Sequence[tuple[tuple[float, ...], ...]], known: Mapping[str, str]
    ) -> None:
        self._traced, self._numbers, self._known = traced, numbers, known
        self._places = {node: index for index, node in enumerate(traced.graph.nodes)}
        named = {node.name: place for node, place in self._places.items()}
        self.program = FusedProgram(
            lanes=len(numbers),
            start=[None] * len(self._places),
            parameters=[(place, traced.parameters[name]) for name, place in named.items() if name in traced.parameters],
            buffers=[(place, traced.buffers[name]) for name, place in named.items() if name in traced.buffers],
            batch=[named[name] for name in traced.batch],
        )
        self._constants = {named[name]: constant for name, constant in traced.constants.items()}
        self._values: list[Any] = list(self.program.start)
        """By place, on the example."""
        self._infos: dict[int, _Value] = {}
        self._bound: dict[int, int] = {}
        """Nodes that were written to in place → the node that has the new value."""
        self._own = 0
        self._unbound: dict[tuple[int, int], int] = {}
        """By tensor and dimension: where all that is selected along it lies."""

    def run(
        self,
        shared_batch: bool,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        batch: Sequence[torch.Tensor],
    ) -> None:
        """Adds all. Arguments as for `build_program`, but buffers may be written to."""
        program, values = self.program, self._values
        for place, name in program.parameters:
            values[place], self._infos[place] = parameters[name], _Value(True, False, place)
        for place, name in program.buffers:
            values[place], self._infos[place] = buffers[name], _Value(True, False, place)
        for place, tensor in zip(program.batch, batch, strict=True):
            values[place], self._infos[place] = tensor, _Value(not shared_batch, False, place)
        for place, constant in self._constants.items():
            values[place] = program.start[place] = constant
            self._infos[place] = _Value(False, True, place)
        for node, place in self._places.items():
            if node.op == "call_function" and not is_ignored(node):
                self._add(node, place)
            elif node.op == "output":
                (end,) = node.args[0]
                program.end = self._slot(end)
                if not self._infos[program.end].stacked or values[program.end].numel() != program.lanes:
                    raise NotFusible(reason="its loss is no scalar that depends on the weights")

    def _add(self, node: torch.fx.Node, place: int) -> None:
        import torch

        target: Any = node.target
        name = operator_name(node)
        if not isinstance(target, torch._ops.OpOverload) and name != "getitem":
            raise NotFusible(reason=f"its graph calls {name}, which is no operator on tensors; {where(node)}")
        numbers: tuple[tuple[float, ...], ...] = ()
        if name in LANE_CONSTANTS:
            numbers = tuple(lane[self._own] for lane in self._numbers)
            self._own += 1
        if name == "getitem" and self._take_out(node, place):
            return
        if name == "aten::select.int" and self._select_at_once(node, place):
            return
        written = written_argument(node)
        inside = False
        """Whether the result has to stand in the memory that is written to: others see it, or it outlasts the step."""
        if written is not None:
            target, inside = self._out_of_place(node, name, written)
            name = overload_name(target)
        call = self._call(node, name, target, numbers)
        reads = tuple(operand.place for operand in call.operands)
        random = draws(call, target)
        if not call.stacked and not random and not inside:
            constant = all(self._infos[read].constant for read in reads)
            root = self._root(node, place, reads) if written is None else place
            self._infos[place] = _Value(False, constant, root)
            self._emit(node, place, _plain(call), reads)
            if constant:
                self.program.steps.pop()
                self.program.start[place] = self._values[place]
        else:
            joined_call = join_lanes(call) if call.stacked or random else only("unchanged", _plain(call))
            if random and not joined_call.masks:
                raise NotFusible(
                    reason=f"{name} draws random numbers, and only dropout has a stream for each lane; {where(node)}"
                )
            way = self._way(node, name, joined_call, [self._values[read] for read in reads])
            given = (*reads, *map(self._mask, joined_call.masks))
            root = self._infos[self._slot(written)].root if inside and written is not None else place
            root = self._root(node, place, reads) if written is None else root
            self._infos[place] = _Value(True, False, root)
            try:
                if inside and written is not None:
                    self._write(node, place, written, joined_call.ways[way], given)
                else:
                    self._emit(node, place, joined_call.ways[way], given)
            except NotFusible:
                raise
            except Exception as error:  # whatever PyTorch says of it
                raise NotFusible(reason=f"{name} fails for several lanes: {_first(error)}; {where(node)}") from error
        if written is not None and not inside:
            self._bound[self._places[written]] = place

    def _mask(self, mask: Mask) -> int:
        """The place of a mask that each step draws; all ones on the example."""
        import torch

        self.program.masks.append(mask)
        self.program.start.append(None)
        self._values.append(torch.ones((self.program.lanes, *mask.shape), dtype=mask.dtype))
        self.program.mask_places.append(len(self._values) - 1)
        return self.program.mask_places[-1]

    def _take_out(self, node: torch.fx.Node, place: int) -> bool:
        """One of several results of an operator."""
        import torch

        whole, at = node.args[0], node.args[1]
        if not isinstance(whole, torch.fx.Node) or not isinstance(self._values[self._slot(whole)], tuple | list):
            return False
        source = self._slot(whole)
        self._infos[place] = _Value(self._infos[source].stacked, self._infos[source].constant, place)
        self._emit(node, place, lambda several: several[at], (source,))
        return True

    def _select_at_once(self, node: torch.fx.Node, place: int) -> bool:
        """Where everything along a dimension is selected, one by one, it is taken apart in one operator: the gradient of one
        selection is a tensor as large as the whole, mostly of zeros, and all of them are added up."""
        import torch

        source = node.args[0]
        if not isinstance(source, torch.fx.Node):
            return False
        _, dimension, number = arguments(node)
        at = self._slot(source)
        tensor = self._values[at]
        if not self._infos[at].stacked or not isinstance(tensor, torch.Tensor) or tensor.ndim < 2:
            return False
        dimension %= tensor.ndim - 1
        count = tensor.shape[dimension + 1]
        numbers = [
            arguments(user)[2] % count
            for user in source.users
            if operator_name(user) == "aten::select.int" and arguments(user)[1] % (tensor.ndim - 1) == dimension
        ]
        if count < 2 or sorted(numbers) != list(range(count)) or len(source.users) != count:
            return False
        if (at, dimension) not in self._unbound:
            self.program.start.append(None)
            self._values.append(None)
            self._unbound[at, dimension] = len(self._values) - 1
            self._emit(source, len(self._values) - 1, lambda x: x.unbind(dimension + 1), (at,))
        self._infos[place] = _Value(True, False, self._infos[at].root)
        self._emit(node, place, lambda several: several[number], (self._unbound[at, dimension],))
        return True

    def _emit(
        self,
        node: torch.fx.Node,
        place: int,
        compute: Callable[..., Any],
        reads: tuple[int, ...],
    ) -> None:
        compute = _without_gradient(compute) if without_gradient(node) else compute
        self._values[place] = compute(*[self._values[read] for read in reads])
        self.program.steps.append((place, compute, reads))

    def _write(
        self,
        node: torch.fx.Node,
        place: int,
        written: torch.fx.Node,
        compute: Callable[..., Any],
        reads: tuple[int, ...],
    ) -> None:
        """Writes what is computed into what is there: a buffer, a weight, another tensor, or a part of one."""
        source = self._slot(written)
        memory = self._values[source]
        root = self._infos[source].root
        if memory.untyped_storage().data_ptr() != self._values[root].untyped_storage().data_ptr():
            raise NotFusible(reason=f"{operator_name(node)} writes to a part of a tensor that is a copy; {where(node)}")
        weights = any(root == slot for slot, _ in self.program.parameters)
        write = _into(compute, weights or any(root == slot for slot, _ in self.program.buffers))
        write = _without_gradient(write) if without_gradient(node) else write
        # Building must leave weights as they are; buffers are copies meanwhile.
        self._values[place] = memory if weights else write(memory, *[self._values[read] for read in reads])
        self.program.steps.append((place, write, (source, *reads)))

    def _way(self, node: torch.fx.Node, name: str, found: Joined, tensors: list[Any]) -> str:
        first = next(iter(found.ways))
        if found.plain:
            self.program.choices[node.name] = Choice(name, first, {})
            return first
        earlier_way = self._known.get(node.name)
        if earlier_way is not None and earlier_way in found.ways:
            self.program.choices[node.name] = Choice(name, earlier_way, {earlier_way: 0.0})
            return earlier_way
        try:
            way, ms = choose_way(found, tensors)
        except RuntimeError as error:
            raise NotFusible(
                reason=f"{name} cannot be computed for several lanes: {_first(error)}; {where(node)}"
            ) from error
        self.program.choices[node.name] = Choice(name, way, ms)
        return way

    def _call(self, node: torch.fx.Node, name: str, target: Any, numbers: tuple[tuple[float, ...], ...]) -> Call:
        shown: Any = node.meta.get("val")
        shown = shown[0] if isinstance(shown, list | tuple) and shown else shown
        shape = tuple(shown.shape) if hasattr(shown, "shape") else ()
        outside = out_argument(node)
        args = tuple(self._operand(argument) for argument in arguments(node))
        named = {key: self._operand(operand) for key, operand in keywords(node).items() if key != outside}
        return Call(name, target, args, named, self.program.lanes, numbers, shape)

    def _operand(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.fx.Node):
            place = self._slot(value)
            tensor = self._values[place]
            if place not in self._infos or not isinstance(tensor, torch.Tensor):
                raise NotFusible(reason=f"{operator_name(value)} gives no tensor; {where(value)}")
            info = self._infos[place]
            shape = tuple(tensor.shape[1:] if info.stacked else tensor.shape)
            return Operand(place, info.stacked, shape, tensor.dtype, memory_order(value.meta.get("val")))
        if isinstance(value, list | tuple):
            return (
                tuple(self._operand(element) for element in value)
                if isinstance(value, tuple)
                else [self._operand(element) for element in value]
            )
        return value

    def _slot(self, node: torch.fx.Node) -> int:
        place = self._places[node]
        return self._bound.get(place, place)

    def _root(self, node: torch.fx.Node, place: int, reads: tuple[int, ...]) -> int:
        schema = getattr(node.target, "_schema", None)
        aliases = schema is not None and any(output.alias_info is not None for output in schema.returns)
        return self._infos[reads[0]].root if aliases and reads else place

    def _out_of_place(self, node: torch.fx.Node, name: str, written: torch.fx.Node) -> tuple[Any, bool]:
        """The operator that gives a new tensor instead of writing to one; and whether that has to be written back, since others see
        it, or it outlasts the step.

        Raises:
            NotFusible: there is no such operator; or a tensor that all lanes share is written to.
        """
        replacement, place = functional(node.target), self._slot(written)
        info = self._infos.get(place)
        if info is None or replacement is None:
            raise NotFusible(reason=f"{name} writes to a tensor in a way that has no other form; {where(node)}")
        if any(info.root == slot for slot, _ in (*self.program.buffers, *self.program.parameters)):
            return replacement, True
        later = [later_node for later_node in self._places if self._places[later_node] > self._places[node]]
        aliased = [
            n
            for n, at in self._places.items()
            if at in self._infos and self._infos[at].root == info.root and at != place
        ]
        seen = any(user in aliased for later_node in later for user in later_node.all_input_nodes)
        if written.op == "placeholder" or (seen and not info.stacked):
            raise NotFusible(reason=f"{name} writes to a tensor that others see; {where(node)}")
        return replacement, seen


def _into(compute: Callable[..., Any], lasting: bool) -> Callable[..., Any]:
    """What is computed, written into the memory that is given first. That of buffers and weights is written to as data: what a
    module writes there has no gradient, whose bookkeeping would last, too."""

    def write(memory: Any, *tensors: Any) -> Any:
        # What it was before may be kept for the gradient.
        contents = compute(*[tensor.clone() if tensor is memory else tensor for tensor in tensors])
        (memory.data if lasting else memory).copy_(contents)
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
        output: Result = call.target(*args, **named)
        return output

    return compute


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
