"""Deciding on a model: it is opened, every shape bucket is decided, and the artifact is tried where one is asked for."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.cache import trim
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.device.host import select_device
from bricolage.driver.bucket_decision import decide_bucket, decision_key, make_plan
from bricolage.driver.context import DecisionContext, open_context
from bricolage.driver.shipping import ArtifactTrial, TriedArtifacts, planned_trial, ship_plan
from bricolage.driver.sources import GivenModel, Source, open_source, working_folder
from bricolage.driver.throughput_decision import Decision, decide_throughput
from bricolage.errors import StatedOtherwise
from bricolage.measure.pool import Pool
from bricolage.plan.plan import Bucket, Plan
from bricolage.runtime.executable import Executable

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecisionRequest:
    """What is decided on, and how; `replan` and `provisional` are those of `optimize`."""

    model: GivenModel
    options: Options
    progress: Progress
    pool: Pool | None = None
    """Workers that stay; None: there are own ones, which end with the decision."""
    output: Path | None = None
    """Where the artifact goes."""
    replan: bool = False
    provisional: bool = False


def decide_model(request: DecisionRequest) -> Executable:
    """The fastest verified way to run a model. Sizes that it states and that cannot be are ignored, which is told.

    Raises:
        As `optimize`.
    """
    try:
        plan, directory = _plan_model(request)
    except StatedOtherwise as error:
        _LOG.warning("%s: what the model states of sizes that cannot be inferred is ignored", error.facts["reason"])
        plan, directory = _plan_model(replace(request, model=replace(request.model, believing=False)))
    for path in directory.glob("*.npz"):
        path.unlink(missing_ok=True)  # only measuring needed them
    trim()
    return Executable(plan, directory, temporary=True)


def _plan_model(request: DecisionRequest) -> tuple[Plan, Path]:
    """The plan of a model, and the folder of its graphs and weights."""
    options = request.options
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    directory = working_folder()
    with scratch.using(directory, keep=True):
        begun = time.monotonic()
        opened = open_source(request.model, options, directory)
        with open_context(
            options,
            backends,
            device,
            request.progress,
            pool=request.pool,
            replan=request.replan,
            provisional=request.provisional,
        ) as context:
            return _plan_buckets(context, opened, request.output, time.monotonic() - begun), directory


def _plan_buckets(context: DecisionContext, opened: Source, output: Path | None, spent_s: float) -> Plan:
    """Decides every bucket, and writes the artifact where there is an `output`. Of the first bucket's budget `spent_s` seconds
    are over already."""
    options, backends, device = context.options, context.backends, context.device
    decided: list[Bucket] = []
    trials: list[ArtifactTrial] = []
    served: Decision | None = None
    if options.objective == "throughput":
        served = decide_throughput(context, opened)
        decided += served.buckets
    else:
        for index, bucket in enumerate(opened.buckets):
            decided.append(decide_bucket(context, opened, bucket, spent_s=0.0 if index else spent_s))
            context.progress.decided(decided[-1])
            trials += [planned_trial(opened, index)] if output is not None else []
    plan = make_plan(opened, decided, options, backends, device)
    if served is not None:
        plan = replace(plan, operating_point=served.point, throughput=served.throughput)
    if output is None:
        return plan
    trials = trials or [planned_trial(opened, 0)]
    keys = [decision_key(opened, bucket, options, backends, device) for bucket in opened.buckets]
    return ship_plan(context, opened, plan, output, trials, TriedArtifacts(context.database, keys))
