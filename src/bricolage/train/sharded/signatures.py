"""In which layouts an operator of PyTorch can run: asked of DTensor's own propagation, so that DTensor runs what is planned.

Each question gives the layouts of what an operator reads, and hears the layouts of what it writes, or that others are wanted. No
process is needed: a mesh of devices that knows their number is enough. The propagator is private to PyTorch; this is the one module
that speaks to it (`DTensor._op_dispatcher.sharding_propagator`, as in PyTorch 2.13).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bricolage.search.sharding.layouts import MEAN, PARTIAL, REPLICATED, Layout, split_along, split_axis, splits
from bricolage.train.sharded.partitioned_operators import partitioned_pair
from bricolage.train.sharded.step_graph import called_with
from bricolage.train.sharded.verify import VerifiedOperator

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

_ALL_PAIRS = 64
"""Combinations that are all asked; of operators that have more only those that are alike, or differ in one."""
LOCAL = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 1),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (0, 1),
}
"""Operators that DTensor does not know, and axes along which all that they read and write is divided: samples and heads."""
Ordered = tuple[object, ...]
Named = dict[str, object]
Pair = tuple[tuple[Layout, ...], tuple[Layout, ...]]


def to_placement(layout: Layout) -> Placement:
    """As DTensor has it."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    axis = split_axis(layout)
    if axis is not None:
        return Shard(axis)
    return Replicate() if layout == REPLICATED else Partial("avg" if layout == MEAN else "sum")


