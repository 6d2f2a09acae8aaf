"""A decoder's graph at given numbers of tokens: everything that does not depend on the tokens themselves is a constant."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.errors import InvalidGraph, NoReference, StatedOtherwise
from bricolage.graph.constant_folding import constant_elements, constant_value, is_known
from bricolage.graph.contributed_shapes import infer_behind
from bricolage.graph.graph import describe
from bricolage.graph.prepare import bind, simplify, symbolic_dimensions
from bricolage.language.onnx_decoders.cache_interface import CacheInterface
from bricolage.language.onnx_decoders.part_identity import identify_part
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.verify.reference import Evaluator

_TOLERANCE, _HALF_TOLERANCE = 1e-6, 2e-3
"""Of differences to what is expected, by norm: constants of a graph are rounded to float32, or to 16 bits."""
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
Arrays = Mapping[ir.Value, np.ndarray]


@dataclass(frozen=True)
class _Part:
    """What evaluates a part, and the weights of it by the names of inputs."""

    evaluator: Evaluator
    constants: dict[str, np.ndarray]


class BoundGraph:
    """Operators behind a cache of `past` tokens and `new` ones, and what stretches of them compute in float64."""

    def __init__(self, model: ir.Model, interface: CacheInterface, past: int, new: int) -> None:
        """Masks, positions and rotary tables become constants.

        Raises:
            NotUnderstood: an input has sizes that it cannot have.
        """
        self.past, self.new = past, new
        bound = model.clone()
        for value in list(bound.graph.inputs):
            if value.name in interface.controls:
                assert value.name is not None and value.dtype is not None
                array = interface.control_value(value.name, np.dtype(value.dtype.numpy()), past, new)
                constant = constant_value(value.name, array)
                value.replace_all_uses_with(constant)
                bound.graph.inputs.remove(value)
                value.name = f"{value.name}.input"
                bound.graph.register_initializer(constant)
        # A clean model states what can be inferred: `prepare` would infer it again, and judge what nothing is computed of.
        graph = simplify(bind(bound, _sizes(bound, interface, past, new)))
        _infer_again(graph.model)
        self.nodes = [operator.node for operator in graph.operators]
        self._model = graph.model
        self._place = {node: place for place, node in enumerate(self.nodes)}
        self._parts: dict[tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]], _Part] = {}
        self._evaluators: dict[Hashable, Evaluator] = {}
        self.readings: dict[Hashable, object] = {}
        """What was read of parts, by what identifies them."""
        named = {value.name: value for value in (*graph.model.graph.inputs, *graph.model.graph.outputs)}
        self.tokens, self.logits = named[interface.tokens], named[interface.logits]
        self.caches = [
            (named[layer.past_key], named[layer.past_value], named[layer.present_key], named[layer.present_value])
            for layer in interface.layers
        ]
        narrow = any(value.dtype in _HALVES for node in self.nodes for value in node.outputs)
        self.tolerance = _HALF_TOLERANCE if narrow else _TOLERANCE
        self.computed = self.reachable([self.tokens, *(past for cache in self.caches for past in cache[:2])])

    def reachable(self, sources: Iterable[ir.Value]) -> set[ir.Value]:
        """Values that depend on some, and these."""
        return _reach(self.nodes, sources)

    def stretch(self, source: ir.Value, sink: ir.Value) -> list[ir.Node]:
        """Nodes on ways from one value to another, in their order."""
        first, last = source.producer(), sink.producer()
        begin = 0 if first is None else self._place[first]
        between = self.nodes[begin : 0 if last is None else self._place[last] + 1]
        seen = _reach(between, [source])
        needed, nodes = {sink}, []
        for node in reversed(between):
            if needed.intersection(node.outputs) and any(value in seen for value in node.inputs):
                nodes.append(node)
                needed.update(value for value in node.inputs if value in seen)
        return nodes[::-1]

    def cone(self, sinks: Sequence[ir.Value], given: Iterable[ir.Value]) -> list[ir.Node]:
        """Nodes that compute values from given ones, in their order.

        Raises:
            NotUnderstood: they rest on another input, too.
        """
        borders, nodes = set(given), set[ir.Node]()
        todo = list(sinks)
        while todo:
            value = todo.pop()
            if value in borders or is_known(value):
                continue
            node = value.producer()
            if node is None:
                raise NotUnderstood(f"'{sinks[0].name}' rests on '{value.name}'")
            if node not in nodes:
                nodes.add(node)
                todo += [value for value in node.inputs if value is not None]
        return sorted(nodes, key=self._place.__getitem__)

    def cuts(self, source: ir.Value, sink: ir.Value) -> list[ir.Value]:
        """Values that every way from one value to another goes through, in order, both included."""
        nodes = self.stretch(source, sink)
        inside = {source, sink, *(value for node in nodes for value in node.outputs)}
        last_use = {value: place for place, node in enumerate(nodes) for value in node.inputs if value in inside}
        cuts, furthest = [source], last_use.get(source, -1)
        for place, node in enumerate(nodes):
            leaving = [value for value in node.outputs if value in last_use or value is sink]
            if len(leaving) == 1 and furthest <= place:
                cuts.append(leaving[0])
            furthest = max([furthest, *(last_use.get(value, -1) for value in leaving)])
        return cuts

    def evaluate(self, sinks: Sequence[ir.Value], given: Arrays) -> list[np.ndarray]:
        """Values in float64, computed from given ones.

        Raises:
            NotUnderstood: they rest on other inputs, or an operator cannot be computed.
        """
        borders = tuple(given)
        asked = tuple(sink for sink in sinks if sink not in given)
        key = (asked, borders)
        try:
            if key not in self._parts:
                self._parts[key] = self._prepare_part(asked, borders)
            part = self._parts[key]
            results = part.evaluator({f"given_{i}": given[value] for i, value in enumerate(borders)} | part.constants)
        except (NoReference, InvalidGraph, StatedOtherwise) as error:
            raise NotUnderstood(f"'{sinks[0].name}' cannot be computed: {error.facts['reason']}") from error
        computed = {sink: np.asarray(results[f"sink_{i}"]) for i, sink in enumerate(asked)}
        return [given[sink] if sink in given else computed[sink] for sink in sinks]

    def _prepare_part(self, sinks: Sequence[ir.Value], borders: Sequence[ir.Value]) -> _Part:
        """Layers share what evaluates them: their weights go in as inputs do."""
        identity = identify_part(sinks, borders)
        if identity.structure not in self._evaluators:
            part = self._cut_out(sinks, borders, identity.constants)
            self._evaluators[identity.structure] = Evaluator(part)
        names = (f"given_{len(borders) + i}" for i in range(len(identity.constants)))
        arrays = (constant_elements(value) for value in identity.constants)
        constants = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
        return _Part(self._evaluators[identity.structure], constants)

    def _cut_out(self, sinks: Sequence[ir.Value], borders: Sequence[ir.Value], weights: Sequence[ir.Value]) -> ir.Model:
        """A model of what computes `sinks`; `weights` are inputs of it."""
        nodes = self.cone(sinks, borders)
        constants = {value for node in nodes for value in node.inputs if value is not None and is_known(value)}
        constants -= set(weights)
        view = ir.GraphView(
            [*borders, *weights],
            list(sinks),
            nodes=nodes,
            initializers=sorted(constants, key=lambda value: value.name or ""),
            opset_imports=dict(self._model.graph.opset_imports),
            name="part",
        )
        part = ir.Model(view.clone(), ir_version=self._model.ir_version)
        for kind, values in (("given", part.graph.inputs), ("sink", part.graph.outputs)):
            for number, value in enumerate(values):
                value.name, value.const_value = f"{kind}_{number}", None
        return part


def _reach(nodes: Iterable[ir.Node], sources: Iterable[ir.Value]) -> set[ir.Value]:
    seen = set(sources)
    for node in nodes:
        if any(value in seen for value in node.inputs):
            seen.update(node.outputs)
    return seen


def read_sizes(value: ir.Value) -> tuple[int, ...]:
    """Of a value whose sizes are known.

    Raises:
        NotUnderstood: they are not.
    """
    info = describe(value)
    if not info.static:
        raise NotUnderstood(f"'{value.name}' has no known sizes")
    return info.sizes


def _infer_again(model: ir.Model) -> None:
    """Names that inference gave to sizes behind fused operators, before it knew those, become the sizes."""
    for node in model.graph:
        for value in node.outputs:
            if value.shape is not None and not value.shape.is_static() and not value.is_graph_output():
                value.shape = None
    infer_behind(model)


def _sizes(model: ir.Model, interface: CacheInterface, past: int, new: int) -> dict[str, int]:
    """Sizes of the open dimensions.

    Raises:
        NotUnderstood: one would have two sizes.
    """
    sizes: dict[str, int] = {}
    for value in model.graph.inputs:
        wanted = (1, new) if value.name == interface.tokens else (1, interface.key_heads, past, interface.head_size)
        if value.shape is None or len(value.shape) != len(wanted):
            raise NotUnderstood(f"input '{value.name}' has another rank than {len(wanted)}")
        for axis, (dimension, size) in enumerate(zip(value.shape, wanted, strict=True)):
            name = dimension if isinstance(dimension, int) else dimension.value or f"{value.name}.{axis}"
            bound = name if isinstance(name, int) else sizes.setdefault(name, size)
            if bound != size:
                raise NotUnderstood(f"input '{value.name}' has {bound} for axis {axis}, where one sequence has {size}")
    open_sizes = symbolic_dimensions(model)
    return {name: size for name, size in sizes.items() if name in open_sizes}
