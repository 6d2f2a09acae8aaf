"""Schedules of made plans: what sleeps side by side wins and is written, what cannot is told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

import bricolage
from bricolage.api.schedule import schedule
from bricolage.backends import registry
from bricolage.backends.interface import Claim, Growth, Kind, RegionModel, Resources, any_operator
from bricolage.backends.kernel import Call, Kernel
from bricolage.base.options import Options
from bricolage.cli.main import app
from bricolage.device.host import host
from bricolage.driver.plan_scheduling import Effort
from bricolage.errors import ForeignArtifact, MissingInput
from bricolage.plan import artifact
from bricolage.runtime.load import load
from bricolage.work.implementation import Assignment, Implementation, KernelConfig
from tests.graph.models import parse
from tests.runtime.made_plans import Quick, graph_of_size, made_bucket, made_plan

BODY = "a=Relu(x) b=Tanh(a) c=Neg(a) y=Add(b,c)"
"""A fork and a join."""
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
Y = np.tanh(np.maximum(X, 0)) - np.maximum(X, 0)
several_cores = pytest.mark.skipif(len(host().cores) < 2, reason="one core")


class _Resting(Kernel):
    """Computes, and then rests so that what runs beside it loses nothing."""

    def __init__(self, kernel: Kernel, seconds: float) -> None:
        self._kernel, self._seconds = kernel, seconds

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Call:
        call = self._kernel.bind(inputs, outputs)

        def both() -> None:
            call()
            time.sleep(self._seconds)

        return both

    def run(self, inputs: Sequence[object]) -> list[object]:
        return self._kernel.run(inputs)


class Layers(Quick):
    """Takes any region, and as long on one core as on all: so long for each of its operators."""

    name: ClassVar[str] = "layers"
    kind: ClassVar[Kind] = "engine"
    seconds: ClassVar[float] = 0.008

    def claims(self) -> Iterable[Claim]:
        grows = Growth(lambda _graph, _operator: None, limit=1, maximal=True)
        return [Claim("operator", any_operator(), lambda _graph, _operators: None, grows)]

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        return _Resting(super().compile(region, config, resources), self.seconds * len(region.model.graph))


class Sleeper(Quick):
    """As long on one core as on all."""

    name: ClassVar[str] = "sleeper"
    seconds: ClassVar[float] = 0.005

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        return _Resting(super().compile(region, config, resources), self.seconds)


@pytest.fixture(autouse=True)
def sleeper(backends: None) -> None:
    del backends  # they are known before
    registry.register("sleeper", f"{__name__}:Sleeper")


def saved(tmp_path: Path, *regions: int) -> Path:
    graph, one = graph_of_size(2, BODY), Implementation("sleeper")
    bucket = made_bucket(tmp_path / "run", graph, tuple(Assignment(region, one) for region in regions), {"n": 2})
    plan = made_plan(tmp_path / "run", bucket, options=Options(threads=len(host().cores)), body=BODY)
    artifact.save(plan, tmp_path / "run", tmp_path / "made.bricolage")
    return tmp_path / "made.bricolage"


@several_cores
def test_what_is_kept_is_written_and_runs(tmp_path: Path) -> None:
    out = tmp_path / "out.bricolage"
    found = schedule(saved(tmp_path, 0b0001, 0b0010, 0b0100, 0b1000), {"x": X}, out, Effort(3, 5))
    assert found.kept == out.exists() and found.error in (None, 0.0)
    assert found.lower_ms <= found.proposals[0].makespan_ms * (1 + 1e-9) <= found.sequential_ms * (1 + 2e-9)
    assert found.lower_ms <= found.new_b_2_ms * (1 + 1e-9) <= found.new_b_1_ms * (1 + 1e-8)
    methods = {one.method for one in found.proposals}
    assert methods == {"exact", "IOS", "CPR", "CPA", "co-run", "wavefront", "HEFT", "PEFT", "DUET", "sequential"}


@several_cores
@pytest.mark.slow
def test_branches_that_lose_nothing_side_by_side_run_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sleeper, "seconds", 0.1)
    out = tmp_path / "out.bricolage"
    found = schedule(saved(tmp_path, 0b0001, 0b0010, 0b0100, 0b1000), {"x": X}, out, Effort(5, 15))
    assert found.kept and found.speedup is not None and found.speedup.low > 1.0
    assert found.proposals[0].makespan_ms < found.sequential_ms
    fast = load(out)
    planned = fast.plan.buckets[0].program.schedule
    assert planned is not None and len(set(planned.cores)) > 1 and planned.speedup == found.speedup.value
    np.testing.assert_allclose(fast(X), Y, rtol=1e-6)
    spans = {span.step: span for span in fast.trace({"x": X}).spans}
    assert spans[1].start_ns < spans[2].end_ns and spans[2].start_ns < spans[1].end_ns, "the branches overlap"
    again = schedule(out, {"x": X}, tmp_path / "again.bricolage", Effort(3, 5))
    assert again.regions == 4, "a plan with a schedule is scheduled afresh"


@several_cores
@pytest.mark.slow
def test_optimize_ships_branches_side_by_side(tmp_path: Path) -> None:
    """The whole of a decision, with workers: 8 operators take 64 ms, side by side 40 ms."""
    registry.register("layers", f"{__name__}:Layers")
    body = "a = Relu(x) b = Tanh(a) c = Exp(b) d = Neg(c) e = Exp(a) f = Tanh(e) g = Neg(f) y = Add(d, g)"
    text = f'<ir_version: 8, opset_import: ["" : 18]> two (float[2,4] x) => (float[2,4] y) {{ {body} }}'
    options = Options(backends=("layers",), budget_s=150.0, rewrite=False)
    fast = bricolage.optimize(parse(text), options)
    bucket = fast.plan.buckets[0]
    (attempt,) = bucket.record.attempts
    assert "entered the race" in attempt.verdict and attempt.regions == 4
    assert bucket.program.schedule is not None and bucket.race.chosen.endswith("scheduled") and bucket.race.significant
    assert len(bucket.program.schedule.ms) == len(bucket.program.regions) == 4
    relu = np.maximum(X, 0)
    np.testing.assert_allclose(fast(X), -np.exp(np.tanh(relu)) - np.tanh(np.exp(relu)), rtol=1e-5)
    spans = {span.step: span for span in fast.trace({"x": X}).spans}
    assert spans[1].start_ns < spans[2].end_ns and spans[2].start_ns < spans[1].end_ns, "the branches overlap"


@several_cores
def test_a_chain_stays_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out.bricolage"
    found = schedule(saved(tmp_path, 0b0001, 0b1110), {"x": X}, out)
    assert not found.kept and not out.exists()
    assert found.lower_ms <= found.sequential_ms * (1 + 1e-9)


def test_one_region_has_nothing_beside_it(tmp_path: Path) -> None:
    found = schedule(saved(tmp_path, 0b1111), {"x": X}, tmp_path / "out.bricolage")
    assert found.regions == 1 and not found.proposals and not found.kept
    other = schedule(tmp_path / "made.bricolage", {"x": np.vstack([X, X])}, tmp_path / "out.bricolage")
    assert not other.proposals, "a shape that was not planned"


def test_bad_input_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, 0b0011, 0b1100)
    with pytest.raises(MissingInput):
        schedule(path, {}, tmp_path / "out.bricolage")
    monkeypatch.setattr("bricolage.api.schedule.foreign", lambda _plan: "it is another one")
    with pytest.raises(ForeignArtifact, match="it is another one"):
        schedule(path, {"x": X}, tmp_path / "out.bricolage")


def test_the_command_tells_every_method_and_its_bounds(tmp_path: Path) -> None:
    path, run = saved(tmp_path, 0b0001, 0b0010, 0b0100, 0b1000), CliRunner()
    np.savez(tmp_path / "x.npz", x=X)
    words = ["schedule", str(path), "--input", str(tmp_path / "x.npz"), "-o", str(tmp_path / "out.bricolage")]
    shown = run.invoke(app, words)
    assert shown.exit_code == 0, shown.stderr
    if len(host().cores) > 1:
        assert "no schedule takes less than" in shown.stdout and "CPR" in shown.stdout
    told = json.loads(run.invoke(app, [*words, "--json"]).stdout)
    assert told["regions"] == 4
