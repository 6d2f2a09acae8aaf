"""Building the right side of a rule as `onnx_ir` nodes, typed and folded as they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements, constant_value, evaluate_constant, is_known
from bricolage.graph.graph import bodies, describe
from bricolage.rewrite.rule import MatchFailure

_DATA_BYTES = 1024  # constants up to this size are shown to shape inference: shapes, axes, pads
_BY_FLOATS = frozenset(["Resize", "Range"])  # operators whose shapes depend on floats


class Names:
    """Fresh names of values and nodes, over a whole model."""

    def __init__(self, model: ir.Model) -> None:
        self._taken: set[str] = set()
        for graph in model.graphs():
            self._taken.update(value.name or "" for value in (*graph.inputs, *graph.initializers.values()))
            for node in graph:
                self._taken.add(node.name or "")
                self._taken.update(value.name or "" for value in node.outputs)
        self._count = 0
        self._given: list[tuple[int, str]] = []

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        before = self._count
        while True:
            self._count += 1
            name = f"{stem}.{self._count}"
            if name not in self._taken:
                self._taken.add(name)
                self._given.append((before, name))
                return name

    @property
    def given(self) -> int:
        """How many names were given."""
        return len(self._given)

    def take_back(self, given: int) -> None:
        """Takes back all names but the first `given`, so that what is discarded leaves no trace in later names."""
        while len(self._given) > given:
            self._count, name = self._given.pop()
            self._taken.discard(name)

    def copy(self) -> Names:
        """Names that go on independently."""
        other = Names.__new__(Names)
        other._taken, other._count, other._given = set(self._taken), self._count, []
        return other


class GraphBuilder:
    """The `Operators` of `onnx_ir`. What it makes lies outside the graph until it is inserted.

    With `fold`, operators on constants are computed at once; without, they stay, as a proof of the rule wants them.
    """

    def __init__(self, opsets: Mapping[str, int], names: Names, *, fold: bool) -> None:
        self._opsets, self.names, self._fold = opsets, names, fold
        self._given = names.given
        self.nodes: list[ir.Node] = []
        self.insertion_points: list[tuple[int, ir.Node]] = []
        """For nodes from a number on: the node of the graph that they stand before."""
        self.constants: list[ir.Value] = []

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def build(*inputs: ir.Value | None, **attributes: object) -> ir.Value:
            return self.many(op_type, 1, *inputs, **attributes)[0]

        return build

    def copy(self, node: ir.Node, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        """See `Operators.copy`."""
        kept = {name: attribute.value for name, attribute in node.attributes.items()}
        return self.many(node.op_type, 1, *inputs, **{**kept, **attributes})[0]

    def integers(self, values: Sequence[int]) -> ir.Value:
        """See `Operators.integers`."""
        return self._constant(np.asarray(values, np.int64))

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """See `Operators.number`."""
        return self._constant(np.asarray(value).astype(describe(like).numpy))

    def many(self, op_type: str, outputs: int, *inputs: ir.Value | None, **attributes: object) -> tuple[ir.Value, ...]:
        """See `Operators.many`.

        Raises:
            MatchFailure: shape inference says that such an operator cannot be, or the result of constants overflows.
        """
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        kept = {name: _attribute(name, value) for name, value in attributes.items() if value is not None}
        node = ir.node(op_type, given, kept, num_outputs=outputs, name=self.names.fresh(op_type))
        for value in node.outputs:
            value.name = self.names.fresh(op_type.lower())
        try:
            self._infer(node)
        except MatchFailure:
            detach(node)
            raise
        if self._fold and all(value is None or is_known(value) for value in given):
            constants = self._folded(node)
            if constants is not None:
                return constants
        self.nodes.append(node)
        return tuple(node.outputs)

    def set_insertion_point(self, before: ir.Node) -> None:
        """See `Operators.set_insertion_point`."""
        self.insertion_points.append((len(self.nodes), before))

    def _folded(self, node: ir.Node) -> tuple[ir.Value, ...] | None:
        """The results of an operator on constants, which is detached; None, and it is left alone, where it cannot be computed.

        Raises:
            MatchFailure: they overflow.
        """
        results = evaluate_constant(node, self._opsets)
        if results is None:
            return None
        given = list(node.inputs)
        detach(node)
        if _overflows(given, results):
            raise MatchFailure(f"{node.op_type} of the constants is not finite")
        return tuple(self._constant(result) for result in results)

    def identity(self, value: ir.Value) -> ir.Value:
        """A copy of a value under a name of its own, also of a constant."""
        node = ir.node("Identity", [value], name=self.names.fresh("Identity"))
        (copy,) = node.outputs
        copy.name, copy.type, copy.shape = self.names.fresh("identity"), value.type, value.shape
        self.nodes.append(node)
        return copy

    def discard(self) -> None:
        """Forgets everything made: the inputs lose these readers, the names are free again."""
        for node in reversed(self.nodes):
            detach(node)
        self.nodes.clear()
        self.insertion_points.clear()
        self.constants.clear()
        self.names.take_back(self._given)

    def _constant(self, array: np.ndarray) -> ir.Value:
        value = constant_value(self.names.fresh("constant"), array)
        self.constants.append(value)
        return value

    def _infer(self, node: ir.Node) -> None:
        schema = onnx.defs.get_schema(node.op_type, self._opsets[""], "")
        _check_types(node, schema)
        given = [value for value in node.inputs if value is not None]
        types = {value.name: _type(value) for value in given}
        data = {
            value.name: onnx.numpy_helper.from_array(value.const_value.numpy(), value.name)
            for value in given
            if is_known(value) and value.const_value is not None and _is_shape_operand(node, value.const_value)
        }
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        try:
            # `ir.to_proto` first asks of what kind the object is, which takes longer than all else here.
            proto = ir.serde.serialize_node(node)
            node_outputs = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)
        except (
            onnx.shape_inference.InferenceError,
            onnx.checker.ValidationError,
        ) as error:  # the second: not for such a type
            raise MatchFailure(f"{node.op_type} cannot be built: {str(error).splitlines()[0]}") from error
        for value in node.outputs:
            kind = node_outputs.get(value.name)
            if kind is not None and kind.HasField("tensor_type"):
                value.type = ir.TensorType(ir.DataType(kind.tensor_type.elem_type))
                if kind.tensor_type.HasField("shape"):
                    value.shape = ir.Shape([_dimension(d) for d in kind.tensor_type.shape.dim])


def _attribute(name: str, value: object) -> object:
    """An attribute of `onnx_ir` from what most are; it would ask of each whether it is a tensor, or a graph, which takes longer."""
    if type(value) is int:
        return ir.AttrInt64(name, value)
    if type(value) is float:
        return ir.AttrFloat32(name, value)
    if type(value) is str:
        return ir.AttrString(name, value)
    if type(value) in (list, tuple) and value and all(type(element) is int for element in value):  # type: ignore[attr-defined]
        return ir.AttrInt64s(name, value)  # type: ignore[arg-type]
    return value


def _is_shape_operand(node: ir.Node, tensor: ir.TensorProtocol) -> bool:
    """Whether the shapes of an operator's outputs may depend on the numbers of a constant; it is not looked at otherwise."""
    return tensor.nbytes <= _DATA_BYTES and (not tensor.dtype.is_floating_point() or node.op_type in _BY_FLOATS)


