"""What a decision tells of inputs that decide control flow and nothing else: that folding them would help, and how much."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from bricolage.base.deadline import Deadline
from bricolage.driver.constants import fitting, may_be_constant
from bricolage.driver.session import Session
from bricolage.driver.sources import PreparedBucket, Source
from bricolage.driver.timed_variant import TimedVariant
from bricolage.errors import BricolageError
from bricolage.graph.control_values import deciding_inputs
from bricolage.graph.graph import Graph
from bricolage.graph.model_interface import give_defaults
from bricolage.graph.prepare import prepare, symbolic_dimensions
from bricolage.plan.constant_inputs import ConstantGain, words_of
from bricolage.plan.plan import Bucket
from bricolage.plan.planned_interface import default_specs, input_specs
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)
_MOST_ELEMENTS = 16
"""Of a value that is put on a command line."""
_WEIGHTS = "weights-constant.data"
_LIKE_THE_WHOLE = ("reference", "baselines")
"""Stages of a decision that do once for the graph what measuring the folded one takes."""


def suggest_constants(
    session: Session, opened: Source, bucket: PreparedBucket, arrays: Mapping[str, np.ndarray], decided: Bucket
) -> tuple[ConstantGain, ...]:
    """What folding each input would remove that decides control flow and nothing else. Where the user gave its value, the folded
    graph is made. It is timed if what is left of the decision's budget is as long as its reference and its baselines took."""
    gains: list[ConstantGain] = []
    spent_s = sum(decided.record.seconds.values())
    needed_s = sum(decided.record.seconds.get(stage, 0.0) for stage in _LIKE_THE_WHOLE)
    for name, count in deciding_inputs(bucket.graph.model).items():
        value = _read_given_value(opened, name)
        if value is None:
            gains.append(ConstantGain(name, "", count))
            continue
        try:
            graph = _fold_constant(opened, bucket, name, value)
        except BricolageError as error:
            _LOG.info("'%s' is not folded: %s", name, error.sentence)
            continue
        gain = ConstantGain(name, words_of(value), count, (_count(bucket.graph), _count(graph)))
        left_s = session.budget.whole_s - spent_s - needed_s * len(gains)
        if left_s >= needed_s and not decided.record.interrupted:
            rest = {other: array for other, array in arrays.items() if other != name}
            timed = _time_folded(session, opened, graph, gain, rest, _runners(session, decided), Deadline(left_s))
            gain = gain if timed is None else replace(gain, implementation=str(timed[0]), median_ms=timed[1])
        gains.append(gain)
    return tuple(gains)


def _read_given_value(opened: Source, name: str) -> np.ndarray | None:
    """The value that the user gave an input; None where it is none for a command line."""
    spec = next(entry for entry in (*input_specs(opened.model), *default_specs(opened.model)) if entry.name == name)
    if opened.inputs is None or name not in opened.inputs or not may_be_constant(spec):
        return None
    array = fitting(spec, opened.inputs[name])
    return array if array.size <= _MOST_ELEMENTS else None


def _fold_constant(opened: Source, bucket: PreparedBucket, name: str, value: np.ndarray) -> Graph:
    model = opened.model.clone()
    give_defaults(model, {name: ir.tensor(value, name=name)})
    dimensions = symbolic_dimensions(model)
    sizes = {dimension: size for dimension, size in bucket.sizes.items() if dimension in dimensions}
    return prepare(
        model, sizes, {input_name: shape for input_name, shape in bucket.overridden.items() if input_name != name}
    )


def _count(graph: Graph) -> int:
    return sum(1 for _ in graph.model.graph.all_nodes())


def _runners(session: Session, decided: Bucket) -> list[Implementation]:
    """The baselines that were right and compile quickly."""
    slow = {backend.name for backend in session.backends if backend.compiles_slowly}
    right = [
        contestant.implementation
        for contestant in decided.race.contestants
        if contestant.kind == "baseline" and contestant.accepted
    ]
    return [
        implementation for implementation in right if implementation is not None and implementation.backend not in slow
    ]


def _time_folded(
    session: Session,
    opened: Source,
    graph: Graph,
    gain: ConstantGain,
    arrays: Mapping[str, np.ndarray],
    runners: Sequence[Implementation],
    deadline: Deadline,
) -> tuple[Implementation, float] | None:
    """Which of the `runners` is right on the folded graph and runs it fastest, and its time in ms; None where the time is over, or
    nothing is right."""
    options, fastest = session.options, None
    opened.store.share([graph.model], _WEIGHTS, temporary=True)
    oracle = Oracle(
        graph,
        arrays,
        session.store,
        options.bound,
        f"{opened.digest} {gain.name}={gain.value}",
        literal=options.tolerance is not None,
        evaluate=session.evaluate,
        prefix="constant-",
    )
    oracle.without_variations()
    session.progress.start(f"whole model with {gain.name} = {gain.value}", len(runners))
    try:
        with deadline.catching_interrupts():
            variant = TimedVariant.of(GraphVariant("constant", graph), oracle, session)
            offered = {*variant.candidates.whole, *variant.candidates.unclaimed}
            variant.measure_whole([runner for runner in runners if runner in offered], deadline)
            fastest = variant.fastest
    except BricolageError as error:
        _LOG.info("the graph with '%s' folded is not timed: %s", gain.name, error.sentence)
    finally:
        session.progress.finish()
        opened.store.forget(_WEIGHTS)
    return fastest
