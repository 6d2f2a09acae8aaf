"""What is written is loaded: before an artifact is handed over, a fresh process loads it, runs it and is compared with float64."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bricolage.base import scratch
from bricolage.base.budget import DecisionBudget
from bricolage.base.codec import encode
from bricolage.base.options import Options
from bricolage.costs.database import Database
from bricolage.driver.context import DecisionContext
from bricolage.driver.quantised_variants import QUANTISED_VARIANTS
from bricolage.driver.sources import Source, measuring_inputs
from bricolage.errors import ArtifactFails, BricolageError, NotWritable
from bricolage.graph.extract import graph_of
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from bricolage.measure.artifact_check import ArtifactRun, run_artifact
from bricolage.plan import artifact
from bricolage.plan.plan import Plan
from bricolage.plan.shipped_program import ORIGINAL, whole_region
from bricolage.runtime.programs import ranked_baselines
from bricolage.verify.bound import draws_for, error_limits, rounding_errors
from bricolage.verify.compare import deviation, too_far
from bricolage.verify.inputs import choose_sample
from bricolage.verify.named_arrays import load_limits, load_values
from bricolage.verify.quantised import EXACT_BOUND, accepted_bound, is_quantised
from bricolage.verify.reference import Evaluate
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)
_TRIED = " as an artifact"
_STAGE = "the artifact in a fresh process"
_DRAWS = 2
"""Of inputs for a size that was not planned, until one tells something."""
_REPLACEMENTS = 3
_DRAFT = "draft.bricolage"
"""What is tried lies in the decision's own folder, which a later run removes if this one is killed."""
_RUN_S = 120.0
"""Seconds for loading and one run, without compiling."""


@dataclass(frozen=True, eq=False)
class ArtifactTrial:
    """Inputs of the model, with what float64 makes of them where that is known."""

    where: str
    bucket: int
    planned: bool
    inputs: dict[str, Any] | None
    """None where loading is all."""
    expected: tuple[Any, ...] | None
    limits: tuple[float, ...]
    """For each output the error that is still float32's own."""
    graph: Graph | None = None
    """Where those limits are not known yet: for which they are measured once they matter."""
    bound: float | None = None
    """Of a quantised graph, whose integers are exact whatever the options accept."""


@dataclass(frozen=True)
class TriedArtifacts:
    """Which decisions have been tried as artifacts, and what came of it."""

    database: Database
    keys: Sequence[str]
    """Of the decision for each bucket."""
    held: list[int] = field(default_factory=list)
    """Bytes that the fresh processes held, as they become known."""

    def known(self, bucket: int) -> bool:
        """Whether an artifact of this decision was right."""
        return self.database.get_race(self.keys[bucket] + _TRIED) is not None

    def keep(self, before: Plan, after: Plan) -> None:
        """This artifact was: what took the place of something is the decision from now on."""
        if before.operating_point is None:
            for key, old, new in zip(self.keys, before.buckets, after.buckets, strict=True):
                if new != old:
                    self.database.put_race(key, encode(new))
                self.database.put_race(key + _TRIED, True)

    def forget(self) -> None:
        """No artifact of these decisions is right: they are made afresh."""
        for key in self.keys:
            self.database.put_race(key, None)


def planned_trial(opened: Source, index: int) -> ArtifactTrial:
    """Of a bucket that has just been decided: what its candidates were compared with. It is taken out of the folder, since the next
    bucket has its own."""
    graph = opened.buckets[index].graph
    given, wanted = (opened.store.directory / f"whole-{what}.npz" for what in ("inputs", "expected"))
    where = f"at the sizes {dict(opened.buckets[index].sizes)}" if opened.buckets[index].sizes else "on its inputs"
    if not (given.exists() and wanted.exists()):
        return ArtifactTrial(where, index, True, None, None, ())
    names = [info.name for info in graph.outputs]
    expected, limits = load_values(wanted, names), load_limits(wanted, names)
    inputs = load_values(given)
    for path in (given, wanted):
        path.unlink()
    return ArtifactTrial(where, index, True, inputs, tuple(expected[name] for name in names), tuple(limits))


