"""Putting a model into the one form that the rest of the house works on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass, TopologicalSortPass

from bricolage.errors import InvalidGraph, OpsetOutOfReach, UnsupportedOpset
from bricolage.frontends.checks import (
    OLDEST_OPSET,
    check_inferable,
    check_operators,
    check_opsets,
    check_shapes,
    check_strings,
    check_structure,
    check_with_onnx,
    first_line,
    innermost,
    newest_opset,
    strip_weights,
    to_proto,
    versioned_nodes,
)
from bricolage.frontends.model_limits import check_inlined
from bricolage.frontends.upgrade import TARGET, NotUpgradable, upgrade, upgrade_nodes
from bricolage.graph.body_constants import bring_inside
from bricolage.graph.impossible_branches import has_branches, impossible_branches, open_sizes
from bricolage.graph.inference import correct_stated, format_complaint, infer, propagates
from bricolage.graph.model_interface import internalise

Pass: TypeAlias = Callable[[ir.Model], object]
"""Checks a model, or changes it in place."""

_LOG = logging.getLogger(__name__)
_PLACEHOLDERS = frozenset(["", "?", "*", "-1", "none"])
_OLDEST_IR = 8  # initializers need not be inputs, and functions are known
_BIG = 256  # elements of a Constant node's tensor from which on it is an initializer, like every weight


def clean(model: ir.Model) -> ir.Model:
    """Checks `model` and brings it, in place, into the form that bricolage works on: functions inlined, nodes sorted,
    names unique and never empty, opset 18 or later where the operators allow it, inputs and outputs as `graph.model_interface` has
    them inside. Names of graph inputs and outputs stay.

    Raises:
        UnsupportedOpset, UnknownOperator, TrainingOperator, UnsupportedType, InvalidGraph, TooLarge
    """
    for normalise in PASSES:
        normalise(model)
    return model


def _open_impossible(model: ir.Model) -> None:
    """Branches that cannot be computed at any size do not keep runtimes from loading the model either."""
    impossible = impossible_branches(model) if has_branches(model) else {}
    for branch in impossible:
        open_sizes(model, branch)
    if impossible:
        infer(model, _infer_checked)


def forget_stated(model: ir.Model) -> None:
    """Drops the sizes that a clean model states of what its operators make, in place; those that can be inferred stay."""
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    infer(model, _infer_checked)


def raise_opset(model: ir.Model, opset: int) -> None:
    """Brings a clean model to at least `opset`, in place; it computes the same.

    Raises:
        UnsupportedOpset: there is no such opset.
        OpsetOutOfReach: one of its operators has no equal in it.
    """
    if not OLDEST_OPSET <= opset <= newest_opset():
        low, high = OLDEST_OPSET, newest_opset()
        raise UnsupportedOpset(opset=opset, domain="ai.onnx", low=low, high=high)
    try:
        _upgrade(model, opset)
    except NotUpgradable as reason:
        raise OpsetOutOfReach(opset=opset, reason=reason) from reason


def _upgrade_where_possible(model: ir.Model) -> None:
    try:
        _upgrade(model, TARGET)
    except NotUpgradable as reason:
        _LOG.info("the model keeps its opset: %s", reason)


def _upgrade(model: ir.Model, opset: int) -> None:
    if upgrade(model, opset):
        unique_names(model)
        infer(model, _infer_checked)
        _set_ir_version(model)
        check_with_onnx(model)


def _infer_types(model: ir.Model) -> None:
    correct_stated(model, _infer_checked)  # which knows types of sequences, too
    infer(model, _infer_checked)


def _infer_checked(model: ir.Model) -> None:
    """Type and shape inference in place, once. Names must be unique.

    Raises:
        InvalidGraph: inference finds a contradiction.
    """
    proto, propagating = to_proto(strip_weights(model)), propagates(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=False, data_prop=propagating)
    except (onnx.shape_inference.InferenceError, ValueError) as error:  # the second of types that do not exist
        raise InvalidGraph(reason=format_complaint(first_line(error))) from error
    values_by_name = {
        value.name: value
        for graph in ir.from_proto(inferred).graphs()
        for value in (*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs))
    }
    for graph in model.graphs():
        for value in (*graph.outputs, *(value for node in graph for value in node.outputs)):
            inferred_value = values_by_name.get(value.name) if value.name else None
            if inferred_value is not None:
                value.type = inferred_value.type or value.type
                value.shape = inferred_value.shape if inferred_value.shape is not None else value.shape


def unique_names(model: ir.Model) -> None:
    """Gives every value and node a name that no other one of the whole model has, bodies of control flow included.
    The main graph's inputs and outputs keep theirs. An omitted optional output stays nameless."""
    values: dict[str, int] = {}
    nodes: dict[str, int] = {}
    seen: set[ir.Value] = set()

    def name_value(value: ir.Value, fallback: str) -> None:
        if value not in seen:
            seen.add(value)
            fresh = _fresh(value.name or fallback, values)
            if value.name != fresh:
                value.name = fresh

    for value in (*model.graph.inputs, *model.graph.outputs):
        name_value(value, "value")
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            name_value(value, "value")
        for node in graph:
            fresh = _fresh(node.name or node.op_type, nodes)
            if node.name != fresh:
                node.name = fresh
            for value in node.outputs:
                if value.name or value.uses() or value.is_graph_output():
                    name_value(value, node.name or node.op_type)


