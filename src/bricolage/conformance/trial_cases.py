"""Trials: the cases of the suite, varied so that the table covers the models that people have.

The suite tries an operator at its newest version, mostly in float32 and with every input given at run time. A trial is
a case at one *version class* in force from the oldest opset of a prepared model to the newest, in one *form*
(parameters as constants, or as run-time values), and for types that the suite leaves out, re-typed with the reference
implementation's results. Generated cases (`generated`) are added, so that every type of every input that an
operator's definition allows, and every attribute away from its default, has one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from bricolage.backends.operator_features import (
    PARAMETERS,
    RUNTIME,
    operator_features,
    operator_type_key,
    type_key,
    version_class,
)
from bricolage.conformance.expected_outputs import difference, reference_outputs
from bricolage.conformance.generated_cases import generate_cases, without_weights
from bricolage.conformance.retype import TYPES, retype_case
from bricolage.conformance.suite import Case, detach_initializers
from bricolage.graph.operator_kinds import operator_types

OLDEST_OPSET = 18
"""Prepared models have at least this opset."""
_OLDEST_IR = 10
_BASES = 4  # cases that are re-typed for one operator and type
_INVALID = (
    *(onnx.checker.ValidationError, onnx.shape_inference.InferenceError, onnx.defs.SchemaError),
    *(ValueError, LookupError, RuntimeError),
)
"""What onnx's checker raises, with its shape inference: errors of its own, and those of C++."""


@dataclass(frozen=True, eq=False)
class OperatorTrial:
    """One run: a model, its inputs without those made constants, and the outputs expected."""

    name: str
    operator: str
    """Key of the operator type; empty for models of several operators."""
    version: str
    kind: str
    """Type key, with the suffix for run-time parameters."""
    traits: frozenset[str]
    """Features of the operator."""
    model: onnx.ModelProto = field(repr=False)
    inputs: tuple[object, ...] = field(repr=False)
    outputs: tuple[object, ...] = field(repr=False)
    rtol: float
    atol: float
    restamped: bool
    """Whether the model's opset is not the one that the case was written for."""

    def doubtful(self) -> bool:
        """Whether the reference implementation does not give the expected outputs either."""
        if not self.restamped:
            return False
        outputs = reference_outputs(self.model, self.inputs)  # without them nothing speaks against the case
        return outputs is not None and difference(self.outputs, outputs, self.rtol, self.atol) is not None


def trials(
    found: Sequence[Case], *, newest_only: bool = False, types: frozenset[str] | None = None, generated_too: bool = True
) -> list[OperatorTrial]:
    """All trials, models of several operators last; sorted by name within.

    Args:
        newest_only: only the newest version class of each operator.
        types: main element types to try; None tries all.
        generated_too: also the generated cases, in addition to those of the suite and its re-typed ones.
    """
    found = [detach_initializers(case) for case in found]
    singles = [
        case for case in found if case.single and case.model.graph.node[0].op_type not in operator_types("random")
    ]
    operator_trials: list[OperatorTrial] = []
    suite = [*singles, *_retype_singles(singles)]
    for case in (*suite, *generate_cases(suite)) if generated_too else suite:
        for model, restamped in _versions(case.model, newest_only=newest_only):
            operator_trials.extend(_forms(replace(case, model=model), restamped))
    if types is not None:
        operator_trials = [
            trial for trial in operator_trials if trial.kind.removesuffix(RUNTIME).split(">")[0] in types
        ]
    models = [_whole(case) for case in found if not case.single]
    return sorted(operator_trials, key=lambda trial: trial.name) + models


