"""Constant folding: operators whose inputs are all known are computed now, by the ONNX reference implementation."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bricolage.graph.folding_cost import FoldingBudget, folding_steps
from bricolage.graph.graph import bodies, describe
from bricolage.graph.operator_kinds import RANDOM

_LOG = logging.getLogger(__name__)


def fold(model: ir.Model, budget: FoldingBudget | None = None) -> bool:
    """Replaces operators whose inputs are constants, and shapes of static tensors, by initializers, in place: equal operators on
    the same constants by the same ones. True if any. What takes more than is left of `budget` stays. In bodies of control flow,
    operators on constants are folded, too."""
    budget = budget if budget is not None else FoldingBudget()
    changed = False
    done: dict[Hashable, list[ir.Value | None]] = {}
    for graph in list(model.graphs()):
        outputs = set(graph.outputs)
        for node in list(graph):
            if any(value in outputs for value in node.outputs):
                continue  # an output keeps its producer; there is nothing to gain behind it
            if node.op_type == "DequantizeLinear":
                continue  # weights stored as integers are multiplied as integers, and take a quarter of the memory or less
            what = _identity(node)
            constants = done.get(what)
            if constants is None:
                results = _shape_value(node) or evaluate_constant(node, model.graph.opset_imports, budget)
                if results is None:
                    continue
                constants = []
                for value, result in zip(node.outputs, results, strict=False):
                    constants.append(constant_value(value.name, result) if value.name else None)
            for value, constant in zip(node.outputs, constants, strict=False):
                if constant is None:
                    continue
                value.replace_all_uses_with(constant)
                value.name = f"{value.name}.folded"
                if what not in done:
                    model.graph.register_initializer(constant)
            if what is not None:
                done[what] = constants
            graph.remove(node, safe=True)
            changed = True
    RemoveUnusedNodesPass()(model)
    return changed


def _identity(node: ir.Node) -> Hashable:
    """Equal for operators that give the same results; None where that is not to be seen."""
    if not all(attribute.type in _SIMPLE for attribute in node.attributes.values()):
        return None
    attributes = tuple(sorted((name, str(attribute.value)) for name, attribute in node.attributes.items()))
    return node.domain, node.op_type, tuple(node.inputs), attributes, tuple(bool(value.name) for value in node.outputs)


_SIMPLE = {
    ir.AttributeType.INT,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOAT,
    ir.AttributeType.FLOATS,
    ir.AttributeType.STRING,
    ir.AttributeType.STRINGS,
}


def constant_value(name: str, array: np.ndarray) -> ir.Value:
    """A value that is known, ready to be registered as an initializer."""
    tensor = ir.tensor(np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array), name=name)
    return ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )


def constant_elements(value: ir.Value) -> np.ndarray | None:
    """The elements of a constant; None for anything that is computed or given at run time."""
    return value.const_value.numpy() if is_known(value) and value.const_value is not None else None


def is_known(value: ir.Value) -> bool:
    """Whether the value is a constant: a weight, not something computed or given at run time."""
    return value.const_value is not None and value.producer() is None and not value.is_graph_input()


def _shape_value(node: ir.Node) -> list[np.ndarray] | None:
    """Result of Shape or Size on a tensor of known shape."""
    if node.domain or node.op_type not in ("Shape", "Size") or node.inputs[0] is None:
        return None
    info = describe(node.inputs[0])
    if info.shape is None or not all(isinstance(dimension, int) for dimension in info.shape):
        return None
    sizes = np.asarray(info.shape, dtype=np.int64)
    if node.op_type == "Size":
        return [np.asarray(sizes.prod(), dtype=np.int64)]
    start = node.attributes.get_int("start", 0)
    end = node.attributes["end"].as_int() if "end" in node.attributes else len(sizes)
    return [sizes[start:end]]


def evaluate_constant(
    node: ir.Node, opsets: Mapping[str, int], budget: FoldingBudget | None = None
) -> list[np.ndarray] | None:
    """Result of an operator whose inputs are all constants, by the ONNX reference implementation. None where it cannot
    be folded: an input is not known, the answer is random, too large or takes too long, the reference lacks the operator or gives
    another shape than the model states. The steps that it takes are taken from `budget`."""
    from onnx.reference import ReferenceEvaluator

    from bricolage.graph.reference_operators import CORRECTED

    if node.domain or node.op_type in RANDOM or not node.inputs:
        return None
    if bodies(node):
        return None
    constants: dict[str, np.ndarray] = {}
    for value in node.inputs:
        if value is None:
            continue
        array = constant_elements(value)
        if array is None:
            return None
        constants[value.name or ""] = array
    steps = folding_steps(node, [None if value is None else constants[value.name or ""] for value in node.inputs])
    if steps is None or (budget is not None and steps > budget.steps):
        _LOG.debug("not folded: %s takes too much", node.name)
        return None
    if budget is not None:
        budget.steps -= steps
    # Every constant is handed over as an input: the proto of a large weight would only be serialised and parsed again.
    function = onnx.helper.make_model(
        onnx.helper.make_graph(
            [ir.serde.serialize_node(node)],
            "fold",
            [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in constants],
            [onnx.helper.make_value_info(value.name, onnx.TypeProto()) for value in node.outputs if value.name],
        ),
        opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()],
    )
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(function, new_ops=list(CORRECTED)).run(None, constants)
    except Exception as error:  # the reference has gaps; an operator that it cannot run simply stays
        _LOG.debug("not folded: %s (%s)", node.name, error)
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    named = iter(results)
    arrays = [np.asarray(next(named)) if value.name else np.empty(0) for value in node.outputs]
    for value, array in zip(node.outputs, arrays, strict=True):
        info = describe(value)
        if value.name and info.static and info.shape != array.shape:
            _LOG.info("not folded: '%s' should be %s and came out as %s", value.name, info.shape, array.shape)
            return None
    return arrays
