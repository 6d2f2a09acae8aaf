"""Files that describe training by replicas: a training step, the data, how many workers, and the methods that keep them in step.

step = "digits.toml"             # a training step's file, or a table [step]; batch_size is of one worker
data = "digits.py:data"          # data() -> ((inputs, targets), held-out (inputs, targets))
epochs = 10                      # or steps = 500 of each worker, or as many samples
workers = 4
decay_at = [0.5, 0.75]           # shares of the training after which lr is multiplied by `decay`

[[method]]
kind = "easgd"
period = 4

[[method]]
kind = "allreduce"
compression = "powersgd"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, get_args

from bricolage.base.codec import Length, Matching, Within
from bricolage.errors import BadOption, BadTrainingSpec
from bricolage.train.step.spec import Entry, StepOrFile, StepSpec, read_as, read_step

Kind = Literal["allreduce", "bsp", "asp", "ssp", "easgd", "adpsgd", "gosgd", "local", "postlocal"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SERVED: tuple[Kind, ...] = ("bsp", "asp", "ssp", "easgd")
"""Those with servers that hold the weights, or their centre."""
LOCKSTEP: tuple[Kind, ...] = ("allreduce", "bsp", "local", "postlocal")
"""Those whose workers are at the same step, whatever one of them waits for."""

Share = Annotated[float, Within(0.0, 1.0)]
Count = Annotated[int, Within(1, 10**9)]


@dataclass(frozen=True)
class Method:
    """How replicas are kept in step.

    "allreduce" averages gradients by all-reduce, "bsp" on a server for which all wait (bulk-synchronous parallel; Valiant, 1990);
    "asp" updates the server's weights by each gradient as it comes (Recht et al., 2011); "ssp" likewise, but no worker may be more
    than `staleness` steps ahead (Ho et al., 2013); "easgd" pulls replicas and a centre towards each other every `period` steps
    (Zhang et al., 2015); in "adpsgd" workers average with random neighbours while they compute gradients (Lian et al., 2018); in
    "gosgd" they send weights at random (Blot et al., 2016); "local" averages weights every `period` steps, "postlocal" from the
    first decay of lr on (Lin et al., 2020).
    """

    kind: Kind = "allreduce"
    name: Annotated[str, Matching(r"[^\n/]{0,120}", "name")] = ""
    """By default its kind, with what is not as usual."""
    lr: Annotated[float, Within(0.0, 1e6)] | None = None
    """Instead of the training step's."""
    staleness: Annotated[int, Within(0, 10**6)] = 3
    """Of "ssp", in steps. 0 is "bsp" but for the order of updates."""
    period: Count = 4
    """Of "easgd", "local" and "postlocal", in steps."""
    alpha: Share | None = None
    """Of "easgd": the share of the distance that both move; 0.9 / workers by default, and at most 1 / workers."""
    probability: Share = 0.1
    """Of "gosgd": that a worker sends its weights after a step."""
    servers: Annotated[int, Within(1, 64)] = 1
    """Each holds a part of the weights."""
    wait_free: bool = True
    """Gradients leave while the backward phase goes on: in buckets, or as soon as a server's part is complete (wait-free
    back-propagation; Zhang et al., 2017)."""
    compression: Literal["", "topk", "powersgd"] = ""
    """Of "allreduce": "topk" with the corrections of Deep Gradient Compression (Lin et al., 2018), or low rank with error feedback
    (PowerSGD; Vogels et al., 2019)."""
    density: Annotated[float, Within(1e-6, 1.0)] = 0.01
    """Of "topk": the share of a tensor's gradient that is sent."""
    warm_up: Annotated[int, Within(0, 1000)] = 4
    """Of "topk": epochs in which the density falls from 0.25 to `density`, by equal factors."""
    clip_norm: Annotated[float, Within(1e-12, 1e12)] | None = None
    """Of "topk": of gradients before they are added up, times workers ^ -1/2."""
    rank: Annotated[int, Within(1, 1024)] = 2
    """Of "powersgd"."""
    accordion: Annotated[int, Within(0, 10**6)] = 0
    """Compression by turns (Accordion; Agarwal et al., 2021): every `accordion` epochs each tensor is compressed weakly (`rank`,
    four times `density`) where its gradients changed by half or lr fell, strongly (rank 1, `density`) elsewhere. 0: never."""
    similarity: Annotated[float, Within(-1.0, 1.0)] | None = None
    """Of "allreduce": batches grow by a tenth while the gradients of two halves of the workers are less alike than this cosine,
    and shrink while they are more (SimiGrad; Qin et al., 2021)."""

    def __post_init__(self) -> None:
        plain = Method.__dataclass_fields__
        for field, kinds in _OF.items():
            if getattr(self, field) != plain[field].default and self.kind not in kinds:
                raise ValueError(f"{self.kind} has no {field}")
        if self.compression and self.similarity is not None:
            raise ValueError("similarity needs whole gradients, without compression")
        for field, kind in _COMPRESSED.items():
            if getattr(self, field) != plain[field].default and self.compression != kind:
                raise ValueError(f'{field} goes with compression = "{kind}"')
        if self.accordion and not self.compression:
            raise ValueError("accordion goes with compression")

    def pull(self, workers: int) -> float:
        """The share of their distance by which a replica and the centre move, for a number of workers."""
        return self.alpha if self.alpha is not None else 0.9 / workers

    @property
    def label(self) -> str:
        """Its name."""
        if self.name:
            return self.name
        plain = Method.__dataclass_fields__
        settings = [
            f"{field}={value:g}" if isinstance(value, float) else f"{field}={value}"
            for field in plain
            if field not in ("kind", "name") and (value := getattr(self, field)) != plain[field].default
        ]
        return " ".join([self.kind, *settings])