def _overflows(given: Sequence[ir.Value | None], results: Sequence[np.ndarray]) -> bool:
    """Whether finite constants give something that is not finite."""
    before = [array for value in given if value is not None and (array := constant_elements(value)) is not None]
    return _finite(before) and not _finite(results)


def _finite(arrays: Sequence[np.ndarray]) -> bool:
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in arrays if a.dtype.kind in "fV")


def detach(node: ir.Node) -> None:
    """Makes a node, and what its sub-graphs hold, read nothing any more."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    for body in bodies(node):
        for inner in body:
            detach(inner)


def _check_types(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    """Inputs that share a type variable have one type; inference does not look at that.

    Raises:
        MatchFailure
    """
    bound_types: dict[str, ir.DataType] = {}
    for index, value in enumerate(node.inputs):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        dtype = describe(value).dtype if value is not None else None
        if dtype is not None and bound_types.setdefault(formal.type_str, dtype) != dtype and formal.is_homogeneous:
            raise MatchFailure(f"{node.op_type} would mix {bound_types[formal.type_str]} and {dtype}")


def _type(value: ir.Value) -> onnx.TypeProto:
    info = describe(value)
    if info.dtype is None:
        return onnx.TypeProto()
    shape = None if info.shape is None else [None if d == "?" else d for d in info.shape]
    return onnx.helper.make_tensor_type_proto(int(info.dtype), shape)


def _dimension(proto: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if proto.HasField("dim_value"):
        return int(proto.dim_value)
    return proto.dim_param or None
