"""`tune`: better kernels than rules of thumb for a model on this machine, kept in the cost database, where decisions find them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.budget import DecisionBudget, choose_seconds
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.device.host import select_device
from bricolage.driver.context import DecisionContext, open_context
from bricolage.driver.joint_tuning import Arm, Order, Told, arms, search_arms
from bricolage.driver.sources import PreparedBucket, Source, open_source, working_folder
from bricolage.driver.stage import Runner
from bricolage.driver.stages.graph_variants import RewrittenVariants
from bricolage.driver.stages.profiling import Baselines, Reference
from bricolage.driver.state import DecisionState
from bricolage.errors import BadOption, NoBackend
from bricolage.graph.graph import Graph
from bricolage.measure.race import race
from bricolage.measure.statistics import Ratio
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.plan.tuned import TunedKernels
from bricolage.rewrite.variants import GraphVariant
from bricolage.tune.kernel_search import Snapshot
from bricolage.tune.kernel_tuner import KernelTuner
from bricolage.tune.tuning_options import TuningOptions
from bricolage.work.implementation import Implementation

_RACE_ROUNDS = 30


@dataclass(frozen=True)
class TunedImplementation:
    """One implementation of the whole model: what was found, and whether the whole is faster with it. Milliseconds."""

    sizes: Mapping[str, int]
    """Of the symbolic dimensions."""
    variant: str
    """Of the graph."""
    tuned: TunedKernels
    curve: tuple[Snapshot, ...]
    before_ms: float | None = None
    """Without what was found; of the race where there was one."""
    after_ms: float | None = None
    gain: Ratio | None = None
    """Of the whole model, by an interleaved race in several processes; None where nothing was found, or nothing raced."""
    reason: str = ""
    """Why nothing was searched, or what was found did not race."""


@dataclass(frozen=True)
class Tuned:
    """What was tuned of a model, the fastest implementations first."""

    model: str
    hardware: str
    versions: Mapping[str, str]
    options: Options
    implementations: tuple[TunedImplementation, ...]
    seconds: float
    interrupted: bool


def tune(
    source: Any,
    options: Options | None = None,
    *,
    tuning: TuningOptions | None = None,
    order: Order = "joint",
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
    told: Told = lambda *_: None,
) -> Tuned:
    """Searches for better kernels of what runs a model fastest, jointly with the graph, the layout, the fusion and the backend
    (`driver.joint_tuning`). Then the best races with what was found against itself without. Decisions for the model find the result
    in the cost database, and for other models what was best for kernels that do the same work.

    Args:
        source, example_inputs, inputs: as for `optimize`.
        options: backends, budget (10 minutes for each set of shapes by default), precision, threads, shapes.
        tuning: technique, rounds, and whether trials of before count.
        order: "joint" searches kernels for several choices of the passes before (graph variant, layout or arithmetic, fusion,
            backend) and drops the worse half again and again; "sequential" only for what is fastest without tuning.

    Raises:
        NoBackend: nothing near the fastest can be tuned.
        BadOption: the budget is too short for a single search, or there is no such technique.
        and as `optimize`.

    Ctrl-C ends the search that runs and the ones to come; trials are kept, and what was found so far is confirmed and raced.
    """
    options, progress, begun = options or Options(), progress or Silent(), time.monotonic()
    options.check_here()
    shares = options.profile.shares.tuning
    seconds = choose_seconds(options, shares.alone_s)
    if seconds < shares.least_s:
        raise BadOption(option="--budget", value=f"{seconds:g}s", advice=f"A search takes {shares.least_s:g}s at least")
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    implementations: list[TunedImplementation] = []
    interrupted = False
    with scratch.using(working_folder()) as directory:
        opened = open_source(source, options, directory, example_inputs=example_inputs, dynamic=None, given=inputs)
        with open_context(options, backends, device, progress) as context:
            for bucket in opened.buckets:
                deadline = Deadline(0.0 if interrupted else seconds)
                state = _open_state(context, opened, bucket.graph, seconds)
                implementations += _tune_bucket(state, bucket, tuning or TuningOptions(), order, deadline, told)
                interrupted |= deadline.interrupted
    if not implementations:
        raise NoBackend(why=" that can be tuned and comes near the fastest")
    return Tuned(
        opened.name,
        str(device),
        {backend.name: registry.version(backend.name) for backend in backends},
        options,
        tuple(implementations),
        time.monotonic() - begun,
        interrupted,
    )


def _open_state(context: DecisionContext, opened: Source, graph: Graph, seconds: float) -> DecisionState:
    """A decision's state, with the reference computed and the whole timed on everything that takes it."""
    budget = DecisionBudget.of(context.options, len(graph)).within(seconds)
    session = context.session(opened, graph, budget=budget)
    arrays, _ = context.inputs(opened, graph, session)
    state = DecisionState(session, [GraphVariant(ORIGINAL, graph)], arrays, opened.digest)
    opening = Deadline(budget.tuning_opening_s)
    Runner([Reference(), Baselines(every=True), RewrittenVariants()]).run(state, opening)
    return state


