"""What several workers find that exchange gradients: the link between them, and steps that do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.train.predict.exchange_worker import StepAnswer, StepJob, work
from bricolage.train.predict.variant import Variant
from bricolage.train.run.process_group import run_group
from bricolage.train.step.spec import StepSpec

_LONGEST_S = 300.0
"""Of what does not grow with the time given for measuring."""
_NO_TIME = 1e-14
"""Milliseconds for a byte where no size took longer than another."""


def measure_ring(spec: StepSpec, workers: int, threads: int, seconds: float) -> tuple[Ring, float]:
    """The links between workers on this machine, and the factor by which their steps take longer because all run at once.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    answers = _run("probe", spec, Variant(), workers, threads, seconds)
    latency, per_byte = _line([[answer.sizes[place] for answer in answers] for place in range(len(answers[0].sizes))])
    send_ms, send_ms_per_byte = _line([[send] for send in answers[0].sends])
    link = Link(("0", "1"), 1e-6 / max(send_ms_per_byte, _NO_TIME), send_ms * 1e3)
    alone = sum((answers[0].alone or {}).values())
    together = max(sum((answer.together or {}).values()) for answer in answers)
    along = max((answer.along or together) for answer in answers)
    slowed = max(answer.along_sizes[0][1] for answer in answers) / max(
        latency + per_byte * answers[0].along_sizes[0][0], 1e-9
    )
    copying = max(answer.copy_ms_per_byte for answer in answers)
    slows = max(1.0, along / together)
    ring = Ring(workers, link, latency, per_byte, copying, slows, max(1.0, float(slowed)))
    return ring, max(1.0, together / alone) if alone > 0 else 1.0


def _line(seen: Sequence[Sequence[tuple[int, float]]]) -> tuple[float, float]:
    """Milliseconds for any size and for each byte, from bytes and milliseconds that each worker saw."""
    from scipy.optimize import nnls

    sizes = np.array([[1.0, measurements[0][0]] for measurements in seen])
    times = np.array([max(ms for _, ms in measurements) for measurements in seen])
    weights = 1.0 / np.maximum(times, 1e-6)  # relative errors: small ones count as much as large ones
    (latency, per_byte), _ = nnls(sizes * weights[:, None], times * weights)
    return float(latency), float(per_byte)


def run_stages(
    spec: StepSpec, variant: Variant, begins: tuple[str, ...], threads: int, seconds: float
) -> tuple[list[float], int]:
    """Milliseconds of steps of stages that hand micro-batches on, by the slowest of them, and the bytes at most on any.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer; or PyTorch cannot divide the module there.
    """
    answers = _run("stage", spec, variant, variant.stages, threads, seconds, begins)
    steps = [max(together) for together in zip(*(answer.steps for answer in answers), strict=True)]
    return steps, max(answer.peak_bytes for answer in answers)


def run_steps(spec: StepSpec, variant: Variant, threads: int, seconds: float) -> list[float]:
    """Milliseconds of steps of workers that exchange their gradients, by the slowest of them.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    answers = _run("step", spec, variant, variant.workers, threads, seconds)
    return [max(together) for together in zip(*(answer.steps for answer in answers), strict=True)]


def _run(
    kind: Literal["probe", "step", "stage"],
    spec: StepSpec,
    variant: Variant,
    workers: int,
    threads: int,
    seconds: float,
    begins: tuple[str, ...] = (),
) -> list[StepAnswer]:
    job = StepJob(kind, spec, variant, seconds, begins)
    return run_group(work, [job] * workers, StepAnswer, threads, _LONGEST_S + 20 * seconds)
