"""Jobs and clusters for tests."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from bricolage.cluster.event_loop import EventLoop, Replayed
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec, NodeFailure, NodeGroup
from bricolage.cluster.policy_catalogue import find_policy


def job(
    number: int,
    submit_s: float,
    seconds: float,
    devices: int = 1,
    rates: Mapping[str, float] | None = None,
    name: str = "",
    **more: object,
) -> TrainingJob:
    """One of `seconds` on a device kind "a" of rate 1."""
    phases = (WorkPhase(seconds, rates or {"a": 1.0}),)
    return TrainingJob(name or f"j{number}", submit_s, phases, devices, user=f"u{number % 3}", **more)  # type: ignore[arg-type]


def one_kind(devices: int, nodes: int = 1, **more: object) -> ClusterSpec:
    """Nodes of kind "a" with so many devices each."""
    return ClusterSpec((NodeGroup("a", nodes, devices),), **more)  # type: ignore[arg-type]


def replay(policy: str, jobs: list[TrainingJob], cluster: ClusterSpec, error: float = 0.0) -> Replayed:
    """What a policy makes of them."""
    entry = find_policy(policy)
    return EventLoop(jobs, cluster, entry.make(jobs, cluster), entry.estimator(error, 0)).run()


@st.composite
def workloads(draw: st.DrawFn, most: int = 14, failures: bool = False) -> tuple[list[TrainingJob], ClusterSpec]:
    """Some jobs, and a cluster of one or two kinds that each fits into."""
    two = draw(st.booleans())
    groups = [NodeGroup("a", draw(st.integers(1, 3)), draw(st.sampled_from((2, 4))))]
    groups += [NodeGroup("b", 2, 2, speed=0.5, price=0.3)] if two else []
    gone: list[NodeFailure] = []
    if failures:
        at = draw(st.integers(0, 200))
        gone = [NodeFailure("a", 0, float(at), float(at + draw(st.integers(1, 100))))]
    cluster = ClusterSpec(
        tuple(groups), tuple(gone), restart_s=draw(st.sampled_from((0.0, 5.0))), round_s=30.0, checkpoint_s=20.0
    )
    times = sorted(draw(st.lists(st.integers(0, 300), min_size=1, max_size=most)))
    jobs = []
    for number, at in enumerate(times):
        rates = {"a": 1.0, "b": draw(st.sampled_from((0.0, 0.5, 2.0)))} if two else {"a": 1.0}
        devices = draw(st.sampled_from((1, 1, 2)))
        phases = tuple(
            WorkPhase(float(draw(st.integers(1, 120))), {kind: rate * factor for kind, rate in rates.items()})
            for factor in draw(st.sampled_from(((1.0,), (1.0,), (1.0, 2.0))))
        )
        kind = draw(st.sampled_from(("x", "y")))
        beside = {"x": draw(st.sampled_from((0.0, 0.4, 0.9))), "y": 0.6} if draw(st.booleans()) else {}
        together = {one: {mate: rate * slow for mate, slow in beside.items()} for one, rate in rates.items()}
        scaling = ((1, 1.0), (2, 1.7)) if devices == 1 and draw(st.booleans()) else ()
        due = float(at + draw(st.integers(50, 400))) if draw(st.booleans()) else float("inf")
        jobs.append(
            TrainingJob(
                f"j{number}",
                float(at),
                phases,
                devices,
                user=f"u{number % 3}",
                kind=kind,
                deadline_s=due,
                scaling=scaling,
                together=together,
            )
        )
    return jobs, cluster
