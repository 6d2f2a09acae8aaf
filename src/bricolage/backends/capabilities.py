"""What each built-in engine may claim, from its committed capability table.

`capabilities/<backend>.json` holds the outcome of the ONNX backend test suite on one version of the backend (made by
`python -m benchmarks.capabilities`). An outcome belongs to an operator type, a version class (all opsets with the same
definition of the operator), a type key and a form. An operator is accepted when cases like it passed and it has none of the
features that told the wrong cases from the right ones; all of these: `operator_features`.

A table holds for the version that it was made on. On another version only those kinds of operators are accepted that the
table vouches for and that passed a self-check on the installed version (`measure.selfcheck`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bricolage.backends.interface import Backend, Claim, Growth, OperatorKind, Pattern, SelfCheck, any_operator, op
from bricolage.backends.operator_features import operator_features, operator_kind, operator_type_key, type_key
from bricolage.backends.quarantine import QuarantineEntry, entries
from bricolage.graph.graph import Graph, Operator, bodies, with_bodies
from bricolage.graph.operator_kinds import operator_types

FOLDER = Path(__file__).parent / "capabilities"
EVERYTHING = "*"
"""In `CapabilityTable.avoid`: no feature tells wrong cases from right ones, so nothing of that kind is claimed."""
BOTH = " & "
"""In `CapabilityTable.avoid`: joins features that are harmful together only."""
CONTRIB = "com.microsoft"
_OWN: Mapping[str, frozenset[tuple[str, str]]] = {
    "native": frozenset(
        [
            (f"{CONTRIB}::MatMulNBits", "float32"),
            ("DequantizeLinear", "int4>float32"),
            ("DequantizeLinear", "uint4>float32"),
        ]
    )
}
"""Operators with their type keys of which the suite has no case as models use them (weights of 4 bits that are known): the backend
itself says which it declines, and its tests answer for the others."""
_ANCHORS = "Conv|ConvTranspose|MatMul|Gemm|Attention|LSTM|GRU|RNN|QLinearConv|QLinearMatMul|MatMulInteger|ConvInteger"
_EPILOGUE_WORDS = (
    "Abs Add BatchNormalization Cast Ceil Celu Clip DequantizeLinear Div Elu Erf Exp Floor Gelu "
    "GroupNormalization HardSigmoid HardSwish InstanceNormalization LayerNormalization LeakyRelu Log "
    "LogSoftmax Max Min Mish Mul Neg PRelu Pow QuantizeLinear RMSNormalization Reciprocal Relu Round Selu "
    "Sigmoid Sign Softmax Softplus Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu Where"
)
_EPILOGUE = frozenset(_EPILOGUE_WORDS.split())
_PREFIX_LIMIT = 12
_CONTROL = frozenset(operator_types("control"))


@dataclass(frozen=True)
class CapabilityTable:
    """One backend's capability table. Operators of other domains than ONNX's are keyed `domain::type`."""

    backend: str
    version: str
    """Version of the backend that it was made on (`Backend.table_version`)."""
    onnx: str
    """Version of onnx whose test suite it was made with."""
    opset: int
    """Highest opset that the backend loads."""
    made: str = ""
    """The day on which it was made, as ISO 8601 has it; of one made in parts, that of its oldest part."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Single-operator cases by outcome: passes, refuses, wrong, crashes, times-out."""
    models: Mapping[str, int] = field(default_factory=dict)
    """Cases of several operators by outcome; they decide nothing."""
    restriction: Mapping[str, Any] = field(default_factory=dict)
    """What was left out when the table was made."""
    lowerings: Mapping[str, str] = field(default_factory=dict)
    """Files of ours that say what the backend is given for an operator, with their digests when the table was made."""
    outcomes: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """Operator → version class → type key → counts, for example `passes 5, refuses 1`."""
    avoid: Mapping[str, Mapping[str, Mapping[str, list[str]]]] = field(default_factory=dict)
    """Operator → version class → type key → features, or combinations of features, that only harmful cases had."""
    reasons: Mapping[str, list[str]] = field(default_factory=dict)
    """Operator → short reasons of what did not pass."""