def to_layout(placement: Placement) -> Layout | None:
    """None for what has no word here, such as a strided shard."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Shard:
        return split_along(placement.dim)
    if type(placement) is Replicate:
        return REPLICATED
    if type(placement) is Partial and placement.reduce_op in ("sum", "avg"):
        return MEAN if placement.reduce_op == "avg" else PARTIAL
    return None


class Signatures:
    """Of operators on a number of devices, each asked once."""

    def __init__(self, workers: int) -> None:
        import torch
        from torch.distributed.device_mesh import DeviceMesh

        self.workers = workers
        self._mesh: DeviceMesh = DeviceMesh("cpu", torch.arange(workers), _init_backend=False, _rank=0)
        self._known: dict[object, list[Pair]] = {}
        self._held: dict[tuple[object, Pair], bool] = {}

    def of(self, node: torch.fx.Node, shapes: Sequence[tuple[int, ...]]) -> list[Pair]:
        """Layouts of what a node reads and what it writes, those first in which all is whole; without those that `holds` has
        refused.

        Args:
            node: calls an operator; what it reads has a `val`.
            shapes: of what it writes, each tensor.
        """
        args, kwargs, key, read = self._key(node)
        if key not in self._known:
            self._known[key] = self._collect_pairs(node.target, args, kwargs, read, shapes)
        return [pair for pair in self._known[key] if self._held.get((key, pair), True)]

    def _key(self, node: torch.fx.Node) -> tuple[Ordered, Named, object, list[torch.Tensor]]:
        """Its arguments with the places of tensors, what its layouts depend on, and the tensors."""
        read: list[torch.Tensor] = []

        def value(one: torch.fx.Node) -> object:
            read.append(one.meta["val"])
            return _Place(len(read) - 1)

        args, kwargs = called_with(node, value)
        facts = tuple((tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype)) for tensor in read)
        return args, kwargs, (str(node.target), repr(args), repr(sorted(kwargs.items())), facts), read

    def _collect_pairs(
        self,
        function: object,
        args: Ordered,
        kwargs: Named,
        read: Sequence[torch.Tensor],
        shapes: Sequence[tuple[int, ...]],
    ) -> list[Pair]:
        whole: Pair = ((REPLICATED,) * len(read), (REPLICATED,) * len(shapes))
        pairs = {whole[0]: whole[1]}
        name = str(getattr(function, "_name", function)).partition(".")[0]
        for axis in LOCAL.get(name, ()):
            if all(
                len(shape) > axis and shape[axis] % self.workers == 0 for shape in [*(t.shape for t in read), *shapes]
            ):
                pairs[(split_along(axis),) * len(read)] = (split_along(axis),) * len(shapes)
        if name in LOCAL or not read:
            return list(pairs.items())
        options = [
            [
                REPLICATED,
                *((PARTIAL, MEAN) if tensor.is_floating_point() else ()),
                *splits(tuple(tensor.shape), self.workers),
            ]
            for tensor in read
        ]
        waiting = list(_first(options))
        seen: set[tuple[Layout, ...]] = set()
        while waiting:
            inputs = waiting.pop()
            if inputs in seen:
                continue
            seen.add(inputs)
            answer = self._ask(function, args, kwargs, read, inputs)
            if answer is None:
                continue
            wanted, outputs = answer
            plain = tuple(layout for layout in outputs if layout is not None)
            if wanted != inputs:
                if all(layout in choices for layout, choices in zip(wanted, options, strict=True)):
                    waiting.append(tuple(layout for layout in wanted if layout is not None))
            elif len(outputs) == len(shapes) == len(plain) and _even(plain, shapes, self.workers):
                pairs[inputs] = plain
        rows = (read[0].shape if name == "aten::embedding" else shapes[0] or (0,))[0]
        divided = partitioned_pair(name, rows, args, self.workers)
        choices = list(pairs.items())
        return choices if divided is None or divided in choices else [*choices, divided]

    def holds(self, node: torch.fx.Node, pair: Pair) -> bool:
        """Whether a node gives in these layouts what it gives whole (`VerifiedOperator`); asked of those that a search has
        chosen."""
        key = self._key(node)[2]
        if all(layout == REPLICATED for layout in (*pair[0], *pair[1])):
            return True
        if (key, pair) not in self._held:
            verified = VerifiedOperator(node.target, *called_with(node, lambda argument: argument.meta["val"]))  # type: ignore[arg-type]
            self._held[key, pair] = verified.holds(*pair, self.workers)
        return self._held[key, pair]

    def _ask(
        self, function: object, args: Ordered, kwargs: Named, read: Sequence[torch.Tensor], inputs: Sequence[Layout]
    ) -> tuple[tuple[Layout | None, ...], tuple[Layout | None, ...]] | None:
        """Layouts that are wanted of what is read, and what is written; None where DTensor has no answer."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
        from torch.distributed.tensor._op_schema import OpSchema
        from torch.utils._pytree import tree_leaves, tree_map

        specs = [
            DTensorSpec(
                self._mesh, (to_placement(layout),), tensor_meta=TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
            )
            for tensor, layout in zip(read, inputs, strict=True)
        ]

        def put(one: object) -> object:
            return specs[one.number] if isinstance(one, _Place) else one

        ordered, named = tree_map(put, (args, kwargs))
        try:
            propagator = DTensor._op_dispatcher.sharding_propagator
            answer = propagator.propagate_op_sharding_non_cached(OpSchema(function, tuple(ordered), named))  # type: ignore[arg-type]
        except Exception:  # whatever an operator's rule says of layouts that it does not take
            return None
        wanted: tuple[Layout | None, ...] = tuple(inputs)
        if answer.needs_redistribute and answer.redistribute_schema is not None:
            schema = answer.redistribute_schema
            leaves = [
                leaf
                for leaf in tree_leaves((schema.args_schema, schema.kwargs_schema))
                if isinstance(leaf, DTensorSpec)
            ]
            wanted = tuple(to_layout(leaf.placements[0]) for leaf in leaves)
        specs = [leaf for leaf in tree_leaves(answer.output_spec) if isinstance(leaf, DTensorSpec)]
        return wanted, tuple(to_layout(spec.placements[0]) for spec in specs)


@functools.cache
def signatures_on(workers: int) -> Signatures:
    """Those of this process, so that no operator is asked twice."""
    return Signatures(workers)


class _Place:
    """Of a tensor among those that an operator reads."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"#{self.number}"


def _first(options: Sequence[Sequence[Layout]]) -> Iterable[tuple[Layout, ...]]:
    """Combinations that are asked before DTensor proposes others."""
    count = 1
    for choices in options:
        count *= len(choices)
    if count <= _ALL_PAIRS:
        yield from itertools.product(*options)
        return
    whole = [REPLICATED] * len(options)
    for layout in dict.fromkeys(candidate for option in options for candidate in option):
        yield tuple(layout if layout in option else REPLICATED for option in options)
        for place, choices in enumerate(options):
            if layout in choices:
                yield (*whole[:place], layout, *whole[place + 1 :])


def _even(outputs: Sequence[Layout], shapes: Sequence[tuple[int, ...]], workers: int) -> bool:
    """Whether what is written is divided evenly."""
    axes = [split_axis(layout) for layout in outputs]
    return all(axis is None or shape[axis] % workers == 0 for axis, shape in zip(axes, shapes, strict=True))
