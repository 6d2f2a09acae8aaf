"""Seconds of `bricolage train plan` by what it does, for a Transformer's step on described devices:
`python -m benchmarks.training.parallel_plans --step-operators 1000 --devices 64 --json`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bricolage.base.codec import decode
from bricolage.base.progress import Silent
from bricolage.device.description import DeviceTables
from bricolage.train.run.planning import plan_step
from bricolage.train.sharded.step_graph import trace_joint
from bricolage.train.step.spec import Optimiser, StepSpec
from bricolage.train.step.step import build

_NETWORK = Path(__file__).parents[2] / "examples" / "demo_plan"
_PER_LAYER = 125
"""Operators of a layer of that network, both passes; what there are is counted."""
_WIDTH = 64


@dataclass(frozen=True)
class Seconds:
    """Of a phase: on the clock, and of this process's cores."""

    phase: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class PlannedStep:
    """What `--step-operators` prints."""

    operators: int
    layers: int
    devices: int
    seconds: float
    phases: tuple[Seconds, ...]
    way: str
    step_ms: float
    bound_ms: float


@dataclass
class _Phases(Silent):
    """Takes the time of each phase."""

    found: list[Seconds] = field(default_factory=list)
    _now: tuple[str, float, float] | None = None

    def start(self, phase: str, total: int | None = None) -> None:
        """The one before it is over."""
        del total
        self.finish()
        self._now = phase, time.perf_counter(), time.process_time()

    def finish(self) -> None:
        """Its time is known."""
        if self._now is not None:
            name, begun, cpu = self._now
            self.found.append(Seconds(name, time.perf_counter() - begun, time.process_time() - cpu))
            self._now = None


def planned_step(operators: int, devices: int, batch: int, gbytes: float, memory_gb: float) -> PlannedStep:
    """Plans a step of about so many operators, forward and backward.

    Args:
        operators: as many layers as have at least these.
        devices: alike, as fast as a core here.
        batch: samples.
        gbytes: 10⁹ bytes a second between any two devices.
        memory_gb: 10⁹ bytes of each.
    """
    layers = -(-operators // _PER_LAYER)
    node = {"name": "node", "kind": "cpu", "cores": 1, "scale": 1.0, "memory_gb": memory_gb}
    link = {"between": ["node", "node"], "gbytes": gbytes, "latency_us": 20.0}
    tables = decode(DeviceTables, {"count": devices, "device": [node], "link": [link]})
    spec = StepSpec(
        "network.py:transformer",
        "network.py:batch",
        arguments={"layers": layers, "width": _WIDTH},
        batch_size=batch,
        optimiser=Optimiser("adamw"),
        folder=str(_NETWORK),
        devices=tables,
    )
    phases = _Phases()
    begun = time.perf_counter()
    made = plan_step(spec, progress=phases)
    seconds = time.perf_counter() - begun
    counted = len(trace_joint(build(spec)).calls)
    return PlannedStep(
        counted, len(made.layers), devices, seconds, tuple(phases.found), made.way, made.step_ms, made.bound_ms
    )


def show(found: PlannedStep, *, as_json: bool) -> None:
    """Prints it."""
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return
    print(f"{found.operators} operators in {found.layers} layers on {found.devices} devices: {found.seconds:.1f} s")
    for one in found.phases:
        print(f"{one.phase:40} {one.seconds:8.1f} s, of this process's cores {one.cpu_seconds:8.1f} s")
    print(f"{found.way}: {found.step_ms:.1f} ms a step, no plan below {found.bound_ms:.1f} ms")
