"""An artifact run once on inputs, and as a server of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bricolage.api.serve import ServedRequests, serve
from bricolage.errors import BadOption
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.plan import Bucket, Plan
from bricolage.runtime.choosing import PackChoice
from bricolage.runtime.executable import TracedRun
from bricolage.runtime.load import load
from bricolage.work.values import ModelValue


@dataclass(frozen=True)
class RunRequest:
    """What an artifact is to do in addition to one run.

    Raises:
        BadOption: `point` is no operating point, or there are no requests for it.
    """

    traced: bool = False
    """Whether it runs once more, to see when each region runs and where."""
    requests: int = 0
    """That are served."""
    concurrency: int = 8
    """Of these, under way at a time."""
    point: str | None = None
    """The operating point in words (`OperatingPoint.parse`); None: the plan's."""

    def __post_init__(self) -> None:
        if self.operating_point is not None and not self.requests:
            raise BadOption(
                option="--operating-point", value=self.point, advice="It is for requests: add --requests 200"
            )

    @property
    def operating_point(self) -> OperatingPoint | None:
        """The point that the words say."""
        return None if self.point is None else OperatingPoint.parse(self.point)


@dataclass(frozen=True)
class RunOutcome:
    """What a plan answered."""

    plan: Plan
    outputs: Mapping[str, ModelValue]
    traced: TracedRun | None
    served: ServedRequests | None

    @property
    def traced_bucket(self) -> Bucket | None:
        """That the traced run belongs to; None where its shapes were not planned."""
        planned = None if self.traced is None else self.traced.bucket
        return None if planned is None else self.plan.buckets[planned]


def answer_inputs(
    path: Path,
    inputs: Mapping[str, ModelValue],
    request: RunRequest,
    *,
    any_machine: bool = False,
    target: str = "",
    chosen: Callable[[PackChoice], object] = lambda _: None,
) -> RunOutcome:
    """Loads an artifact, or the plan of a pack for this machine, and runs it.

    Args:
        path: of the artifact.
        inputs: by name.
        request: what else is asked for.
        any_machine: whether one that was made on other hardware or versions runs all the same.
        target: of a pack, whose plan runs.
        chosen: is told which plan of a pack runs, before it does.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact, ForeignArtifact, NoTarget, NotPack, NoBackend: as `load`.
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
        BadOption, NotBatchable, NotEnoughMemory: requests cannot be served so.
    """
    executable = load(path, any_machine=any_machine, target=target)
    if executable.choice is not None:
        chosen(executable.choice)
    outputs = executable.run(inputs)
    traced = executable.trace(inputs) if request.traced else None  # the second run: the first one warms up
    served = None
    if request.requests:
        served = serve(executable, inputs, request.requests, request.concurrency, request.operating_point)
    return RunOutcome(executable.plan, outputs, traced, served)