def ship_plan(
    context: DecisionContext,
    opened: Source,
    plan: Plan,
    path: Path,
    trials: Sequence[ArtifactTrial],
    known: TriedArtifacts,
) -> Plan:
    """Writes the artifact of `plan` to `path` once a fresh process that has loaded it gives right answers: on the planned inputs,
    and at another size of each symbolic dimension. What fails is replaced by the fastest baseline that does not; the plan that
    was written says so.

    Raises:
        ArtifactFails: nothing that was accepted gives right answers then. Nothing is written.
        NotWritable: the folder is not writable or the disk is full.
    """
    options, progress = context.options, context.progress
    progress.start(_STAGE)
    budget = DecisionBudget.of(options, len(opened.buckets[0].graph))
    limit_s = budget.compile_limit_s + _RUN_S
    evaluate = context.reference(opened, opened.buckets[0].graph)
    bound = options.bound if options.tolerance is not None else accepted_bound(opened.model, options.bound)
    fresh = [trial for trial in trials if trial.inputs is not None or not known.known(trial.bucket)]
    first = [_with_inputs(opened, trial, options, evaluate) if trial in fresh else trial for trial in trials]
    compared = fresh and not any(bucket.record.interrupted for bucket in plan.buckets)
    tried = [*first, *(_other_sizes(opened, plan, options, budget, evaluate) if compared else ())]
    decided, draft = plan, opened.store.directory / _DRAFT
    try:
        for replacements in range(_REPLACEMENTS + 1):
            artifact.save(plan, opened.store.directory, draft)
            inputs = [trial.inputs for trial in tried]
            runs = run_artifact(context.pool, plan, draft, inputs, opened.store.directory, context.device, limit_s)
            known.held[:] = [run.resident_bytes for run in runs]
            both = zip(tried, runs, strict=True)
            exact = partial(_exactly, opened, plan, evaluate=evaluate)
            judged = (
                (t, run, _too_large(context, run) or _fault(exact(t) or t, run, options, bound, evaluate))
                for t, run in both
            )
            failure = next((entry for entry in judged if entry[2]), None)
            if failure is None:
                break
            trial, run, fault = failure
            better = _replace_guilty(opened, plan, trial, run, fault) if replacements < _REPLACEMENTS else None
            if better is None:
                known.forget()
                raise ArtifactFails(where=trial.where, reason=fault)
            _LOG.warning("%s, %s: another backend takes its place", trial.where, fault)
            plan = better
        with scratch.write_whole(path) as partial_path:
            _copy(draft, partial_path)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error
    finally:
        draft.unlink(missing_ok=True)
        progress.finish()
    known.keep(decided, plan)
    return plan


def _too_large(context: DecisionContext, run: ArtifactRun) -> str:
    """Why a process that ran the artifact holds too much; empty where it does not. One that answers at once may end before anybody
    looked at what it holds."""
    pool = context.pool
    if not pool.limited or run.resident_bytes <= pool.memory_limit:
        return ""
    return f"the process held {run.resident_bytes >> 20} MB; the limit is {pool.memory_limit >> 20} MB"