def _tune_bucket(
    state: DecisionState, bucket: PreparedBucket, tuning: TuningOptions, order: Order, deadline: Deadline, told: Told
) -> list[TunedImplementation]:
    session = state.session
    tuner = KernelTuner(session.measurer, session.device, session.options.threads, tuning)
    shares = session.budget.shares.tuning
    searching = deadline.reserve(min(shares.racing * deadline.left, shares.race_s))
    session.progress.start("other graphs, layouts and fusions")
    tunable_arms = arms(list(state.timed_variants.values()), tuner, searching)
    session.progress.finish()
    if not tunable_arms:
        return []
    session.progress.start("tuning kernels")
    turned = search_arms(
        tunable_arms,
        tuner,
        searching,
        order,
        lambda implementation, seen: _tell(session.progress, told, implementation, seen),
    )
    session.progress.finish()
    return [_race_arm(arm, bucket.sizes, shares.race_s if deadline.interrupted else deadline.left) for arm in turned]


def _tell(progress: Progress, told: Told, one: Implementation, seen: Snapshot) -> None:
    progress.advance(1, f"{one.backend} {one.config.name} -{seen.saved:.1%}, {seen.trials} trials")
    told(one, seen)


def _race_arm(arm: Arm, sizes: Mapping[str, int], seconds: float) -> TunedImplementation:
    """The race of an implementation with what was found against itself without."""
    variant, implementation, tuned = arm.variant, arm.implementation, arm.tuned
    tuned_implementation = TunedImplementation(dict(sizes), variant.name, tuned, tuple(arm.curve), arm.usual_ms)
    if arm.result is None or arm.result.reason:
        return replace(tuned_implementation, reason="there was no time" if arm.result is None else arm.result.reason)
    if tuned.implementation == implementation:
        return tuned_implementation
    session = variant.session
    shares = session.budget.shares.tuning
    inputs, expected, bound = variant.oracle.files(variant.graph.everything)
    specs = {"usual": variant.whole_spec(implementation), "tuned": variant.whole_spec(tuned.implementation)}
    session.progress.start(f"race of {implementation} with and without what was found", _RACE_ROUNDS * len(specs))
    ran = race(
        session.measurer,
        specs,
        inputs,
        expected,
        bound,
        rounds=_RACE_ROUNDS,
        seconds=min(seconds, shares.race_s),
        incumbent="usual",
        progress=lambda name, _: session.progress.advance(1, name),
        processes=session.profile.race_processes,
    )
    session.progress.finish()
    costs = ran.costs
    missing = [f"{name}: {cost.outcome} ({cost.reason})" for name, cost in costs.items() if cost.ms is None]
    if missing or len(costs) < len(specs):
        return replace(tuned_implementation, reason="; ".join(missing) or "there was no time to race")
    return replace(
        tuned_implementation, before_ms=costs["usual"].ms, after_ms=costs["tuned"].ms, gain=ran.ratio("tuned", "usual")
    )
