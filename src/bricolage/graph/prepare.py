"""From a loaded model to a graph that can be placed: dimensions bound, constants folded, types and shapes known.

Shape computations of exported models (Shape → Gather → Concat → Reshape) become constants once the inputs have sizes, so
folding and inference alternate until nothing changes.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import (
    DeduplicateInitializersPass,
    LiftConstantsToInitializersPass,
    OutputFixPass,
    RemoveUnusedNodesPass,
)

from bricolage.errors import BadOption, InvalidGraph, TooLarge, UnboundDimension, UnfitInputs, UnknownDimension
from bricolage.graph.body_constants import bring_inside
from bricolage.graph.constant_folding import fold
from bricolage.graph.control_flow import inline_decided
from bricolage.graph.folding_cost import FoldingBudget
from bricolage.graph.graph import Graph, bodies, describe
from bricolage.graph.impossible_branches import Branch, has_branches, impossible_branches, open_sizes
from bricolage.graph.inference import correct_stated, infer, write_inferable
from bricolage.graph.model_interface import give_own_outputs, interface, settle_defaults
from bricolage.graph.shape_checks import check_shapes
from bricolage.graph.symbolic_shapes import settle

_LOG = logging.getLogger(__name__)
_ROUNDS = 8
_BEFORE_CARRIED = 2
"""Inputs of a Loop's body before those that it carries: the number of the round, and the condition."""


def symbolic_dimensions(model: ir.Model) -> dict[str, list[str]]:
    """Names of the symbolic dimensions, each with the inputs that have it. A nameless one gets `input.axis`. Inputs with a default
    have the sizes of it, or of what overrides it."""
    dimensions: dict[str, list[str]] = {}
    for value in model.graph.inputs:
        if not _has_shape(model, value):
            continue
        assert value.shape is not None
        for axis, dimension in enumerate(value.shape):
            if not isinstance(dimension, int):
                dimensions.setdefault(dimension_name(value, axis), []).append(value.name or "")
    return dimensions


def _has_shape(model: ir.Model, value: ir.Value) -> bool:
    """Whether an input is a tensor with a shape; that of a sequence is its elements', which may differ."""
    is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
    return is_tensor and value.shape is not None and value.name not in interface(model).defaults


def dimension_name(value: ir.Value, axis: int) -> str:
    """Name under which the user binds a symbolic dimension of an input."""
    assert value.shape is not None
    dimension = value.shape[axis]
    return str(dimension.value) if isinstance(dimension, ir.SymbolicDim) and dimension.value else f"{value.name}.{axis}"


def unbound(
    missing: Mapping[str, Sequence[str]], proposals: Mapping[str, int] | None = None, reasons: Sequence[str] = ()
) -> UnboundDimension:
    """The error that asks for sizes of dimensions, all at once.

    Args:
        missing: their names, each with the inputs that have it.
        proposals: sizes of some of them.
        reasons: of the proposals.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, readers in missing.items():
        groups.setdefault(tuple(dict.fromkeys(readers)), []).append(name)
    listed = []
    for readers, names in groups.items():
        others = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
        listed.append(f"{quote_names(names)} of input '{readers[0]}'{others}")
    sizes = {name: str((proposals or {}).get(name, "SIZE")) for name in missing}
    return UnboundDimension(
        dimensions=", ".join(listed),
        flags=" ".join(f"--shape {shlex.quote(f'{name}={size}')}" for name, size in sizes.items()),
        python=f"{{{', '.join(f'{name!r}: {size}' for name, size in sizes.items())}}}",
        why=f" ({'; '.join(reasons)})" if reasons else "",
    )


def quote_names(names: Sequence[str]) -> str:
    """`'a', 'b' and 'c'`."""
    *most, last = [f"'{name}'" for name in names]
    return f"{', '.join(most)} and {last}" if most else last


def shape_buckets(shapes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Bindings of all dimensions: sizes are paired by position, and a dimension with a single size keeps it.

    Raises:
        BadOption: two dimensions have different numbers of sizes (other than one).
    """
    count = max((len(sizes) for sizes in shapes.values()), default=1)
    for name, sizes in shapes.items():
        if len(sizes) not in (1, count):
            raise BadOption(
                option="--shape",
                value=f"{name}={','.join(map(str, sizes))}",
                advice=f"Give each dimension one size, or {count} as another one has: the n-th of each are taken together",
            )
    return [{name: sizes[i if len(sizes) > 1 else 0] for name, sizes in shapes.items()} for i in range(count)]


