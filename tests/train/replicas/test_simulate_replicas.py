"""Replicas whose arithmetic is real and whose seconds are simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.replica_spec import LOCKSTEP, Method
from bricolage.train.replicas.replicas import ReplicasResult, train_replicas
from bricolage.train.replicas.simulate_replicas import describe_machines, simulate_replicas
from bricolage.train.replicas.step_times import ReplicaStepTimes, compute_exposed_exchange_s, measure_step_times
from bricolage.train.step.data import read_data
from bricolage.train.step.step import build
from tests.train.replicas.test_replicas import SPEC, alone

torch = pytest.importorskip("torch")
EIGHT = replace(SPEC, workers=8, steps=12)
MACHINES = describe_machines(8, 1e-3, 50.0, step_ms=4.0)
SYNCHRONOUS = (
    Method(),
    Method(wait_free=False),
    Method("bsp"),
    Method("bsp", servers=2),
    Method("local", period=1),
    Method(compression="powersgd", rank=16),
)


def simulated(method: Method) -> ReplicasResult:
    """A report of eight workers."""
    return simulate_replicas(EIGHT, MACHINES, method).report


def test_synchronous_methods_are_one_model_trained_alone_among_eight() -> None:
    wanted = alone(EIGHT)
    for method in SYNCHRONOUS:
        done = simulate_replicas(EIGHT, MACHINES, method)
        for parameter, other in zip(wanted, done.state().values(), strict=True):
            torch.testing.assert_close(
                other, parameter, rtol=1e-3, atol=1e-5, msg=lambda text, m=method: f"{m.label}: {text}"
            )
        assert done.report.samples == 12 * 8 * 8 and done.report.steps == 12 * 8 and done.report.simulated


@pytest.mark.slow
def test_processes_have_the_losses_and_bytes_of_a_simulation() -> None:
    few = replace(SPEC, workers=4, steps=6)
    machines = describe_machines(4, 1e-3, 50.0, step_ms=4.0)
    for method in (Method(), Method("bsp")):
        real, computed = train_replicas(few, method).report, simulate_replicas(few, machines, method).report
        assert computed.loss == pytest.approx(real.loss, rel=1e-4)
        assert (computed.samples, computed.steps, computed.sent_bytes) == (real.samples, real.steps, real.sent_bytes)
        assert computed.accuracy == pytest.approx(real.accuracy, abs=0.02)


@pytest.mark.parametrize(
    "method", [Method("asp"), Method("easgd", period=2), Method("adpsgd"), Method("gosgd", probability=0.5)]
)
def test_two_simulations_are_alike(method: Method) -> None:
    assert simulated(method) == simulated(method)


def test_a_step_takes_its_phases_and_its_messages() -> None:
    """By hand, steps of 4 ms. The server's link is a queue each way: in the first step of all gradients, then of all weights, while
    gradients come one by one as their workers had theirs."""
    size = len(Flat(build(SPEC.step).module)) * 4
    there, back, late = (size + 12) / 1e6, size / 1e6, 50e-6
    first, last = 4e-3 + 8 * there + late, 8 * back + late + there + late + back + late
    bsp = first + 11 * (8 * back + late + 4e-3 + there + late) + last
    assert simulated(Method("bsp", wait_free=False)).seconds == pytest.approx(bsp, rel=0.01)
    ring = 2 * 7 * (50e-6 + size / 8 / 1e6)
    assert simulated(Method(wait_free=False)).seconds / 12 == pytest.approx(4e-3 + ring, rel=1e-6)
    wait_free = simulated(Method()).seconds / 12
    assert wait_free == pytest.approx(4e-3 + ring, rel=1e-6), "one bucket leaves with the last gradient"


def test_who_does_not_wait_is_faster_with_a_straggler() -> None:
    late, fast = replace(EIGHT, steps=24, straggler_ms=40.0), describe_machines(8, 10.0, 0.0, step_ms=4.0)
    samples = {
        method.kind: simulate_replicas(late, fast, method).report.samples_s
        for method in (Method("asp"), Method("ssp"), Method("bsp"))
    }
    assert samples["asp"] > samples["ssp"] > samples["bsp"]
    assert samples["bsp"] == pytest.approx(8 * 8 / 0.044, rel=0.01), "each step takes as long as the slowest"


def test_all_other_methods_run_among_eight() -> None:
    for method in (
        Method("postlocal"),
        Method(compression="topk", density=0.1),
        Method(compression="powersgd", accordion=1),
        Method(similarity=0.9),
    ):
        report = simulated(method)
        assert report.loss is not None and report.seconds > 0 and method.kind in LOCKSTEP


def test_step_times() -> None:
    data = read_data(SPEC.step, SPEC.data)
    measured = measure_step_times(SPEC, Method(compression="powersgd", rank=1), data, 0)
    flat = Flat(build(SPEC.step).module)
    assert measured.forward_s > 0 and len(measured.gradients_s) == len(flat.sizes) and all(measured.gradients_s)
    assert (
        measured.update_s > 0 and measured.compression_s > 0 and min(measured.factors) <= 1.0 <= max(measured.factors)
    )
    given = ReplicaStepTimes.given(0.3, [1, 3])
    assert given.gradient_s == pytest.approx(0.3) and given.gradients_s == pytest.approx((0.05, 0.15))
    exposed = compute_exposed_exchange_s(ReplicaStepTimes.given(0.3, flat.sizes), flat, MACHINES.ring)
    assert exposed == pytest.approx(MACHINES.ring.all_reduce_ms(4 * len(flat)) / 1e3)
