"""What every lowering shares: the operator registry, attribute access, and knowledge about static values.

An operator is a function `f(xp, *inputs, **attributes)`. Its positional parameters are the ONNX inputs in order, its
keyword-only parameters are the ONNX attributes with their defaults (a `TypedDict` names those that operators share), so the
signature *is* the schema: an attribute that a function does not name is refused, never ignored. `xp` is the array library (see
`arrays.py`).
"""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args, get_type_hints

import numpy as np
import onnx_ir as ir

from bricolage.errors import InvalidGraph

NEWEST_OPSET = 28
"""The last opset whose operators were read when these lowerings were written."""

Array: TypeAlias = Any
"""An array of the framework that a lowering runs on, or a number. Frameworks have no common static type: see `arrays.Arrays`."""
Dtype: TypeAlias = Any
"""An element type of that framework."""
Results: TypeAlias = Array | tuple[Array, ...]
"""Of an operator: one array, or one for each output."""
AttributeValue: TypeAlias = Any
"""A number, text, numpy array or tuple. An operator's keyword-only parameters give the types of its attributes."""
Attributes: TypeAlias = dict[str, AttributeValue]
HostValue: TypeAlias = Any
"""A Python number, or nested tuples of numbers: what an input that decides shapes is given as."""
OperatorFunction: TypeAlias = Callable[..., Results]
"""`f(xp, *inputs, **attributes)`."""

SCALAR_LIMIT = 64
"""Constants of at most this many elements are treated as part of the program, larger ones as data."""

_INTERNAL = frozenset({"_outputs", "_types", "_batch_parts"})


@dataclass(frozen=True)
class OperatorLowering:
    """One operator over a range of opsets.

    `host` names the inputs that decide shapes (axes, pads, target shapes): they arrive as Python numbers or tuples.
    `data_dependent` says why the output's shape depends on values, or is empty.
    """

    name: str
    domain: str
    since: int
    until: int
    function: OperatorFunction
    host: frozenset[str] = frozenset()
    data_dependent: str = ""
    inputs: tuple[str, ...] = ()
    variadic: bool = False
    attributes: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    internal: frozenset[str] = frozenset()
    unless: Callable[[ir.Node], str | None] | None = None

    def input_name(self, index: int) -> str:
        """The parameter that receives input `index`; empty for a variadic one."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def is_host(self, index: int) -> bool:
        """Whether input `index` is given as a number or tuple, not as an array."""
        return self.input_name(index) in self.host


@dataclass
class Registry:
    """Operators by name; a registry with a parent overrides single operators of it."""

    parent: Registry | None = None
    table: dict[tuple[str, str], list[OperatorLowering]] = field(default_factory=dict)

    def operator(
        self,
        name: str,
        *,
        since: int = 1,
        until: int = NEWEST_OPSET,
        host: Iterable[str] = (),
        domain: str = "",
        data_dependent: str = "",
        unless: Callable[[ir.Node], str | None] | None = None,
    ) -> Callable[[OperatorFunction], OperatorFunction]:
        """Register a function for the opsets `since` to `until`, both included.

        `unless` gets a node and returns why the function cannot serve it, or None.
        """

        def register(function: OperatorFunction) -> OperatorFunction:
            inputs, variadic, attributes, required = _read_signature(function)
            entry = OperatorLowering(
                name,
                domain,
                since=since,
                until=until,
                function=function,
                host=frozenset(host),
                data_dependent=data_dependent,
                inputs=inputs,
                variadic=variadic,
                attributes=frozenset(attributes - _INTERNAL),
                required=frozenset(required - _INTERNAL),
                internal=frozenset(attributes & _INTERNAL),
                unless=unless,
            )
            self.table.setdefault((domain, name), []).append(entry)
            return function

        return register

    def find(self, domain: str, name: str, opset: int) -> OperatorLowering | None:
        """The operator that covers `opset`; this registry's own entries come before the parent's."""
        for entry in self.table.get((domain, name), ()):
            if entry.since <= opset <= entry.until:
                return entry
        return self.parent.find(domain, name, opset) if self.parent else None

    def known(self, domain: str, name: str) -> bool:
        """Whether some version of an operator is registered here or in a parent."""
        return (domain, name) in self.table or (self.parent is not None and self.parent.known(domain, name))


PORTABLE = Registry()
"""The operators written once, over the vocabulary of `arrays.py`."""

operator = PORTABLE.operator
MICROSOFT = "com.microsoft"
"""Domain of the operators that ONNX Runtime adds."""
contributed = functools.partial(PORTABLE.operator, domain=MICROSOFT)


def _read_signature(function: OperatorFunction) -> tuple[tuple[str, ...], bool, set[str], set[str]]:
    inputs: list[str] = []
    variadic = False
    attributes: set[str] = set()
    required: set[str] = set()
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = True
        elif parameter.kind is parameter.KEYWORD_ONLY:
            attributes.add(parameter.name)
            if parameter.default is parameter.empty:
                required.add(parameter.name)
        elif parameter.kind is parameter.VAR_KEYWORD:
            (shared,) = get_args(get_type_hints(function)[parameter.name])
            attributes |= shared.__required_keys__ | shared.__optional_keys__
            required |= shared.__required_keys__
        else:
            inputs.append(parameter.name)
    return tuple(inputs), variadic, attributes, required


@functools.cache
def schema_version(domain: str, name: str, opset: int) -> int | None:
    """The version of the operator's definition that is in force in `opset`, None when ONNX does not define it."""
    import onnx

    try:
        return int(onnx.defs.get_schema(name, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def attributes_of(node: ir.Node) -> Attributes:
    """Attributes as plain Python values (tensors as numpy, lists as tuples); graphs are left out.

    Names that Python reserves get a trailing underscore, as parameters do (`lambda_`).
    """
    values: Attributes = {}
    for attribute in node.attributes.values():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        value = attribute.value
        if attribute.type is ir.AttributeType.TENSOR:
            value = value.numpy()
        elif isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, (list, tuple)) or (not isinstance(value, str) and hasattr(value, "__iter__")):
            value = tuple(value)
        name = attribute.name
        values[f"{name}_" if keyword.iskeyword(name) else name] = value
    return values


def subgraphs_of(node: ir.Node) -> dict[str, ir.Graph]:
    """The bodies of a node by attribute."""
    return {a.name: a.as_graph() for a in node.attributes.values() if a.type is ir.AttributeType.GRAPH}


def opset_for(node: ir.Node, imports: dict[str, int]) -> int:
    """The opset of the node's own domain; 1 when the model does not import it."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return int(imports.get(domain, imports.get("ai.onnx", 1) if not domain else 1))


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The value of an initializer or of a Constant node, as numpy; None when it is not known."""
    if value is None:
        return None
    if value.const_value is not None and (value.is_initializer() or value.producer() is not None):
        return np.asarray(value.const_value.numpy())
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and not producer.domain:
        return constant_node_value(producer)
    return None


FOUR_BITS = frozenset({21, 22})
"""ONNX element types UINT4 and INT4."""


def element_types(node: ir.Node) -> list[int]:
    """Types of a node's inputs and outputs that the model states, without those of initializers of 4 bits that DequantizeLinear
    reads: these come `widened`."""
    dequantizes = node.op_type == "DequantizeLinear"
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.dtype is not None]
    return [
        int(v.dtype)
        for v in values
        if v.dtype is not None and not (dequantizes and int(v.dtype) in FOUR_BITS and v.is_initializer())
    ]