def _fresh(wanted: str, used: dict[str, int]) -> str:
    """`wanted`, or with the next free number behind it. `used` has all names, each with the last number that it was given."""
    name, count = wanted, used.get(wanted, 1)
    while name in used:
        count += 1
        name = f"{wanted}_{count}"
    used[wanted] = count
    used.setdefault(name, 1)
    return name


def _normalise_domains(model: ir.Model) -> None:
    """`ai.onnx` is another spelling of the default domain. A model without imports speaks opset 1."""
    for imports in (model.graph.opset_imports, *(function.opset_imports for function in model.functions.values())):
        if "ai.onnx" in imports:
            imports[""] = imports.pop("ai.onnx")
    if not model.graph.opset_imports:
        model.graph.opset_imports[""] = 1
    for node, _ in versioned_nodes(model):
        if node.domain == "ai.onnx":
            node.domain = ""


def _sort(model: ir.Model) -> None:
    try:
        TopologicalSortPass()(model)
    except (ValueError, ir.passes.PassError) as error:
        raise InvalidGraph(reason="its nodes form a cycle") from error


def _lift_constants(model: ir.Model) -> None:
    try:
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=_BIG)(model)
    except (ValueError, TypeError, ir.passes.PassError) as error:
        raise InvalidGraph(reason=f"a Constant of it holds no value ({first_line(innermost(error))})") from error


def _inline(model: ir.Model) -> None:
    """Inlines every call of a function of the model. Functions written for another opset are brought to the model's.

    Raises:
        InvalidGraph: functions call each other in a circle, or their opset cannot be reconciled with the model's.
    """
    if not model.functions:
        return
    try:
        _align_opsets(model)
        InlinePass()(model)
    except (NotUpgradable, ValueError, ir.passes.PassError, ir.passes.InvariantError) as error:
        reason = first_line(error.__cause__ or error)
        raise InvalidGraph(reason=f"its functions cannot be inlined: {reason}") from error
    model.functions.clear()


def _align_opsets(model: ir.Model) -> None:
    everywhere: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for domain in {domain for graph in everywhere for domain in graph.opset_imports}:
        versions = {graph.opset_imports[domain] for graph in everywhere if domain in graph.opset_imports}
        if len(versions) == 1:
            continue
        newest = max(versions)
        for graph in everywhere:
            version = graph.opset_imports.get(domain, newest)
            if version != newest and domain == "":
                nodes = list(ir.traversal.RecursiveGraphIterator(graph))
                if version < TARGET and any(a.is_ref() for node in nodes for a in node.attributes.values()):
                    raise NotUpgradable(f"one of opset {version} has attribute parameters; the model uses {newest}")
                upgrade_nodes(nodes, version, newest)
            if domain in graph.opset_imports:
                graph.opset_imports[domain] = newest


def _forget_placeholders(model: ir.Model) -> None:
    """Dimensions that an exporter calls `?` or -1 are unknown, each for itself; a name would make them equal. A type that is
    noted as undefined of a value inside is none: inference finds it."""
    for graph in model.graphs():
        inside = [value for node in graph for value in node.outputs]
        for value in inside:
            if value.dtype == ir.DataType.UNDEFINED:
                value.type = None
        for value in graph.initializers.values():
            if value.dtype == ir.DataType.UNDEFINED and value.const_value is not None:
                value.type = ir.TensorType(value.const_value.dtype)
        for value in (*graph.inputs, *graph.outputs, *inside):
            if value.shape is not None and any(_is_placeholder(dimension) for dimension in value.shape):
                value.shape = ir.Shape([None if _is_placeholder(dimension) else dimension for dimension in value.shape])


def _is_placeholder(dimension: int | ir.SymbolicDim) -> bool:
    if isinstance(dimension, int):
        return dimension == -1
    return dimension.value is not None and dimension.value.strip().lower() in _PLACEHOLDERS


def _prune_imports(model: ir.Model) -> None:
    used = {node.domain for node in ir.traversal.RecursiveGraphIterator(model.graph)} | {""}
    for domain in set(model.graph.opset_imports) - used:
        del model.graph.opset_imports[domain]


def _set_ir_version(model: ir.Model) -> None:
    """To the oldest IR version that the opsets allow, so that every runtime reads what is written."""
    domain_names = {"": "ai.onnx"}
    imports = [
        onnx.helper.make_opsetid(domain_names.get(domain, domain), version)
        for domain, version in model.graph.opset_imports.items()
        if domain in ("", "ai.onnx.ml")
    ]
    model.ir_version = max(_OLDEST_IR, int(onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)))


PASSES: tuple[Pass, ...] = (
    check_strings,
    _forget_placeholders,
    check_shapes,
    _normalise_domains,
    check_opsets,
    check_operators,
    _sort,
    check_structure,
    check_inlined,
    _inline,
    check_inferable,
    internalise,
    unique_names,
    _lift_constants,
    bring_inside,
    _set_ir_version,
    _infer_types,
    _open_impossible,
    check_with_onnx,
    _upgrade_where_possible,
    _prune_imports,
)
"""From a model as it was read to the one form, in this order. Checks change nothing; those of `frontends/checks.py` are here in the
order that they have there."""
