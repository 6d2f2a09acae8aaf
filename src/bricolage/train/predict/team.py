"""Several workers started for one job, and what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bricolage import telemetry
from bricolage.codec import DecodeError, decode, encode, parse
from bricolage.errors import TrainingWorkerFailed
from bricolage.train.predict.exchange import Link
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.worker import Answer, Job
from bricolage.train.spec import StepSpec

_READY_S = 300.0
"""Until all have imported PyTorch and found each other."""


def measure_link(spec: StepSpec, workers: int, threads: int, seconds: float) -> tuple[Link, float]:
    """The link between workers on this machine, and the factor by which their steps take longer because all run at once.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    answers = run_team("probe", spec, Variant(), workers, threads, seconds)
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
    answers = run_team("step", spec, variant, variant.workers, threads, seconds)
    return [max(together) for together in zip(*(one.steps for one in answers), strict=True)]


def run_team(kind: str, spec: StepSpec, variant: Variant, workers: int, threads: int, seconds: float) -> list[Answer]:
    """Runs a job in so many processes.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    environment = {
        **os.environ,
        **telemetry.VARIABLES,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }
    environment["PYTHONPATH"] = os.pathsep.join(one for one in sys.path if one)
    with tempfile.TemporaryDirectory(prefix="bricolage-") as folder:
        team: list[subprocess.Popen[str]] = []
        files = []
        try:
            for rank in range(workers):
                job = Job(kind, spec, variant, rank, workers, threads, seconds, str(Path(folder, "store")))  # type: ignore[arg-type]
                Path(folder, f"job{rank}").write_text(json.dumps(encode(job)))
                files.append((Path(folder, f"answer{rank}"), Path(folder, f"words{rank}")))
                with (
                    Path(folder, f"job{rank}").open() as given,
                    files[rank][0].open("w") as told,
                    files[rank][1].open("w") as words,
                ):
                    command = [sys.executable, "-m", "bricolage.train.predict.worker"]
                    team.append(
                        subprocess.Popen(command, stdin=given, stdout=told, stderr=words, env=environment, text=True)
                    )
            _wait(team, [words for _, words in files], _READY_S + 20 * seconds)
            return [decode(Answer, parse(told.read_text().strip().splitlines()[-1]), "answer") for told, _ in files]
        except (DecodeError, IndexError) as error:
            raise TrainingWorkerFailed(reason=f"it does not answer ({error})") from error
        finally:
            for one in team:
                if one.poll() is None:
                    one.kill()
            for one in team:
                one.wait()


def _wait(team: Sequence[subprocess.Popen[str]], words: Sequence[Path], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(one.poll() is None for one in team):
        for one, told in zip(team, words, strict=True):
            if one.poll() not in (None, 0):
                lines = [line for line in told.read_text(errors="replace").splitlines() if line.strip()]
                raise TrainingWorkerFailed(reason=lines[-1] if lines else f"it ended with {one.returncode}")
        if time.monotonic() > end:
            raise TrainingWorkerFailed(reason="it does not end")
        time.sleep(0.02)
    for one, told in zip(team, words, strict=True):
        if one.returncode != 0:
            lines = [line for line in told.read_text(errors="replace").splitlines() if line.strip()]
            raise TrainingWorkerFailed(reason=lines[-1] if lines else f"it ended with {one.returncode}")
