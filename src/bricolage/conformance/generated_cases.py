"""More cases than the suite's: the types, and the values of attributes, that operators' definitions allow and no case of it has.

A generated case is one of the suite's, or one of `bases` where the suite has none, with the types of one or several of its inputs
replaced or with one attribute away from its default. What comes of it is what the reference implementation says; what that
cannot compute, or the checker does not accept, is no case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx

from bricolage.conformance.retype import EVERY_TYPE, compute_expected, restate, retype_case, schema_of, type_variables
from bricolage.conformance.suite import Case

_BASES = 3
"""Cases of one operator that are varied, those in float32 first."""
_STEP = 0.5
Types = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Operator type, and the element types of what it reads and makes; 0 for what is no tensor."""


def types_of(case: Case) -> Types:
    """What a case of one operator says something about."""
    node = case.model.graph.node[0]
    kinds = {tensor.name: tensor.data_type for tensor in case.model.graph.initializer}
    for info in (*case.model.graph.input, *case.model.graph.output):
        kinds[info.name] = info.type.tensor_type.elem_type
    return (
        f"{node.domain}::{node.op_type}",
        tuple(kinds.get(name, 0) for name in node.input),
        tuple(kinds.get(name, 0) for name in node.output),
    )


def generate_cases(given: Sequence[Case]) -> Iterator[Case]:
    """Cases of the operators of the `given` ones, each of one operator, with types or values of attributes that these have not.
    They are the same for the same cases."""
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in given:
        node = case.model.graph.node[0]
        groups[node.domain, node.op_type].append(case)
    for key in sorted(groups):
        tried = {types_of(case) for case in groups[key]}
        bases = _spread(groups[key])
        for case in bases:
            yield from (kind for kind in _in_other_types(case, several=case is bases[0]) if types_of(kind) not in tried)
        yield from _away(bases[0], groups[key])


def without_weights(cases: Sequence[Case]) -> list[Case]:
    """Those of the cases whose models hold no weights, from which both forms can be made; all, where each holds some."""
    return [case for case in cases if not case.model.graph.initializer] or list(cases)


def _spread(cases: Sequence[Case]) -> list[Case]:
    plain = [case for case in cases if onnx.TensorProto.FLOAT in types_of(case)[1]] or list(cases)
    plain = without_weights(plain)
    return plain[:: max(1, len(plain) // _BASES)][:_BASES]


def _in_other_types(case: Case, *, several: bool) -> Iterator[Case]:
    """The case with each type of its inputs replaced alone, and with all that are of the main one's replaced together. `several`:
    in all types of results where an operator converts, otherwise in one."""
    names = type_variables(case)
    if not names:
        return
    given = dict(zip(_variables_of_inputs(case), types_of(case)[1], strict=False))
    alike = {name for name in names if given.get(name) == given.get(names[0])}
    choices = [frozenset({name}) for name in names] + ([frozenset(alike)] if len(alike) > 1 else [])
    results = EVERY_TYPE if several else EVERY_TYPE[:1]
    for which in choices:
        for target in EVERY_TYPE:
            yield from retype_case(case, target, which, results)


def _variables_of_inputs(case: Case) -> list[str]:
    schema = schema_of(case)
    assert schema is not None
    last = len(schema.inputs) - 1
    return [schema.inputs[min(i, last)].type_str for i in range(len(case.model.graph.node[0].input))]


def _away(case: Case, others: Sequence[Case]) -> Iterator[Case]:
    """The case with one attribute away from its default, for each attribute that all `others` leave as it is."""
    schema = schema_of(case)
    if schema is None:
        return
    set_already = {attribute.name for other in others for attribute in other.model.graph.node[0].attribute}
    for name, attribute in sorted(schema.attributes.items()):
        if name in set_already or not attribute.default_value.type:
            continue
        default = onnx.helper.get_attribute_value(attribute.default_value)
        value: object
        if isinstance(default, int):
            value = 1 - default if default in (0, 1) else default + 1
        elif isinstance(default, float):
            value = default + _STEP
        else:
            continue
        changed_case = _recompute_outputs(case, onnx.helper.make_attribute(name, value))
        if changed_case is not None:
            yield replace(changed_case, name=f"{case.name}@{name}={value}")


def _recompute_outputs(case: Case, attribute: onnx.AttributeProto) -> Case | None:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.node[0].attribute.append(attribute)
    if not all(isinstance(value, np.ndarray) for value in (*case.inputs, *case.outputs)):
        return None
    outputs = compute_expected(model, [np.asarray(value) for value in case.inputs], None)
    if outputs is None:
        return None
    restate(model, outputs)
    return replace(case, model=model, outputs=outputs)
