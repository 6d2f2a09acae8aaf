"""`optimize_for_target`: one plan for a device that a file describes, by predicted times."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bricolage.api.pack import pack, read_targets
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.driver.given_samples import Data
from bricolage.errors import BadOption
from bricolage.plan.pack import PackEntry, PackTarget
from bricolage.plan.plan import Plan

_OF_DEVICE = ("threads", "cores", "isa", "objective", "ray", "memory_limit_mb")
"""Options that say what the file says, or what nothing is predicted for."""
_OF_ANSWERS = ("precision", "weights", "accuracy")
"""Options that go before what the file says."""


@dataclass(frozen=True)
class TargetPlan:
    """A plan for a device that is not here, which stands in a pack of its own, and what is predicted of it."""

    plan: Plan
    entry: PackEntry


def read_described_target(path: Path) -> PackTarget:
    """The one target of a file, which describes a device.

    Raises:
        MissingFile, BadTargets: as `read_targets`.
        BadOption: there are several, or it describes no device.
    """
    targets = read_targets(path)
    if len(targets) > 1:
        advice = f"It lists {len(targets)} targets, and --target takes one: `bricolage pack` takes them all"
        raise BadOption(option="--target", value=path, advice=advice)
    if targets[0].peaks is None:
        advice = "It describes no device: give core, threads, ghz and gbytes, or gflops and gbytes"
        raise BadOption(option="--target", value=path, advice=advice)
    return targets[0]


@dataclass(frozen=True)
class TargetRequest:
    """A decision for a device that a file describes. What is not explained here is as for `optimize`."""

    source: object
    target: Path
    """The file, with one target, as `pack` takes it."""
    output: Path
    """Where the pack goes."""
    inputs: Mapping[str, np.ndarray] | None = None
    replan: bool = False
    provisional: bool = False
    calibrate: Data | None = None
    evaluate: Data | None = None


def optimize_for_target(
    request: TargetRequest, options: Options, given: Collection[str] = (), progress: Progress | None = None
) -> TargetPlan:
    """Decides for a device that a file describes how it runs a model fastest, by predicted times. The plan is written as a pack.

    Args:
        request: the model, the file, and where the pack goes.
        options: as for `optimize`; threads, cores, instructions and memory are the file's.
        given: names of the fields of `options` that the user gave: precision, weights and accuracy then go before the file's.
        progress: as for `optimize`.

    Raises:
        MissingFile, BadTargets: there is no such file, or it describes none.
        BadOption: it describes several devices, or none; or an option says what the file says.
        As `pack`.
    """
    target = read_described_target(request.target)
    for name in _OF_DEVICE:
        if name in given:
            advice = "The file of --target describes the device, for which latency is predicted: leave the option out"
            raise BadOption(option=f"--{name.removesuffix('_mb').replace('_', '-')}", value="given", advice=advice)
    target = replace(target, **{name: getattr(options, name) for name in _OF_ANSWERS if name in given})
    packed = pack(
        request.source,
        [target],
        request.output,
        options,
        inputs=request.inputs,
        replan=request.replan,
        provisional=request.provisional,
        progress=progress,
        shown=request.target,
        calibrate=request.calibrate,
        evaluate=request.evaluate,
    )
    return TargetPlan(packed.plans[0], packed.pack.entries[0])