def _retype_singles(singles: Sequence[Case]) -> Iterator[Case]:
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in singles:
        node = case.model.graph.node[0]
        if not node.domain:
            groups[node.op_type].append(case)
    for op_type in sorted(groups):
        native = {_main_kind(case) for case in groups[op_type]}
        bases = [case for case in groups[op_type] if _main_kind(case).split(">")[0] == "float32"] or groups[op_type]
        bases = without_weights(bases)
        step = max(1, len(bases) // _BASES)
        for case in bases[::step][:_BASES]:
            for target in TYPES:
                yield from (
                    retyped_case for retyped_case in retype_case(case, target) if _main_kind(retyped_case) not in native
                )


def _main_kind(case: Case) -> str:
    return type_key(next(iter(ir.from_proto(case.model).graph)))


def _versions(model: onnx.ModelProto, *, newest_only: bool) -> Iterator[tuple[onnx.ModelProto, bool]]:
    """The model at the lowest opset of every version class of its operator that accepts it."""
    node = model.graph.node[0]
    newest = onnx.defs.onnx_opset_version()
    stated_opset = next((o.version for o in model.opset_import if o.domain == node.domain), newest)
    if node.domain:
        yield model, False
        return
    classes = sorted({version_class("", node.op_type, opset) or 0 for opset in range(OLDEST_OPSET, newest + 1)})
    for first in classes[-1:] if newest_only else classes:
        stamped = onnx.ModelProto()
        stamped.CopyFrom(model)
        for opset in stamped.opset_import:
            if not opset.domain:
                opset.version = max(OLDEST_OPSET, first)
        stamped.ir_version = max(_OLDEST_IR, onnx.helper.find_min_ir_version_for(list(stamped.opset_import)))
        if _valid(stamped):
            yield stamped, version_class("", node.op_type, stated_opset) != first


def _valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except _INVALID:
        return False
    node = model.graph.node[0]
    schema = onnx.defs.get_schema(node.op_type, model.opset_import[0].version, node.domain)
    kinds = {info.name: _type_string(info.type) for info in (*model.graph.input, *model.graph.output)}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for position, name in enumerate(names):
            formal = formals[min(position, len(formals) - 1)]
            if kinds.get(name) and kinds[name] not in formal.types:
                return False
    return True


def _type_string(kind: onnx.TypeProto) -> str:
    """Spelling of tensor types in schemas; empty for others."""
    if kind.WhichOneof("value") != "tensor_type":
        return ""
    name = onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()
    return f"tensor({name})"


def _forms(case: Case, restamped: bool) -> Iterator[OperatorTrial]:
    """The case with its parameters as constants and, where that differs, with all inputs given at run time."""
    node = case.model.graph.node[0]
    positions = PARAMETERS.get(node.op_type, ()) if not node.domain else ()
    names = {node.input[i] for i in positions if i < len(node.input)} - {""}
    given = {info.name for info in case.model.graph.input}
    constant = {
        info.name: value
        for info, value in zip(case.model.graph.input, case.inputs, strict=False)
        if info.name in names and isinstance(value, np.ndarray)
    }
    if constant:
        yield _trial(_with_constants(case, constant), "", restamped)
    yield _trial(case, RUNTIME if names & given else "", restamped)


def _with_constants(case: Case, constants: dict[str, np.ndarray]) -> Case:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    pairs = list(zip(case.model.graph.input, case.inputs, strict=False))
    del model.graph.input[:]
    model.graph.input.extend(info for info, _ in pairs if info.name not in constants)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return replace(case, model=model, inputs=tuple(value for info, value in pairs if info.name not in constants))


def _trial(case: Case, form: str, restamped: bool) -> OperatorTrial:
    node = next(iter(ir.from_proto(case.model).graph))
    opset = next((o.version for o in case.model.opset_import if o.domain == node.domain), 1)
    version = str(version_class(node.domain, node.op_type, opset))
    kind = type_key(node) + form
    return OperatorTrial(
        f"{case.name} {version} {kind}",
        operator_type_key(node),
        version=version,
        kind=kind,
        traits=operator_features(node, opset),
        model=case.model,
        inputs=case.inputs,
        outputs=case.outputs,
        rtol=case.rtol,
        atol=case.atol,
        restamped=restamped,
    )


def _whole(case: Case) -> OperatorTrial:
    nothing: frozenset[str] = frozenset()
    return OperatorTrial(
        case.name,
        "",
        version="",
        kind="",
        traits=nothing,
        model=case.model,
        inputs=case.inputs,
        outputs=case.outputs,
        rtol=case.rtol,
        atol=case.atol,
        restamped=False,
    )
