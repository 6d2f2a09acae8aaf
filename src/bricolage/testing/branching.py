"""Random models whose shapes hang on control flow: recurrences, convolutions, sequences and open sizes in bodies of If, Loop and
Scan, ranks that differ between branches, branches for other sizes, and bodies that state some of their shapes.

All of a model's main tensors have three axes, `[n, b, features]`, of which only the features are known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

_FLOAT, _INT64, _BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
_FEATURES = 3
SIZES = (1, 2, 4)
"""Of the open dimensions `n` and `b`; branches for other sizes are computed at some of them."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class TensorRows:
    """A tensor of three axes, of which the last has this size."""

    name: str
    features: int


@dataclass
class Scope:
    """A graph in the making. `rows` are what can be read in it, from around it too."""

    rows: list[TensorRows]
    depth: int
    conditional: bool
    """Whether it is a branch that may not be computed, and so may be made for other sizes."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)


class Branching:
    """Grows one model. Methods that take a scope and rows are steps: they add operators and return rows of the same kind."""

    def __init__(self, seed: int, chance: random.Random | None = None) -> None:
        """`seed` of the weights, and of all choices unless `chance` makes these."""
        self.random = chance or random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._count = 0
        self._shared: list[onnx.TensorProto] = []
        self._rank_free: list[str] = []

    # --- small parts

    def _fresh(self, what: str) -> str:
        self._count += 1
        return f"{what}{self._count}"

    def _constant(self, scope: Scope, array: np.ndarray | np.generic) -> str:
        """In the scope itself, or captured from the main graph."""
        tensor = numpy_helper.from_array(np.asarray(array), self._fresh("c"))
        (scope.constants if self.random.random() < 0.5 else self._shared).append(tensor)
        return str(tensor.name)

    def _weights(self, scope: Scope, *shape: int) -> str:
        return self._constant(scope, (self._numbers.standard_normal(shape) / 4).astype(np.float32))

    def _ints(self, scope: Scope, *values: int) -> str:
        return self._constant(scope, np.array(values, np.int64))

    def _add(self, scope: Scope, op_type: str, inputs: list[str], outputs: int = 1, **attributes: object) -> str:
        """An operator; the name of its last output, the only one that is used."""
        names = [self._fresh(op_type.lower()) for _ in range(outputs)]
        scope.nodes.append(helper.make_node(op_type, inputs, names, name=f"{op_type}_{self._count}", **attributes))
        return names[-1]

    def _size(self, scope: Scope, name: str, axis: int) -> str:
        """A dimension, as a tensor of one element."""
        shape = self._add(scope, "Shape", [name])
        return self._add(scope, "Slice", [shape, self._ints(scope, axis), self._ints(scope, axis + 1)])

    # --- steps without bodies

    def recurrence(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """The last state, or all of them."""
        op_type, hidden = self.random.choice(sorted(_GATES)), self.random.choice([2, 3])
        both = self.random.random() < 0.3
        directions, gates = 2 if both else 1, _GATES[op_type]
        given = [rows.name, *(self._weights(scope, directions, gates * hidden, k) for k in (rows.features, hidden))]
        direction = "bidirectional" if both else "forward"
        if self.random.random() < 0.5:
            return TensorRows(self._add(scope, op_type, given, 2, hidden_size=hidden, direction=direction), hidden)
        states = self._add(scope, op_type, given, hidden_size=hidden, direction=direction)
        every = self._add(scope, "Transpose", [states], perm=[0, 2, 1, 3])
        return TensorRows(self._add(scope, "Reshape", [every, self._ints(scope, 0, 0, -1)]), directions * hidden)

    def convolution(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """Along the second axis."""
        channels = self.random.choice([1, 2, 3])
        turned = self._add(scope, "Transpose", [rows.name], perm=[0, 2, 1])
        weights = self._weights(scope, channels, rows.features, 3)
        convolved = self._add(scope, "Conv", [turned, weights], pads=[1, 1], kernel_shape=[3])
        return TensorRows(self._add(scope, "Transpose", [convolved], perm=[0, 2, 1]), channels)

    def padding(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """By amounts that are computed of constants."""
        before, after = (self._ints(scope, self.random.randint(0, 1), 0, 0) for _ in range(2))
        return TensorRows(
            self._add(scope, "Pad", [rows.name, self._add(scope, "Concat", [before, after], axis=0)]), rows.features
        )

    def reshaping(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """To a shape that is computed, in which the axes before the last are one and two again."""
        sizes = [self._size(scope, rows.name, axis) for axis in (0, 1)]
        target = self._add(scope, "Concat", [*sizes, self._ints(scope, rows.features)], axis=0)
        flat = self._add(scope, "Reshape", [rows.name, self._ints(scope, -1)])
        return TensorRows(self._add(scope, "Reshape", [flat, target]), rows.features)

    def sequence(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """Through a sequence of tensors."""
        if self.random.random() < 0.5:
            split_size = self._constant(scope, np.int64(1))
            parts = self._add(scope, "SplitToSequence", [rows.name, split_size], axis=0)
        else:
            parts = self._add(scope, "SequenceConstruct", [rows.name] * 2)
        if self.random.random() < 0.5:
            at = self._constant(scope, np.int64(0))
            return TensorRows(self._add(scope, "SequenceAt", [parts, at]), rows.features)
        return TensorRows(self._add(scope, "ConcatFromSequence", [parts], axis=0), rows.features)

    def choosing(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """Those elements of the first axis that hold something positive: how many is known only at run time."""
        sums = self._add(scope, "ReduceMax", [rows.name, self._ints(scope, 1, 2)], keepdims=0)
        positive = self._add(scope, "Greater", [sums, self._constant(scope, np.float32(0))])
        kept = self._add(scope, "Compress", [rows.name, positive], axis=0)
        return TensorRows(self._add(scope, "Concat", [kept, rows.name], axis=0), rows.features)

    def for_a_size(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """Adds what fits only some sizes of the second axis; elsewhere than in branches what fits all."""
        size = self.random.choice(SIZES) if scope.conditional else 1
        return TensorRows(
            self._add(scope, "Add", [rows.name, self._weights(scope, size, rows.features)]), rows.features
        )

    # --- steps with bodies

    def rank_by_size(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """An axis of one element is dropped, and comes back where it was; in a branch, sometimes where it was not as well."""
        is_single = self._add(scope, "Equal", [self._size(scope, rows.name, 1), self._ints(scope, 1)])
        axis = self._ints(scope, 1)
        flat = self._if(scope, is_single, ("Squeeze", [rows.name, axis]), ("Identity", [rows.name]))
        rank = self._add(scope, "Size", [self._add(scope, "Shape", [flat])])
        lower = self._add(scope, "Equal", [rank, self._constant(scope, np.int64(2))])
        always = scope.conditional and self.random.random() < 0.5
        other = ("Unsqueeze", [flat, axis]) if always else ("Identity", [flat])
        whole = self._if(scope, lower, ("Unsqueeze", [flat, axis]), other)
        return self.recurrence(scope, TensorRows(whole, rows.features))

    def _if(self, scope: Scope, condition: str, *operators: tuple[str, list[str]]) -> str:
        """An If of one operator in each branch."""
        branches = []
        for op_type, inputs in operators:
            branch_scope = Scope([], 0, True)
            branches.append(self._body(branch_scope, [], [(self._add(branch_scope, op_type, inputs), _FLOAT, None)]))
        return self._add(scope, "If", [condition], then_branch=branches[0], else_branch=branches[1])

    def branches(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """Two ways under a condition that is known at run time alone."""
        outputs, bodies = [], []
        for _ in range(2):
            branch_scope = Scope([*scope.rows, rows], scope.depth - 1, True)
            outputs.append(self._features(branch_scope, self._grow_rows(branch_scope, rows), _FEATURES))
            bodies.append(
                self._body(branch_scope, [], [(outputs[-1].name, _FLOAT, self._choose_stated_shape(outputs[-1]))])
            )
        return TensorRows(self._add(scope, "If", ["flag"], then_branch=bodies[0], else_branch=bodies[1]), _FEATURES)

    def loop(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """Rounds that change what is carried, or make it longer."""
        carried, grow = TensorRows(self._fresh("carried"), rows.features), self.random.random() < 0.4
        body_scope = Scope([*scope.rows, carried], scope.depth - 1, scope.conditional)
        last = self._features(body_scope, self._grow_rows(body_scope, carried), rows.features)
        if grow:
            last = TensorRows(self._add(body_scope, "Concat", [last.name, carried.name], axis=0), rows.features)
        number, going = self._fresh("round"), self._fresh("going")
        on = self._add(body_scope, "Identity", [going])
        starts = [(number, _INT64, []), (going, _BOOL, []), (carried.name, _FLOAT, self._choose_stated_shape(carried))]
        body = self._body(body_scope, starts, [(on, _BOOL, []), (last.name, _FLOAT, self._choose_stated_shape(last))])
        rounds = "count" if self.random.random() < 0.5 else self._constant(scope, np.int64(2))
        return TensorRows(self._add(scope, "Loop", [rounds, "", rows.name], body=body), rows.features)

    def scan(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """One element of the first axis after another, with a state."""
        state, part = self._fresh("state"), self._fresh("part")
        body_scope = Scope([], scope.depth - 1, scope.conditional)
        cube = TensorRows(self._add(body_scope, "Unsqueeze", [part, self._ints(body_scope, 0)]), rows.features)
        hidden_rows = self._features(body_scope, self.recurrence(body_scope, cube), rows.features)
        sums = self._add(body_scope, "ReduceSum", [hidden_rows.name, self._ints(body_scope, 0)], keepdims=0)
        following = self._add(body_scope, "Add", [state, sums])
        stated = self.random.choice([None, [None, rows.features], ["b", rows.features]])
        out = self._add(body_scope, "Tanh", [following])
        ends = [(following, _FLOAT, None), (out, _FLOAT, None)]
        body = self._body(body_scope, [(state, _FLOAT, stated), (part, _FLOAT, stated)], ends)
        first = self._add(scope, "ReduceMean", [rows.name, self._ints(scope, 0)], keepdims=0)
        return TensorRows(self._add(scope, "Scan", [first, rows.name], 2, body=body, num_scan_inputs=1), rows.features)

    # --- graphs

    def _features(self, scope: Scope, rows: TensorRows, count: int) -> TensorRows:
        """The same with another number of features."""
        if rows.features == count:
            return rows
        return TensorRows(self._add(scope, "MatMul", [rows.name, self._weights(scope, rows.features, count)]), count)

    def _grow_rows(self, scope: Scope, rows: TensorRows) -> TensorRows:
        """One to three steps behind rows; at least one operator, so that what comes out is the scope's own."""
        for _ in range(self.random.randint(1, 3)):
            around = [row for row in scope.rows if row.features == rows.features]
            if around and self.random.random() < 0.2:
                rows = self.random.choice(around)
            step = self.random.choice(STEPS if scope.depth else PLAIN_STEPS)
            rows = step(self, scope, rows)
        return TensorRows(self._add(scope, "Tanh", [rows.name]), rows.features)

    def _choose_stated_shape(self, rows: TensorRows) -> Sequence[int | None] | None:
        """What a body says of a shape: nothing, the rank, or what of it is known."""
        return self.random.choice([None, [None, None, None], [None, None, rows.features]])

    def _body(
        self, scope: Scope, starts: Sequence[tuple[str, int, object]], ends: Sequence[tuple[str, int, object]]
    ) -> onnx.GraphProto:
        infos = [[helper.make_tensor_value_info(*entry) for entry in entries] for entries in (starts, ends)]
        return helper.make_graph(scope.nodes, self._fresh("body"), infos[0], infos[1], initializer=scope.constants)

    def model(self) -> onnx.ModelProto:
        """A model of `x` `[n, b, 3]`, `flag` and `count`, with one to three outputs."""
        scope = Scope([TensorRows("x", _FEATURES)], 2, False)
        outputs = []
        for _ in range(self.random.randint(1, 3)):
            rows = self._grow_rows(scope, self.random.choice(scope.rows))
            scope.rows.append(rows)
            outputs.append(helper.make_tensor_value_info(rows.name, _FLOAT, [None, None, rows.features]))
        inputs = [("x", _FLOAT, ["n", "b", _FEATURES]), ("flag", _BOOL, []), ("count", _INT64, [])]
        graph = helper.make_graph(
            scope.nodes,
            "branching",
            [helper.make_tensor_value_info(*source) for source in inputs],
            outputs,
            initializer=[*self._shared, *scope.constants],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        return self._stating(model)

    def _stating(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The same, with some of what onnx infers stated in its graphs, as exporters do."""
        inferred = onnx.shape_inference.infer_shapes(model)
        for graph in _graphs(inferred.graph):
            kept = [info for info in graph.value_info if self.random.random() < 0.3]
            for info in kept:
                for dimension in info.type.tensor_type.shape.dim:
                    if self.random.random() < 0.3:
                        dimension.Clear()
            del graph.value_info[:]
            graph.value_info.extend(kept)
        return inferred


Step = Callable[[Branching, Scope, TensorRows], TensorRows]
PLAIN_STEPS: tuple[Step, ...] = (
    Branching.recurrence,
    Branching.convolution,
    Branching.padding,
    Branching.reshaping,
    Branching.sequence,
    Branching.choosing,
    Branching.for_a_size,
)
STEPS: tuple[Step, ...] = (
    *PLAIN_STEPS,
    *(Branching.rank_by_size, Branching.branches, Branching.loop, Branching.scan) * 2,
)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def branching_model(seed: int, chance: random.Random | None = None) -> onnx.ModelProto:
    """A model as a user has it; the same for the same arguments."""
    return Branching(seed, chance).model()
