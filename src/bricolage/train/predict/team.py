"""What several workers find that exchange gradients: the link between them, and steps that do."""

from __future__ import annotations

from typing import Literal

import numpy as np

from bricolage.train.predict.exchange import Link
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.worker import Answer, Job
from bricolage.train.spec import StepSpec
from bricolage.train.team import run_team

_READY_S = 300.0
"""Until all have imported PyTorch and found each other."""


def measure_link(spec: StepSpec, workers: int, threads: int, seconds: float) -> tuple[Link, float]:
    """The link between workers on this machine, and the factor by which their steps take longer because all run at once.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    answers = _run("probe", spec, Variant(), workers, threads, seconds)
    sizes = np.array([[1.0, size] for size, _ in answers[0].sizes])
    times = np.array([max(one.sizes[place][1] for one in answers) for place in range(len(sizes))])
    from scipy.optimize import nnls

    weights = 1.0 / np.maximum(times, 1e-6)  # relative errors: small ones count as much as large ones
    (latency, per_byte), _ = nnls(sizes * weights[:, None], times * weights)
    alone = sum((answers[0].alone or {}).values())
    together = max(sum((one.together or {}).values()) for one in answers)
    along = max((one.along or together) for one in answers)
    slowed = max(one.along_sizes[0][1] for one in answers) / max(
        latency + per_byte * answers[0].along_sizes[0][0], 1e-9
    )
    copying = max(one.copy_ms_per_byte for one in answers)
    link = Link(workers, float(latency), float(per_byte), copying, max(1.0, along / together), max(1.0, float(slowed)))
    return link, max(1.0, together / alone) if alone > 0 else 1.0


def run_steps(spec: StepSpec, variant: Variant, threads: int, seconds: float) -> list[float]:
    """Milliseconds of steps of workers that exchange their gradients, by the slowest of them.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    answers = _run("step", spec, variant, variant.workers, threads, seconds)
    return [max(together) for together in zip(*(one.steps for one in answers), strict=True)]


def _run(
    kind: Literal["probe", "step"], spec: StepSpec, variant: Variant, workers: int, threads: int, seconds: float
) -> list[Answer]:
    jobs = [Job(kind, spec, variant, rank, workers, threads, seconds) for rank in range(workers)]
    return run_team("bricolage.train.predict.worker", jobs, Answer, threads, _READY_S + 20 * seconds)