@cache
def committed_table(backend: str) -> CapabilityTable | None:
    """The committed table of a backend; None when there is none."""
    path = FOLDER / f"{backend}.json"
    return CapabilityTable(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


@cache
def table_digest(backend: str) -> str:
    """Short hash of a backend's committed table; what a self-check found holds for this table only."""
    return hashlib.sha256((FOLDER / f"{backend}.json").read_bytes()).hexdigest()[:12]


def is_current(backend: Backend) -> bool:
    """Whether the table of a backend was made on the version that is installed (or none is, so that nothing speaks
    against it)."""
    table, installed = committed_table(backend.name), backend.table_version()
    return table is None or installed is None or installed == table.version


def command(found: CapabilityTable) -> str:
    """The command, in a checkout of the sources, that makes a table again with the same restrictions."""
    words = ["python -m benchmarks.capabilities --backend", found.backend, "--docs"]
    for name, value in found.restriction.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(words)


Rule = Callable[[Graph, Operator], "str | None"]
"""None to accept an operator, or the reason against it."""


def accepts(backend: str, self_check: SelfCheck | None = None) -> Rule:
    """The rule of a built-in engine: None for an operator that the table vouches for, and the self-check where one is
    given, or the reason against it."""

    def check(graph: Graph, operator: Operator) -> str | None:
        return _check(backend, self_check, operator.node, graph.opsets)

    return check


def list_needed_kinds(backend: str, graph: Graph) -> dict[OperatorKind, set[frozenset[str]]]:
    """The kinds of operators in a graph, bodies included, that the table of a backend vouches for, each with the features
    of the operators. Those of `com.microsoft`, for which there are no cases, are left out."""
    kinds: dict[OperatorKind, set[frozenset[str]]] = {}
    for operator in graph.operators:
        for node in _computing(operator.node):
            opset = graph.opsets.get(node.domain, 1)
            kind = _tested_kind(committed_table(backend), node, opset)
            if kind is not None and node.domain != CONTRIB and _check(backend, None, node, graph.opsets) is None:
                kinds.setdefault(kind, set()).add(operator_features(node, opset))
    return kinds


def _tested_kind(found: CapabilityTable | None, node: ir.Node, opset: int) -> OperatorKind | None:
    """What outcomes for an operator are filed under. Control flow hands values on whatever their type: one that no case has
    counts as the types that were tested, where all of them passed. (The suite's loops of newer opsets are of sequences.)"""
    kind = operator_kind(node, opset)
    if kind is None or found is None or kind[0] not in _CONTROL:
        return kind
    tested = found.outcomes.get(kind[0], {}).get(kind[1], {})
    if kind[2] in tested or not all(outcome.startswith("passes") for outcome in tested.values()):
        return kind
    return kind[0], kind[1], min(tested, default=kind[2])


def _computing(node: ir.Node) -> Iterator[ir.Node]:
    """It and what is in its bodies, constants left out."""
    return (inner for inner in with_bodies(node) if inner.op_type != "Constant" or inner.domain)


def _check(backend: str, self_check: SelfCheck | None, node: ir.Node, opsets: Mapping[str, int]) -> str | None:
    opset = opsets.get(node.domain, 1)
    table = committed_table(backend)
    if table is None:
        return f"{backend} has no capability table"
    if (operator_type_key(node), type_key(node)) in _OWN.get(backend, ()):
        return None
    if node.domain == CONTRIB:
        return None if backend == "onnxruntime" else f"{node.op_type} belongs to {CONTRIB}"
    sought = _tested_kind(table, node, opset)
    if sought is None:
        return f"{operator_type_key(node)} is a custom operator"
    if not node.domain and opset > table.opset:
        return f"{backend} {table.version} reads opsets up to {table.opset}"
    name, version, kind = sought
    outcome = table.outcomes.get(name, {}).get(version, {}).get(kind)
    if outcome is None:
        return f"{name}-{version} was not tested at {kind}"
    if not outcome.startswith("passes"):
        return f"{name}-{version} at {kind}: {outcome}"
    met = find_avoided(table, sought, operator_features(node, opset))
    if met is not None:
        return f"{name}-{version} at {kind} was wrong or crashed" + ("" if met == EVERYTHING else f" where {met}")
    if self_check is not None and (reason := self_check.get(sought, "not part of the self-check")):
        return f"{name}-{version} at {kind}: {reason}"
    return _check_bodies(backend, self_check, node, opsets)


def find_avoided(found: CapabilityTable, kind: OperatorKind, own: frozenset[str]) -> str | None:
    """The feature, or combination of features, for which a table declines an operator of that kind; None if none is met."""
    name, version, types = kind
    groups = found.avoid.get(name, {}).get(version, {}).get(types, ())
    return next((group for group in groups if group == EVERYTHING or own.issuperset(group.split(BOTH))), None)


def _check_bodies(backend: str, self_check: SelfCheck | None, node: ir.Node, opsets: Mapping[str, int]) -> str | None:
    for body in bodies(node):
        for inner in body:
            if inner.op_type == "Constant" and not inner.domain:
                continue
            reason = _check(backend, self_check, inner, opsets)
            if reason is not None:
                return f"in its body, {reason}"
    return None


def _make_vouching_rule(backend: Backend) -> Rule:
    """What may be claimed on the installed version."""
    table = committed_table(backend.name)
    if table is None or is_current(backend):
        return accepts(backend.name)
    if backend.self_check is not None:
        return accepts(backend.name, backend.self_check)
    reason = f"its capability table is of {table.version}, {backend.table_version()} is installed and was not checked"
    return lambda _graph, _operator: reason


def explain_quarantine(backend: Backend, graph: Graph) -> str | None:
    """Why a graph must not be given to a backend whatever it makes of it here: an operator is in quarantine. None where none is."""
    kept = entries(backend.name, backend.table_version())
    reasons = (_find_quarantine_reason(kept, graph, operator) for operator in graph.operators) if kept else ()
    return next((reason for reason in reasons if reason is not None), None)


def _find_quarantine_reason(kept: Sequence[QuarantineEntry], graph: Graph, operator: Operator) -> str | None:
    """Why an operator, or one in its bodies, is in quarantine; None where none is."""
    met = _match_entries([entry for entry in kept if not entry.without], operator.node, graph.opsets)
    return next((entry.reason for entry in met), None)


def _match_entries(
    kept: Sequence[QuarantineEntry], root: ir.Node, opsets: Mapping[str, int]
) -> Iterator[QuarantineEntry]:
    """Entries about an operator, or one in its bodies."""
    for node in _computing(root) if kept else ():
        name, types, features = (
            operator_type_key(node),
            type_key(node),
            operator_features(node, opsets.get(node.domain, 1)),
        )
        yield from (entry for entry in kept if entry.meets(node, name, types, features))


def switched_off(backend: Backend, model: ir.Model) -> list[str]:
    """Optimisations of a backend that are in quarantine for an operator of a region, as the backend names them."""
    kept = [entry for entry in entries(backend.name, backend.table_version()) if entry.without]
    names = {
        name
        for node in model.graph
        for entry in _match_entries(kept, node, model.opset_imports)
        for name in entry.without
    }
    return sorted(names)


def engine_claims(
    backend: Backend, declines: Rule | None = None, fuses: Mapping[str, Sequence[tuple[Pattern, ...]]] | None = None
) -> list[Claim]:
    """What an engine claims: every accepted operator; anchors grown by the element-wise and normalising operators
    behind them; what it is known to compute as one, by name (`fuses`: the roots of each region); and the largest regions in
    which every operator is accepted. `declines` gives a reason against an operator that the table vouches for on the
    values it was tested with.

    On another version than the table's, operators are accepted that its self-check (`Backend.self_check`) has passed;
    without one, none. What is in quarantine (`backends.quarantine`) is never claimed."""
    vouched = _make_vouching_rule(backend)
    kept = entries(backend.name, backend.table_version())

    def check(graph: Graph, operator: Operator) -> str | None:
        refusal = declines(graph, operator) if declines else None
        return refusal or (_find_quarantine_reason(kept, graph, operator) if kept else None) or vouched(graph, operator)

    def constraint(graph: Graph, operators: tuple[Operator, ...]) -> str | None:
        return next((reason for operator in operators if (reason := check(graph, operator)) is not None), None)

    def epilogue(graph: Graph, operator: Operator) -> str | None:
        if operator.domain or operator.op_type not in _EPILOGUE:
            return f"{operator.op_type} is not fused behind an anchor"
        return check(graph, operator)

    return [
        Claim("operator", any_operator(), constraint, Growth(check, limit=1, maximal=True)),
        Claim("anchor", op(_ANCHORS), constraint, Growth(epilogue, limit=_PREFIX_LIMIT)),
        *(Claim(name, roots, constraint) for name, several in (fuses or {}).items() for roots in several),
    ]
