"""`optimize`: from a model to the fastest verified way to run it on this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.cache import trim
from bricolage.base.option_words import constant_word, sizes_of
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.device.host import select_device
from bricolage.driver.bucket_decision import decide_bucket, decision_key, make_plan
from bricolage.driver.context import DecisionContext, check_again, open_context
from bricolage.driver.given_samples import Data, GivenData
from bricolage.driver.shipping import ArtifactTrial, TriedArtifacts, planned_trial, ship_plan
from bricolage.driver.sources import Source, open_source, working_folder
from bricolage.driver.throughput_decision import Decision, decide_throughput
from bricolage.errors import StatedOtherwise
from bricolage.measure.pool import Pool
from bricolage.plan.plan import Bucket, Plan
from bricolage.runtime.executable import Executable

_LOG = logging.getLogger(__name__)


def optimize(
    source: Any,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    dynamic: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    replan: bool = False,
    provisional: bool = False,
    progress: Progress | None = None,
    pool: Pool | None = None,
    output: str | Path | None = None,
    calibrate: Data | None = None,
    evaluate: Data | None = None,
) -> Executable:
    """The fastest verified way to run a model on this machine, or to answer the most requests a second, as an executable.

    Args:
        source: path of an ONNX file, of a `.pt2` file or of an artifact, an `onnx.ModelProto`, an `onnx_ir.Model`, a
            `torch.nn.Module` with `example_inputs`, or a `torch.export.ExportedProgram`.
        options: precision, effort, threads, shapes ...
        example_inputs: for a module, its arguments; they also serve for measuring unless `inputs` are given.
        dynamic: for a module, its `dynamic_shapes` (see `torch.export.export`).
        inputs: real inputs by name for measuring and verifying; by default inputs are generated.
        shapes: sizes of open dimensions by name, added to those of `options`: `{"batch": (1, 8), "sequence": 128}`. Several make
            shape buckets. A batch takes 1 by default, which is told; others need a size, here or by `inputs`.
        constants: values of inputs that never change, added to those of `options`: `{"sr": 16000}`; None is the value that
            `inputs` have. A call may leave them out, and is refused with another value.
        replan: decide afresh, whatever is on record for the same model, options, versions and hardware. Costs that were measured
            are used again, failures that may have been bad luck are not. A decision on record that is provisional
            (`DecisionRecord.provisional`) is gone on with by default, and taken as it is where `provisional` is asked for.
        progress: is told what happens, and hears of every shape bucket as soon as it is decided.
        pool: worker processes that stay for the next model; by default there are own ones, which end with the decision.
        output: where the artifact goes. A fresh process loads it from there and is compared with float64, on the inputs and at
            another size of each symbolic dimension; what fails gives way to the fastest baseline that does not.
        calibrate: samples, a .npz file or arrays whose first axis is the sample, that give a graph of integers its scales at `low`.
        evaluate: likewise, to judge accuracy by; by default a quarter of `calibrate`. It may hold labels for the user's metric.

    Raises:
        UsageError: bad model, input, data or option, or `replan` and `provisional` together.
        NoBackend, NoPlacement: nothing installed can run it.
        NotAccurate: nothing reaches the accuracy asked for.
        LatencyLimit: for throughput, nothing answers within the limit.
        NotWritable: the disk of the cache, or of `output`, is full or cannot be written.
        ArtifactFails: the artifact at `output` fails in a fresh process, whatever of what was measured runs it.

    Ctrl-C while measuring keeps what is finished and returns the best plan so far; a second one gives up.
    """
    options, progress = _settle_options(options or Options(), shapes or {}, constants or {}), progress or Silent()
    check_again(replan, provisional)
    data = GivenData.of(calibrate, evaluate)
    data.check(options)
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    opening = partial(
        open_source, source, options, example_inputs=example_inputs, dynamic=dynamic, given=inputs, data=data
    )
    measuring = partial(open_context, options, backends, device, progress, pool=pool, replan=replan)
    return _executable(opening, partial(measuring, provisional=provisional), output)


def _settle_options(
    options: Options, shapes: Mapping[str, int | Sequence[int]], constants: Mapping[str, object]
) -> Options:
    """The options with these sizes and constants, if they go with this machine."""
    sizes = {**options.shapes, **{name: sizes_of(size) for name, size in shapes.items()}}
    words = {**options.constants, **{name: constant_word(name, value) for name, value in constants.items()}}
    options = replace(options, shapes=sizes, constants=words)
    options.check_here()
    return options


def _executable(
    opening: Callable[..., Source],
    measuring: Callable[[], AbstractContextManager[DecisionContext]],
    output: str | Path | None,
) -> Executable:
    try:
        plan, directory = _plan_model(opening, measuring, output)
    except StatedOtherwise as error:
        _LOG.warning("%s: what the model states of sizes that cannot be inferred is ignored", error.facts["reason"])
        plan, directory = _plan_model(partial(opening, believing=False), measuring, output)
    for path in directory.glob("*.npz"):
        path.unlink(missing_ok=True)  # only measuring needed them
    trim()
    return Executable(plan, directory, temporary=True)


def _plan_model(
    opening: Callable[[Path], Source],
    measuring: Callable[[], AbstractContextManager[DecisionContext]],
    output: str | Path | None,
) -> tuple[Plan, Path]:
    """The plan of a model, and the folder of its graphs and weights."""
    directory = working_folder()
    with scratch.using(directory, keep=True):
        begun = time.monotonic()
        opened = opening(directory)
        with measuring() as context:
            spent_s = time.monotonic() - begun
            return _plan(context, opened, None if output is None else Path(output), spent_s), directory


def _plan(context: DecisionContext, opened: Source, output: Path | None, spent_s: float) -> Plan:
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