def widen_constant(array: np.ndarray) -> np.ndarray:
    """A constant in a type that every library has: integers of 4 bits in 8, others as they are."""
    wider = {"int4": np.int8, "uint4": np.uint8}.get(array.dtype.name)
    return array if wider is None else array.astype(wider)


def constant_node_value(node: ir.Node) -> np.ndarray | None:
    """What a Constant node holds; None for strings and sparse tensors."""
    values = attributes_of(node)
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for name, kind in kinds.items():
        if name in values:
            return np.asarray(values[name], kind)
    value = values.get("value")
    return value if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU" else None


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape when every dimension is a number."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return tuple(int(d) for d in value.shape)  # type: ignore[arg-type]


def rank_of(value: ir.Value | None) -> int | None:
    """Number of axes of a value; None where unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def is_static(value: ir.Value | None, depth: int = 64) -> bool:
    """Whether the value follows from constants and from shapes alone, and never from the data of an input."""
    if value is None or constant_of(value) is not None:
        return True
    producer = value.producer()
    if producer is None or depth == 0:
        return False
    if producer.op_type in ("Shape", "Size", "Constant") and not producer.domain:
        return True
    if subgraphs_of(producer) or producer.op_type.startswith("Random"):
        return False
    return all(is_static(v, depth - 1) for v in producer.inputs)


def refusal(registry: Registry, node: ir.Node, opset: int) -> str | None:
    """Why no operator of the registry fits the node (None when one does): name, version, attributes, outputs."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    entry = registry.find(domain, node.op_type, opset)
    qualified = f"{domain}::{node.op_type}" if domain else node.op_type
    if not registry.known(domain, node.op_type):
        return f"{qualified} has no lowering"
    version = schema_version(domain, node.op_type, opset)
    if version is not None and version > NEWEST_OPSET and not domain:
        return f"version {version} of {qualified} is newer than this lowering knows"
    if entry is None:
        return f"{qualified} of opset {opset} has no lowering"
    values = attributes_of(node)
    unknown = sorted(set(values) - entry.attributes)
    if unknown:
        return f"attribute '{unknown[0]}' of {qualified} is not handled"
    missing = sorted(entry.required - set(values))
    if missing:
        return f"{qualified} lacks its attribute '{missing[0]}'"
    if not entry.variadic and len(node.inputs) > len(entry.inputs):
        return f"{qualified} has more inputs than its lowering takes"
    return entry.unless(node) if entry.unless else None


def front_axis(rank: int, axis: int) -> int:
    """`axis` counted from the front. Raises InvalidGraph outside [-rank, rank)."""
    if not -rank <= axis < max(rank, 1):
        raise InvalidGraph(reason=f"axis {axis} lies outside a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def normalise_axes(axes: Iterable[int] | int | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front; None means all."""
    if axes is None:
        return tuple(range(rank))
    listed = (axes,) if isinstance(axes, int) else tuple(axes)
    return tuple(front_axis(rank, int(a)) for a in listed)


def to_host(value: np.ndarray) -> HostValue:
    """A numpy value as Python number (rank 0) or nested tuples."""

    def freeze(x: HostValue) -> HostValue:
        return tuple(freeze(item) for item in x) if isinstance(x, list) else x

    return freeze(np.asarray(value).tolist())


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that numpy-style broadcasting gives; sizes may be symbolic integers."""
    rank = max(len(s) for s in shapes)
    result = []
    for position in range(-rank, 0):
        sizes = [s[position] for s in shapes if len(s) >= -position]
        result.append(next((d for d in sizes if d != 1), 1))
    return tuple(result)
