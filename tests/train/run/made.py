"""Plans that were made from numbers instead of measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bricolage.base.options import available_cores
from bricolage.device.device import Link
from bricolage.device.host import host
from bricolage.train.pipeline.pipeline_problem import PipelinePlan, PlannedLayer
from bricolage.train.pipeline.search import best_plans
from bricolage.train.run.document import FORMAT, PlanDevices, PlanOrigin, TrainingPlan
from bricolage.train.step.spec import Optimiser, StepSpec

HERE = str(Path(__file__).parent)
_ANY = PipelinePlan("one device", 1, 1, 1, 1, False, (0,), 1.0, 0.0, 0.0, 0.0, 1.0)


def plan(
    devices: int,
    module: str = "plain",
    batch: str = "batch",
    loss: str = "cross_entropy",
    gradient: float = 1e6,
    layers: int = 4,
) -> TrainingPlan:
    """Of the tests' Transformer on processes here; large gradients make a pipeline the best plan."""
    spec = StepSpec(
        f"code.py:{module}", f"code.py:{batch}", loss, batch_size=8, optimiser=Optimiser("adam"), folder=HERE
    )
    spec = replace(spec, arguments={"layers": layers})
    names = ["", *(f"layers.{number}" for number in range(1, layers))]
    parts = tuple(PlannedLayer(one, 1.0, 1.0, 1.0, 4096.0, 1e4, gradient, 4 * gradient) for one in names)
    link = Link(("0", "1"), 0.05, 50.0)
    where = PlanDevices(devices, True, "cpu", tuple(f"rank {n}" for n in range(devices)), link, 0, available_cores())
    origin = PlanOrigin("0", "0", str(host()), host().fingerprint(), 1)
    rough = TrainingPlan(FORMAT, origin, spec, where, parts, None, True, _ANY, "pipeline", (), 24.0, 1, 24.0, ())
    found = best_plans(rough.problem, ("1f1b", "gpipe", "chimera"))
    return replace(rough, chosen=found[0], runner_ups=tuple(found[1:]))
