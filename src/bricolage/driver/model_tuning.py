"""Tuning a model: kernels of what comes near the fastest are searched, and what was found races with what was not.

The searches are joint with the graph, the layout, the fusion and the backend (`driver.joint_tuning`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.budget import DecisionBudget
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.device.host import select_device
from bricolage.driver.context import DecisionContext, open_context
from bricolage.driver.joint_tuning import Arm, Order, Told, arms, search_arms
from bricolage.driver.sources import GivenModel, PreparedBucket, Source, open_source, working_folder
from bricolage.driver.stage import Runner
from bricolage.driver.stages.graph_variants import RewrittenVariants
from bricolage.driver.stages.profiling import Baselines, Reference
from bricolage.driver.state import DecisionState
from bricolage.errors import NoBackend
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


def tune_model(
    model: GivenModel,
    options: Options,
    tuning: TuningOptions,
    order: Order,
    budget_s: float,
    progress: Progress,
    observe: Told,
) -> Tuned:
    """What was tuned of a model, for each shape bucket in turn, with `budget_s` seconds each. After a Ctrl-C those to come have no
    time. `observe` is called with each implementation whose search went on, and what is found of it by then; the other arguments
    and errors are those of `tune`.
    """
    begun = time.monotonic()
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    implementations: list[TunedImplementation] = []
    interrupted = False
    with scratch.using(working_folder()) as directory:
        opened = open_source(model, options, directory)
        with open_context(options, backends, device, progress) as context:
            for bucket in opened.buckets:
                deadline = Deadline(0.0 if interrupted else budget_s)
                state = _open_state(context, opened, bucket.graph, budget_s)
                implementations += _tune_bucket(state, bucket, tuning, order, deadline, observe)
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
    state: DecisionState, bucket: PreparedBucket, tuning: TuningOptions, order: Order, deadline: Deadline, observe: Told
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
        lambda implementation, seen: _tell(session.progress, observe, implementation, seen),
    )
    session.progress.finish()
    return [_race_arm(arm, bucket.sizes, shares.race_s if deadline.interrupted else deadline.left) for arm in turned]


def _tell(progress: Progress, observe: Told, implementation: Implementation, seen: Snapshot) -> None:
    progress.advance(
        1, f"{implementation.backend} {implementation.config.name} -{seen.saved:.1%}, {seen.trials} trials"
    )
    observe(implementation, seen)


def _race_arm(arm: Arm, sizes: Mapping[str, int], seconds: float) -> TunedImplementation:
    """The race of an implementation with what was found against itself without."""
    variant, implementation, tuned = arm.variant, arm.implementation, arm.tuned
    tuned_implementation = TunedImplementation(dict(sizes), variant.name, tuned, tuple(arm.curve), arm.usual_ms)
    if arm.result is None or arm.result.reason:
        return replace(tuned_implementation, reason="there was no time" if arm.result is None else arm.result.reason)
    if tuned.implementation == implementation:
        return tuned_implementation
    session = variant.session
    shares = session.budget.shares
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
        seconds=min(seconds, shares.tuning.race_s),
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