def prepare(model: ir.Model, sizes: Mapping[str, int], overridden: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The graph of `model` with its symbolic dimensions bound to `sizes`, folded and inferred. A copy: `model` is not changed.
    Inputs with a default are weights there, but those that are `overridden`, whose shapes these are.

    Raises:
        UnboundDimension, UnknownDimension: as `bind`.
        InvalidGraph: an operator cannot be computed as it stands.
        TooLarge: a tensor does not fit into this machine's memory.
    """
    bound = bind(model, sizes, overridden)
    _check_memory(bound.graph.inputs)
    believed = correct_stated(bound)
    graph = simplify(bound)
    if believed and correct_stated(bound):  # more follows from what is folded
        graph = Graph(bound)
    check_shapes(bound)
    _check_memory(value for operator in graph.operators for value in operator.outputs)
    return graph


def prepare_for_call(
    model: ir.Model, sizes: Mapping[str, int], overridden: Mapping[str, Sequence[int]] | None = None
) -> Graph:
    """As `prepare`, for sizes that inputs have.

    Raises:
        UnfitInputs: an operator cannot be computed at these sizes: the inputs do not fit each other, or the model.
    """
    try:
        return prepare(model, sizes, overridden)
    except InvalidGraph as error:
        if not sizes and not overridden:
            raise
        at = f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""
        raise UnfitInputs(sizes=at, reason=error.facts["reason"]) from error


def _check_memory(values: Iterable[ir.Value]) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for value in values:
        info = describe(value)
        if info.bytes > memory:
            raise TooLarge(
                what=f"tensor '{info.name}'",
                reason=f"its shape {list(info.sizes)} takes {info.bytes / 1e9:.3g} GB, and this machine has {memory / 1e9:.3g}",
                advice="Choose smaller sizes, or a machine with more memory",
            )


def bind(model: ir.Model, sizes: Mapping[str, int], overridden: Mapping[str, Sequence[int]] | None = None) -> ir.Model:
    """A copy of `model` whose inputs have `sizes` for their symbolic dimensions. Shapes in between that were symbolic are gone.
    `overridden`: as for `prepare`.

    Raises:
        UnboundDimension: symbolic dimensions of inputs are not in `sizes`; all of them are named.
        UnknownDimension: `sizes` names a dimension that the model does not have.
    """
    dimensions = symbolic_dimensions(model)
    missing = {name: readers for name, readers in dimensions.items() if name not in sizes}
    for name in sizes:
        if name not in dimensions:
            raise UnknownDimension(dimension=name, known=", ".join(dimensions) or "none, all its shapes are fixed")
    if missing:
        raise unbound(missing)
    bound = model.clone()
    settle_defaults(bound, overridden or {})
    for value in bound.graph.inputs:
        if not _has_shape(bound, value):
            continue
        assert value.shape is not None
        shape: list[int] = []
        for axis, dimension in enumerate(value.shape):
            shape.append(dimension if isinstance(dimension, int) else sizes[dimension_name(value, axis)])
        value.shape = ir.Shape(shape)
    _forget_shapes(bound)
    return bound


def simplify(model: ir.Model) -> Graph:
    """Changes `model` in place: lifts constants, infers, folds, takes branches that are decided, to a fix-point, and drops what is
    unused. In branches that cannot be computed then (`graph.impossible_branches`), sizes are open.

    Returns:
        The operators of `model` itself, numbered; further changes of `model` make this graph invalid.
    """
    opened = set[Branch]()
    while has_branches(model):
        untouched = model.clone()
        _simplify(model)
        impossible = impossible_branches(model)
        if impossible.keys() <= opened:
            return Graph(model)
        for branch in sorted(impossible.keys() - opened, key=str):
            _LOG.info("a branch of '%s' cannot be computed at these sizes: %s", branch.operator, impossible[branch])
            open_sizes(untouched, branch)
        opened |= impossible.keys()
        model.graph = untouched.graph
    _simplify(model)
    return Graph(model)


def _simplify(model: ir.Model) -> None:
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    bring_inside(model)
    infer(model)
    budget = FoldingBudget()
    rounds = _ROUNDS
    while rounds:
        folded, decided = fold(model, budget), inline_decided(model)
        if not folded and not decided:
            break
        rounds -= not decided  # of operators that decide there is an end
        bring_inside(model)
        infer(model)
    give_own_outputs(model)
    ends = [(values, [value.name for value in values]) for values in (model.graph.outputs, model.graph.inputs)]
    _eliminate_identities(model)
    OutputFixPass()(model)
    for values, names in ends:
        _keep_names(values, names)
    RemoveUnusedNodesPass()(model)
    DeduplicateInitializersPass(size_limit=1024)(model)
    infer(model)
    if settle(model):
        infer(model)
    write_inferable(model)


def _eliminate_identities(model: ir.Model) -> None:
    """Removes Identity operators, in place, but those by which a graph hands out what it does not compute itself: an input, a
    constant, or in a body of control flow a value from around it."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        source = node.inputs[0] if node.op_type == "Identity" and not node.domain and len(node.inputs) == 1 else None
        if source is None:
            continue
        (result,) = node.outputs
        producer = source.producer()
        leaves = result.is_graph_output()
        if leaves and (producer is None or producer.graph is not node.graph):
            continue
        if source.shape is None or (result.shape is not None and result.shape.is_static()):
            source.shape = result.shape if result.shape is not None else source.shape
        source.type = source.type or result.type
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        if leaves:
            source.name = result.name
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _keep_names(values: Iterable[ir.Value], names: Sequence[str | None]) -> None:
    """Gives outputs, or inputs, their names back, which passes lose where one output is another one's Identity, or an input's."""
    changed = [(value, name) for value, name in zip(values, names, strict=True) if value.name != name]
    for number, (value, _) in enumerate(changed):
        value.name = f"{value.name}.renamed.{number}"
    for value, name in changed:
        value.name = name


def _forget_shapes(model: ir.Model) -> None:
    """Drops recorded sizes that were symbolic: they were written for any size and would now hide the bound ones. Of outputs the
    rank stays, as of what a Loop hands from one round to the next, which may have other sizes in each, whatever its body says."""
    outputs = set(model.graph.outputs)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            if value not in outputs and not _is_fixed(value):
                value.shape = None
        for body in bodies(node):
            for number, value in enumerate(body.inputs):
                if node.op_type == "Loop" and number >= _BEFORE_CARRIED and value.shape is not None:
                    value.shape = ir.Shape([None] * len(value.shape))
                elif not _is_fixed(value):
                    value.shape = _of_rank(value)
    for value in outputs:
        if not _is_fixed(value):
            value.shape = _of_rank(value)


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is None or all(isinstance(dimension, int) for dimension in value.shape)


def _of_rank(value: ir.Value) -> ir.Shape:
    return ir.Shape([size if isinstance(size, int) else None for size in value.shape or ()])