def _copy(source: Path, target: Path) -> None:
    """The same file under another name where that can be, so that it is there at once and a killed process leaves none behind."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _with_inputs(opened: Source, trial: ArtifactTrial, options: Options, evaluate: Evaluate) -> ArtifactTrial:
    """Of a decision that was known, but whose artifact was never tried: with inputs as it was measured on."""
    if trial.inputs is not None or opened.batch:
        return trial
    graph = opened.buckets[trial.bucket].graph
    inputs, _ = measuring_inputs(opened, graph, options, evaluate)
    outputs = evaluate(graph.model, inputs)
    expected = tuple(outputs[info.name] for info in graph.outputs)
    return replace(trial, inputs=inputs, expected=expected, limits=(0.0,) * len(expected), graph=graph)


def _other_sizes(
    opened: Source, plan: Plan, options: Options, budget: DecisionBudget, evaluate: Evaluate
) -> Iterator[ArtifactTrial]:
    """One for each symbolic dimension of the first bucket that can be another size by itself, as long as there is time."""
    bucket, begun = opened.buckets[0], time.monotonic()
    given_s = budget.other_sizes_s(sum(plan.buckets[0].record.seconds.values()))
    taken = [prepared.sizes for prepared in opened.buckets]
    for number, (name, size) in enumerate(bucket.sizes.items()):
        file = f"sized-{number}.data"
        other = next(n for n in (1, 2, 3, 4) if n != size and {**bucket.sizes, name: n} not in taken)
        sizes = {**bucket.sizes, name: other}
        if time.monotonic() - begun > given_s:
            break
        try:
            graph = prepare(opened.model, sizes, bucket.overridden)
            opened.store.share([graph.model], file, temporary=True)
            sample = choose_sample(graph.model, options.seed, _DRAWS, partial(evaluate, graph.model))
        except BricolageError as error:
            _LOG.info("the artifact is not tried at %s=%d: %s", name, other, error.sentence)
            continue
        expected = tuple(sample.reference[info.name] for info in graph.outputs)
        yield ArtifactTrial(f"at {name}={other}", 0, False, sample.inputs, expected, (0.0,) * len(expected), graph)


def _fault(trial: ArtifactTrial, run: ArtifactRun, options: Options, bound: float, evaluate: Evaluate) -> str:
    """What is wrong with a run; empty where nothing is."""
    if run.failure or trial.expected is None:
        return run.failure
    bound = bound if trial.bound is None else trial.bound
    judged = deviation(run.outputs, trial.expected, trial.limits)
    if judged.excess <= bound:
        return ""
    if trial.graph is not None and trial.inputs is not None and (trial.bound is not None or options.tolerance is None):
        model, names = trial.graph.model, [info.name for info in trial.graph.outputs]
        reference = dict(zip(names, trial.expected, strict=True))
        rounding = rounding_errors(model, trial.inputs, reference, draws_for(trial.graph), evaluate)
        limits = error_limits(rounding, reference, quantised=is_quantised(model))
        judged = deviation(run.outputs, trial.expected, [limits[name] for name in names])
    return "" if judged.excess <= bound else too_far(judged, bound)


def _exactly(opened: Source, plan: Plan, trial: ArtifactTrial, evaluate: Evaluate) -> ArtifactTrial | None:
    """A trial of a quantised graph, as that graph with exact integers answers it; None where none ships."""
    bucket = plan.buckets[trial.bucket]
    if bucket.program.variant not in QUANTISED_VARIANTS or not trial.planned or trial.inputs is None:
        return None
    graph = graph_of(opened.store.directory / bucket.program.graph)
    names = {info.name for info in graph.inputs}
    outputs = evaluate(graph.model, {name: array for name, array in trial.inputs.items() if name in names})
    expected = tuple(outputs[info.name] for info in graph.outputs)
    return replace(trial, expected=expected, limits=(0.0,) * len(expected), graph=graph, bound=EXACT_BOUND)


def _is_narrow(one: Implementation) -> bool:
    return one.config.bfloat16 or one.config.in_bytes


def _replace_guilty(opened: Source, plan: Plan, trial: ArtifactTrial, run: ArtifactRun, fault: str) -> Plan | None:
    """The plan without those that gave the answer; None where no other was accepted, or streams depend on them."""
    if plan.operating_point is not None:
        return None
    bucket, reason = plan.buckets[trial.bucket], f"{trial.where}, {fault}"
    ranked = ranked_baselines(bucket.race.contestants)
    guilty = set(run.backends) or (
        set(bucket.program.backends) if trial.planned else {baseline.backend for baseline in ranked[:1]}
    )
    # What is inaccurate in a narrow arithmetic may be right in the wider ones of the same backend.
    used = [*(region.implementation for region in bucket.program.regions), *(ranked[:1] if not trial.planned else ())]
    narrow = not run.failure and any(
        _is_narrow(implementation) for implementation in used if implementation.backend in guilty
    )
    contestants = tuple(
        replace(contestant, accepted=False, reason=reason)
        if contestant.name == bucket.race.chosen
        or (
            (candidate := contestant.implementation) is not None
            and candidate.backend in guilty
            and (not narrow or _is_narrow(candidate))
        )
        else contestant
        for contestant in bucket.race.contestants
    )
    left = ranked_baselines(contestants)
    if not left:
        return None
    graph = opened.buckets[trial.bucket].graph
    program = replace(
        bucket.program,
        graph=opened.store.graph(graph),
        operators=len(graph),
        regions=(whole_region(left[0], len(graph)),),
        variant=ORIGINAL,
        rules={},
        steps=(),
        rewrite_config=None,
        schedule=None,
        tuned=(),
    )
    other = bucket.race.best_other
    race = replace(
        bucket.race,
        chosen=str(left[0]),
        best_baseline=str(left[0]),
        best_other=other if any(c.name == other and c.accepted for c in contestants) else "",
        contestants=contestants,
        speedup_vs_baseline=1.0,
        speedup_ci=(1.0, 1.0),
        significant=False,
    )
    buckets = list(plan.buckets)
    buckets[trial.bucket] = replace(bucket, program=program, race=race)
    return replace(plan, buckets=tuple(buckets))
