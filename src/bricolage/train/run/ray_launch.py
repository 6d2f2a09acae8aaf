"""Runs a plan on the nodes of a Ray cluster: an actor for each of its processes, spread over the nodes, which meet by PyTorch's own
rendezvous. Ray places and starts them, and nothing else. That is what Ray Train does for PyTorch; its package needs libraries for
data too."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bricolage.base.codec import decode, encode
from bricolage.base.options import available_cores
from bricolage.base.ray_session import LOCAL, RaySession, describe_error
from bricolage.errors import BricolageError, TrainingWorkerFailed
from bricolage.train.run.document import read_training_plan
from bricolage.train.run.joining import run_as_rank
from bricolage.train.run.launch_plan import PlanResult

_PLACED_S = 60.0
_WHOLE = 10.0
"""Times what one process waits for another: what all of it may take."""


class PlanActor:
    """One process of a plan, on a node."""

    def address(self) -> tuple[str, int]:
        """Where the others meet this one: its node's address, and a port that is free."""
        host = socket.gethostbyname(socket.gethostname())
        with socket.create_server((host, 0)) as free:
            return host, int(free.getsockname()[1])

    def run(self, folder: str, rank: int, size: int, where: tuple[str, int], options: dict[str, float]) -> object:
        """Runs the plan as a rank; what came of it in the first one. An error comes as its words."""
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": where[0], "MASTER_PORT": str(where[1])}
        try:
            plan_result = run_as_rank(
                Path(folder),
                number=rank,
                seconds=options["seconds"],
                timeout_s=options["timeout_s"],
                pipelines=int(options["pipelines"]),
            )
        except (BricolageError, RuntimeError) as error:
            return f"rank {rank} on {socket.gethostname()}: {error}"
        return None if plan_result is None else encode(plan_result)


def run_on_ray(
    folder: Path, address: str, *, seconds: float = 8.0, timeout_s: float = 120.0, pipelines: int = 1
) -> PlanResult:
    """Runs a plan on a Ray cluster, with a process for each of its devices. The nodes see the folders of plan and step at the same
    paths.

    Args:
        folder: the plan's.
        address: as `ray.init` takes it, or `ray_session.LOCAL`.
        seconds: for the race.
        timeout_s: for which a process waits for another.
        pipelines: that take part.

    Raises:
        MissingFile, NewerTrainingPlan, BadPlan: the plan cannot be read.
        MissingLibrary: ray is not installed.
        UnreachableCluster: there is no cluster at that address, or it has other versions of Python or Ray.
        TrainingWorkerFailed: the cluster has too few processors, or a process fails, ends or does not answer.
    """
    plan, _ = read_training_plan(folder)
    size = plan.devices.count
    session = RaySession(address)
    try:
        total = float(session.ray.cluster_resources().get("CPU", 0.0))
        # Processes of one machine share its cores, as they did when they were planned.
        each = min(1.0, available_cores() / size) if address == LOCAL or plan.devices.here else 1.0
        if total < each * size - 1e-9:
            raise TrainingWorkerFailed(
                reason=f"the Ray cluster has {total:g} processors for {size} processes of the plan"
            )
        options = {"seconds": seconds, "timeout_s": timeout_s, "pipelines": float(pipelines)}
        answers = _ran(session, folder.resolve(), size, each, options)
    except session.errors as error:
        raise TrainingWorkerFailed(reason=describe_error(error)) from error
    finally:
        session.close()
    first = next((answer for answer in answers if isinstance(answer, dict)), None)
    if first is None:
        raise TrainingWorkerFailed(reason="no process answered")
    return decode(PlanResult, first, "result")


def _ran(session: RaySession, folder: Path, size: int, cores: float, options: dict[str, float]) -> list[object]:
    """The answers of actors that have `cores` processors each."""
    ray = session.ray
    make = ray.remote(PlanActor).options(num_cpus=cores, scheduling_strategy="SPREAD")
    actors = [make.remote() for _ in range(size)]
    try:
        where = ray.get(actors[0].address.remote(), timeout=_PLACED_S)
        waiting = [actor.run.remote(str(folder), rank, size, where, options) for rank, actor in enumerate(actors)]
        return _answers(session, waiting, _WHOLE * options["timeout_s"] + 4 * options["seconds"])
    finally:
        for actor in actors:
            ray.kill(actor)


def _answers(session: RaySession, waiting: list[object], limit_s: float) -> list[object]:
    """Of all, as soon as they have them. The first that failed ends the others."""
    left, answers = list(waiting), []
    while left:
        ready, left = session.ray.wait(left, num_returns=1, timeout=limit_s)
        if not ready:
            raise TrainingWorkerFailed(reason=f"no answer on the Ray cluster for {limit_s:.0f} s")
        answer = session.ray.get(ready[0])
        if isinstance(answer, str):
            raise TrainingWorkerFailed(reason=answer)
        answers.append(answer)
    return answers