_OF: dict[str, Sequence[Kind]] = {
    "staleness": ("ssp",),
    "period": ("easgd", "local", "postlocal"),
    "alpha": ("easgd",),
    "probability": ("gosgd",),
    "servers": SERVED,
    "wait_free": ("allreduce", "bsp", "asp", "ssp"),
    "compression": ("allreduce",),
    "similarity": ("allreduce",),
}
_COMPRESSED = {"density": "topk", "warm_up": "topk", "clip_norm": "topk", "rank": "powersgd"}


@dataclass(frozen=True)
class Replicas:
    """A training step, its data, workers, how long they train, and methods to choose from."""

    step: StepSpec
    data: str
    methods: tuple[Method, ...]
    workers: int = 2
    epochs: int | None = None
    steps: int | None = None
    """Exactly one of both is given. Steps are of each worker; where workers need not wait for each other, or batches change, all
    together train on as many samples as these steps have."""
    decay_at: tuple[float, ...] = ()
    decay: float = 0.1
    straggler_ms: float = 0.0
    """Milliseconds added to each step of the last worker."""


@dataclass(frozen=True)
class _File:
    step: StepOrFile
    data: Entry
    method: Annotated[tuple[Method, ...], Length(0, 64)] = ()
    workers: Annotated[int, Within(1, 64)] = 2
    epochs: Count | None = None
    steps: Count | None = None
    decay_at: tuple[Share, ...] = ()
    decay: Annotated[float, Within(0.0, 1.0)] = 0.1
    straggler_ms: Annotated[float, Within(0.0, 1e6)] = 0.0
    folder: str = "."


def read_replicas(path: Path) -> Replicas:
    """What a file describes. Without methods: all-reduce.

    Raises:
        MissingFile: there is no such file, or none of the training step that it names.
        BadTrainingSpec: one of them cannot be read, or describes no training by replicas.
    """
    replica_file = read_as(_File, path)
    step = read_step(replica_file.step, path)
    if (replica_file.epochs is None) == (replica_file.steps is None):
        raise BadTrainingSpec(path=path, reason="give epochs or steps")
    methods = replica_file.method or (Method(),)
    for candidate in methods:
        reason = explain_refusal(candidate, replica_file.workers, step)
        if reason:
            raise BadTrainingSpec(path=path, reason=f"method '{candidate.label}': {reason}")
    labels = [method.label for method in methods]
    if len(set(labels)) < len(labels):
        raise BadTrainingSpec(path=path, reason="two methods have one name")
    return Replicas(
        step,
        replica_file.data,
        methods=methods,
        workers=replica_file.workers,
        epochs=replica_file.epochs,
        steps=replica_file.steps,
        decay_at=tuple(sorted(replica_file.decay_at)),
        decay=replica_file.decay,
        straggler_ms=replica_file.straggler_ms,
    )


def override_replicas(
    replicas: Replicas, path: Path, kinds: Sequence[str] | None, workers: int | None, straggler_ms: float | None
) -> Replicas:
    """Replicas, which the file at `path` describes, with other methods, workers or another delay where these are given.

    Raises:
        BadOption: there is no such method.
        BadTrainingSpec: one cannot train what the file says.
    """
    if kinds is not None:
        chosen = [kind for kind in KINDS if kind in kinds]
        if len(chosen) < len(set(kinds)):
            wrong = next(name for name in kinds if name not in KINDS)
            raise BadOption(option="--method", value=wrong, advice=f"Use one of {', '.join(KINDS)}")
        replicas = replace(replicas, methods=tuple(Method(kind) for kind in chosen))
    replicas = replace(replicas, workers=workers or replicas.workers)
    if straggler_ms is not None:
        replicas = replace(replicas, straggler_ms=straggler_ms)
    for method in replicas.methods:
        if reason := explain_refusal(method, replicas.workers, replicas.step):
            raise BadTrainingSpec(path=path, reason=f"method '{method.label}': {reason}")
    return replicas


def explain_refusal(method: Method, workers: int, step: StepSpec) -> str:
    """Why a method cannot keep this number of workers in step; empty where it can."""
    if method.kind == "adpsgd" and workers < 2:
        return "it averages with neighbours, and there is one worker"
    if method.similarity is not None and (workers < 2 or workers % 2):
        return "similarity compares two halves of the workers, and their number is not even"
    if method.alpha is not None and method.alpha * workers > 1.0:
        return f"alpha times workers is {method.alpha * workers:g}; beyond 1 the centre runs away"
    if method.compression == "topk" and (step.optimiser.kind != "sgd" or step.optimiser.nesterov):
        return "topk corrects the momentum of plain SGD, and of no other optimiser"
    return ""
