"""Methods that keep replicas in step, in real processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bricolage.errors import BadTrainingCode, TrainingWorkerFailed
from bricolage.train.replicas.replica_spec import KINDS, LOCKSTEP, Method, Replicas
from bricolage.train.replicas.replica_worker import ReplicaAnswer, ReplicaJob, Share
from bricolage.train.replicas.replicas import train_replicas
from bricolage.train.run.process_group import run_group
from bricolage.train.step.data import read_data
from bricolage.train.step.spec import Optimiser, StepSpec
from bricolage.train.step.step import build, make_optimiser
from tests.train.replicas.several import Answers, Several, work

torch = pytest.importorskip("torch")

CODE = str(Path(__file__).parent / "code.py")
SPEC = Replicas(
    StepSpec(f"{CODE}:net", f"{CODE}:batch", batch_size=8, optimiser=Optimiser("sgd", 0.1, momentum=0.9)),
    f"{CODE}:data",
    (Method(),),
    workers=2,
    steps=30,
    decay_at=(0.5,),
)
SERVERS = 2


def together(jobs: Sequence[tuple[Replicas, Method]]) -> list[tuple[list[ReplicaAnswer], dict[str, Any]]]:
    """What became of each, trained by one group: answers of workers, then servers; and the weights."""
    workers = jobs[0][0].workers
    size = workers + SERVERS
    several = Several(
        tuple(ReplicaJob(spec, method, min(method.servers, 2) if _served(method) else 0, 0) for spec, method in jobs)
    )
    states: list[dict[str, Any]] = []

    def keep(folder: Path) -> None:
        states.extend(torch.load(Path(folder, f"{number}.pt"), weights_only=True) for number in range(len(jobs)))

    answers = run_group(work, [several] * size, Answers, 1, 120, keep)
    return [([one.each[number] for one in answers], states[number]) for number in range(len(jobs))]


def _served(method: Method) -> bool:
    return method.kind in ("bsp", "asp", "ssp", "easgd")


def alone(spec: Replicas) -> list[Any]:
    """Plain PyTorch on the batches that all workers see together."""
    step = build(spec.step)
    data = read_data(spec.step, spec.data).train
    assert data is not None
    optimiser = make_optimiser(spec.step.optimiser, list(step.module.parameters()))
    share = Share(data, 0, 1, 0)
    steps = spec.steps or 0
    for number in range(steps):
        batch = share.next(spec.step.batch_size * spec.workers)
        for group in optimiser.param_groups:
            group["lr"] = spec.step.optimiser.lr * (spec.decay if number >= steps / 2 else 1.0)
        optimiser.zero_grad()
        step.loss(step.module(*batch.inputs), *batch.targets).backward()
        optimiser.step()
    return list(step.module.parameters())


def test_synchronous_methods_are_one_model_trained_alone() -> None:
    adam = replace(SPEC, step=replace(SPEC.step, optimiser=Optimiser("adam", 0.01, weight_decay=0.01)))
    plain = replace(SPEC, step=replace(SPEC.step, optimiser=Optimiser("sgd", 0.1)))
    jobs = [
        (SPEC, Method()),
        (SPEC, Method(wait_free=False)),
        (SPEC, Method("bsp")),
        (SPEC, Method("bsp", servers=2)),
        (SPEC, Method("bsp", servers=2, wait_free=False)),
        (SPEC, Method("local", period=1)),
        (
            plain,
            Method(compression="topk", density=1.0, warm_up=0),
        ),  # momentum begins again where something is sent: everywhere
        (SPEC, Method(compression="powersgd", rank=16)),
        (adam, Method()),
        (adam, Method("bsp", servers=2)),
    ]
    wanted = {id(spec): alone(spec) for spec in (SPEC, adam, plain)}
    for (spec, method), (answers, state) in zip(jobs, together(jobs), strict=True):
        for one, other in zip(wanted[id(spec)], state.values(), strict=True):
            torch.testing.assert_close(
                other, one, rtol=1e-3, atol=1e-5, msg=lambda text, m=method: f"{m.label}: {text}"
            )
        assert all(answer.steps == 30 and answer.samples == 240 for answer in answers[:2])
        assert answers[0].loss is not None and answers[0].accuracy is not None and len(answers[0].course) == 20


def test_all_methods_learn_and_keep_their_bounds() -> None:
    long = replace(SPEC, steps=120, decay_at=())
    methods = [
        Method("asp"),
        Method("ssp", staleness=2, servers=2),
        Method("ssp", staleness=0),
        Method("easgd", period=2),
        Method("adpsgd"),
        Method("gosgd", probability=0.5),
        Method("local", period=4),
        Method("postlocal", period=4),
        Method(compression="topk", density=0.1, clip_norm=1.0),
        Method(compression="powersgd", rank=1, accordion=1),
        Method(similarity=0.9),
    ]
    assert {one.kind for one in methods} | {"bsp"} == set(KINDS)
    found = together([(long, one) for one in methods])
    whole = 120 * 8 * 2
    for method, (answers, state) in zip(methods, found, strict=True):
        workers, servers = answers[:2], answers[2:]
        assert sum(one.samples for one in workers) >= whole, method.label
        accuracy, loss = workers[0].accuracy, workers[0].loss
        assert accuracy is not None and loss is not None and math.isfinite(loss), method.label
        # How far the first worker comes where workers do not wait depends on the machine: it may have done hardly any of the steps.
        if method.kind in LOCKSTEP:
            assert accuracy > 0.75 and loss < 0.8, (method.label, accuracy, loss)
        assert all(torch.isfinite(one).all() for one in state.values())
        if method.kind == "ssp":
            assert max(one.ahead for one in servers) <= method.staleness + 1
        if method.kind == "gosgd":
            assert sum(one.weight for one in workers) == pytest.approx(1.0, abs=1e-6)
        if method.similarity is not None:
            assert workers[0].batch != 8
    # For each step: how many of them a worker takes depends on how fast the other one is.
    each = {method.label: answers[0] for method, (answers, _) in zip(methods, found, strict=True)}
    sent = {name: one.sent_bytes / one.steps for name, one in each.items() if one.steps}
    assert sent["gosgd probability=0.5"] < sent["asp"] > sent["local"]


def test_a_straggler_takes_fewer_of_the_samples() -> None:
    """Its delay is fifty times a step, so that no load makes the other worker as slow."""
    late = replace(SPEC, steps=15, straggler_ms=100.0, decay_at=())
    methods = [Method("asp"), Method("easgd", period=2), Method("adpsgd"), Method("gosgd", probability=0.5)]
    for method, (answers, _) in zip(methods, together([(late, one) for one in methods]), strict=True):
        assert answers[0].steps > answers[1].steps, method.label


def test_through_the_door() -> None:
    spec = replace(SPEC, step=replace(SPEC.step, module=f"{CODE}:normed"), steps=None, epochs=6, decay_at=(0.8,))
    done = train_replicas(spec, Method("easgd"), seed=3)
    report = done.report
    assert report.accuracy is not None and report.accuracy > 0.6 and report.samples >= 6 * 384 - 16
    assert report.sent_bytes > 0 and report.samples_s > 0 and report.at(report.seconds) == report.course[-1]
    assert report.at(0.0) is None
    assert {"1.running_mean", "3.weight"} <= set(done.state())


@pytest.mark.slow
def test_a_replica_that_ends_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_TEST_ENDS", "1")
    with pytest.raises(TrainingWorkerFailed, match=r"process 1 of 3: the process ended with exit status 7\."):
        train_replicas(replace(SPEC, data=f"{CODE}:failing_data"), Method("asp"))


def test_what_cannot_be_trained() -> None:
    with pytest.raises(BadTrainingCode, match="too few"):
        train_replicas(replace(SPEC, step=replace(SPEC.step, batch_size=300)))
    with pytest.raises(BadTrainingCode, match="nothing is trained"):
        train_replicas(replace(SPEC, step=replace(SPEC.step, module=f"{CODE}:frozen")))
    with pytest.raises(BadTrainingCode, match="nowhere"):
        train_replicas(replace(SPEC, data=f"{CODE}:nowhere"))
