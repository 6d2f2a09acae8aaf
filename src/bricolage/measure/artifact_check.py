"""An artifact as it was written, loaded and run in a fresh worker by the way of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bricolage.device.device import Device
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from bricolage.plan.plan import Plan
from bricolage.verify.named_arrays import load_values, save_tensors

_ATTEMPTS = 3
"""For a run whose worker is ended from outside."""


@dataclass(frozen=True)
class ArtifactRun:
    """What came of one run."""

    outputs: tuple[Any, ...] = ()
    """In the order of the model."""
    backends: frozenset[str] = frozenset()
    """That ran it, as far as it is known."""
    failure: str = ""
    """Why there are no outputs; empty where there are."""
    resident_bytes: int = 0
    """That its process held afterwards."""


def run_artifact(
    pool: Pool,
    plan: Plan,
    path: Path,
    inputs: Sequence[Mapping[str, Any] | None],
    folder: Path,
    device: Device,
    limit_s: float,
) -> list[ArtifactRun]:
    """Loads the artifact at `path`, whose plan is `plan`, in a worker that has loaded nothing before, and runs it once on each of
    the inputs; where these are None, it is only loaded. A run that crashes or takes longer than `limit_s` seconds costs itself
    alone: those after it have another worker."""
    names = tuple(sorted({name for bucket in plan.buckets for name in bucket.program.backends}))
    options = plan.provenance.options
    regime = Regime(names, options.threads, len(names) == 1, device, owner="artifact")
    pool.end(regime)
    given, made = folder / "written-inputs.npz", folder / "written-outputs.npz"
    runs: list[ArtifactRun] = []
    try:
        for arrays in inputs:
            save_tensors(given, arrays or {})
            for _ in range(_ATTEMPTS):
                files = {"path": str(path.resolve()), "inputs": str(given), "outputs": str(made)}
                worker = pool.worker(regime)
                answer = pool.ask(worker, limit_s, "run_artifact", run=arrays is not None, **files)
                if answer.outcome != "lost":
                    break
            if not answer.ok:
                runs.append(ArtifactRun(failure=f"its process failed ({answer.outcome}: {answer.reason})"))
                continue
            backend_names = answer.facts["backends"]
            assert isinstance(backend_names, list)
            failure = str(answer.facts["failure"])
            outputs = () if failure or arrays is None else tuple(load_values(made).values())
            runs.append(ArtifactRun(outputs, frozenset(map(str, backend_names)), failure, worker.resident()))
    finally:
        pool.end(regime)
        for file in (given, made):
            file.unlink(missing_ok=True)
    return runs
