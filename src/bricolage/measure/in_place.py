"""What each region of a plan takes in place: among the others, as the plan runs, here or in a worker process."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from bricolage.base.codec import encode
from bricolage.device.device import Device
from bricolage.errors import ArtifactFails
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from bricolage.plan.plan import Plan
from bricolage.runtime.executable import Executable
from bricolage.verify.named_arrays import save_tensors
from bricolage.work.values import ModelValue


def step_ms(plan: Plan, directory: Path, inputs: Mapping[str, ModelValue], runs: int) -> list[float]:
    """Milliseconds of each region of the bucket that the inputs belong to, in the order of the plan: the median of the runs in
    this process. `directory` holds the plan's graphs and weights."""
    program = Executable(plan, directory)
    program.run(inputs)
    taken: dict[int, list[float]] = {}
    for span in (span for _ in range(runs) for span in program.trace(inputs).spans):
        taken.setdefault(span.step, []).append((span.end_ns - span.start_ns) / 1e6)
    return [statistics.median(taken[step]) for step in sorted(taken)]


def step_ms_apart(
    pool: Pool, plan: Plan, directory: Path, inputs: Mapping[str, ModelValue], runs: int, device: Device, limit_s: float
) -> list[float]:
    """As `step_ms`, in a worker, which may crash or hang.

    Raises:
        ArtifactFails: the worker's process fails, or takes longer than `limit_s` seconds.
    """
    names = tuple(sorted({name for bucket in plan.buckets for name in bucket.program.backends}))
    regime = Regime(names, plan.provenance.options.threads, len(names) == 1, device, owner="in place")
    given = directory / "in-place-inputs.npz"
    save_tensors(given, inputs)
    try:
        files = {"directory": str(directory), "inputs": str(given)}
        with pool.exclusive():
            answer = pool.ask(pool.worker(regime), limit_s, "step_times", plan=encode(plan), runs=runs, **files)
        if not answer.ok:
            raise ArtifactFails(where="while its regions are timed", reason=f"{answer.outcome}: {answer.reason}")
        timings = answer.facts["ms"]
        assert isinstance(timings, list)
        return [float(ms) for ms in timings]
    finally:
        pool.end(regime)  # what it has loaded is this plan's alone
        given.unlink(missing_ok=True)
