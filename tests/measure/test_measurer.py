"""The measurer, on honest backends, on misbehaving ones, and on the real ones that are installed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import psutil
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.costs.database import Database
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.device.host import host
from bricolage.graph.extract import write_model
from bricolage.measure import fork_server
from bricolage.measure.candidate_job import Job
from bricolage.measure.measurer import Event, Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.rounds import compare_jobs
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, TimingPolicy
from bricolage.plan.program_step import Step
from bricolage.verify.compare import Deviation
from bricolage.verify.named_arrays import load_values, save_expected, save_tensors
from bricolage.verify.variations import Allowance, Variation
from bricolage.work.implementation import Implementation, KernelConfig

POLICY = TimingPolicy(rounds=7, most_rounds=14, seconds=5.0)


@pytest.fixture
def measurer(pool: Pool, tmp_path: Path) -> Iterator[Measurer]:
    with Database() as database:
        yield Measurer(database, pool, tmp_path, policy=POLICY, limits=Limits(60, 60), cores=2)


def task(
    directory: Path, *candidates: tuple[str, str], bound: float = 1e-6, elements: int = 1024, data: str = "these"
) -> RegionTask:
    region = relu_region(directory, "x", "y", elements)
    return RegionTask(
        vector(directory, ("x",), elements),
        vector(directory, ("y",), elements, rectified=True),
        bound,
        tuple(
            CandidateSpec(f"relu {elements}", (step(backend, name, region),), ("y",), 1, False, host())
            for backend, name in candidates
        ),
        data,
    )


def step(backend: str, name: str, path: Path) -> Step:
    return Step(Implementation(backend, KernelConfig(name or "f32")), path)


def named(costs: dict[CandidateSpec, Cost]) -> dict[str, Cost]:
    return {str(spec.steps[0].implementation).removesuffix(" f32"): cost for spec, cost in costs.items()}


def test_times_are_right_and_order_the_candidates(measurer: Measurer, tmp_path: Path) -> None:
    costs = named(measurer.measure([task(tmp_path, ("honest", "0.2"), ("twin", "0.4"), ("honest", "8"))]))
    for name, truth in (("honest 0.2", 0.2), ("twin 0.4", 0.4), ("honest 8", 8.0)):
        latency = costs[name].latency
        assert latency is not None and latency.low_ms >= truth
        assert latency.low_ms < truth * 4 + 1
        assert costs[name].error == 0.0
    assert costs["honest 0.2"].latency.samples >= 3  # type: ignore[union-attr]  # those that others disturbed do not count
    assert costs["honest 8"].latency.samples == POLICY.probe  # type: ignore[union-attr]


def test_what_is_known_is_not_measured_again(measurer: Measurer, tmp_path: Path) -> None:
    work = task(tmp_path, ("honest", "0.1"), ("raises", ""), ("refuses", ""))
    first = measurer.measure([work])
    events: list[Event] = []
    started = measurer.pool.worker
    measurer.pool.worker = None  # type: ignore[assignment, method-assign]
    assert measurer.measure([work, work], events.append) == first
    measurer.pool.worker = started  # type: ignore[method-assign]
    assert [(event.kind, event.done, event.total) for event in events] == [("known", n, 3) for n in (1, 2, 3)]


def test_every_rogue_gets_its_outcome_and_harms_nobody(
    measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bricolage.measure.pool._START_GRACE_S", 0.0)
    measurer.loader.limits = measurer.limits = Limits(compile_s=8.0, run_s=8.0)
    measurer.pool.memory_limit, measurer.pool.limited = 400 << 20, False
    rogues = {
        "segfaults": "crashed",
        "segfaults-later": "crashed",
        "hangs": "timed-out",
        "leaks": "out-of-memory",
        "raises": "failed",
        "refuses": "refused",
        "wrong": "wrong",
        "silent": "wrong",
        "exits": "crashed",
        "chatters": "ok",
        "honest": "ok",
    }
    costs = named(measurer.measure([task(tmp_path, *((name, "") for name in rogues))]))
    assert {name: cost.outcome for name, cost in costs.items()} == rogues
    for name, cost in costs.items():
        assert (cost.latency is None) == (cost.outcome != "ok")
        assert bool(cost.reason) == (cost.outcome != "ok")
        stored = measurer.database.get(measurer.key(task(tmp_path, (name, "")).candidates[0]))
        assert stored == (None if cost.outcome == "wrong" else replace(cost, error=None, excess=None))
        found = measurer.database.deviation(measurer.key(task(tmp_path, (name, "")).candidates[0]), "these")
        assert found == cost.deviation
    assert costs["wrong"].error == pytest.approx(0.01, rel=1e-3)
    assert "SIGSEGV" in costs["segfaults-later"].reason


def test_limits_are_found_only_where_they_decide(measurer: Measurer, tmp_path: Path) -> None:
    """An answer that every precision accepts needs no limits; one that is further off is judged by them, once for a region."""
    asked: list[str] = []

    def limits(own: float) -> Callable[[], dict[str, float]]:
        def found() -> dict[str, float]:
            asked.append("drawn")
            return {"y": own}

        return found

    def outcomes(own: float, *candidates: tuple[str, str], data: str) -> dict[str, str]:
        work = replace(task(tmp_path, *candidates, data=data), limits=limits(own))
        return {name: cost.outcome for name, cost in named(measurer.measure([work])).items()}

    assert outcomes(0.0, ("honest", ""), ("twin", ""), data="right") == {"honest": "ok", "twin": "ok"} and not asked
    off = {"honest": "ok", "wrong": "ok"}  # by 1e-2
    assert outcomes(2e-2, ("honest", ""), ("wrong", ""), data="accepted") == off and len(asked) == 1
    assert measurer.cached([(task(tmp_path, ("wrong", "")).candidates[0], "accepted")], 1e-6)[0].outcome == "ok"  # type: ignore[union-attr]
    assert outcomes(5e-3, ("wrong", ""), data="refused") == {"wrong": "wrong"} and len(asked) == 2
    assert outcomes(5e-3, ("wrong", ""), data="refused") == {"wrong": "wrong"} and len(asked) == 2
    assert not list(tmp_path.glob("outputs-*"))


def test_the_innocent_in_a_worker_that_crashes_are_measured_all_the_same(measurer: Measurer, tmp_path: Path) -> None:
    region = relu_region(tmp_path, "x", "y", 1024)
    both = (step("honest", "", region), step("segfaults", "", relu_region(tmp_path, "y", "z", 1024)))
    work = task(tmp_path, ("honest", "0.1"), ("honest", "0.2"))
    crash = CandidateSpec("two relus", both, ("z",), 1, False, host())
    jobs = [measurer.job(spec, work.inputs, None, 1e-6) for spec in (*work.candidates, crash)]
    for job in jobs:
        job.regime = crash.regime  # one worker for all
    measurer.loader.load(jobs)
    assert [job.ready for job in jobs] == [True, True, False]
    assert jobs[2].outcome == "crashed" and jobs[2].attempts == 2


@pytest.mark.skipif(len(host().cores) < 2, reason="one core")
def test_steps_side_by_side_are_measured_and_compared_like_any(measurer: Measurer, tmp_path: Path) -> None:
    first, last = host().cores[0], host().cores[-1]
    both = tuple(step("honest", "0.5", relu_region(tmp_path, "x", name, 1024)) for name in ("y", "z"))
    specs = [
        CandidateSpec(f"two relus on {cores}", both, ("y", "z"), 2, True, host(), cores)
        for cores in ((), ((first,), (last,)), ((10**6,), (last,)))
    ]
    expected = vector(tmp_path, ("y", "z"), 1024, rectified=True)
    costs = measurer.measure([RegionTask(vector(tmp_path, ("x",), 1024), expected, 1e-6, tuple(specs), "these")])
    assert [costs[spec].outcome for spec in specs] == ["ok", "ok", "failed"]
    assert costs[specs[1]].error == 0.0 and "1000000" in costs[specs[2]].reason


def test_a_worker_killed_from_outside_costs_the_candidate_nothing(measurer: Measurer, tmp_path: Path) -> None:
    work = task(tmp_path, ("killed", "2"), ("killed-later", ""), ("honest", "0.1"))
    costs = named(measurer.measure([work]))
    assert {name: cost.outcome for name, cost in costs.items()} == {
        "killed 2": "ok",
        "killed-later": "ok",
        "honest 0.1": "ok",
    }
    assert measurer.log.lost == 3 and not list(measurer.database.entries(failures=True))


def test_who_is_killed_again_and_again_is_given_up_and_nothing_is_remembered(
    measurer: Measurer, tmp_path: Path
) -> None:
    work = task(tmp_path, ("killed", "4"))
    (lost,) = measurer.measure([work]).values()
    assert lost.outcome == "lost" and lost.latency is None and "given up after 3 attempts" in lost.reason
    assert not list(measurer.database.entries())
    (found,) = measurer.measure([work]).values()
    assert found.outcome == "ok", "the next run tries again, and it is killed once more only"


def test_what_exceeds_the_user_s_own_limit_is_not_remembered(tmp_path: Path) -> None:
    with Database() as database, Pool(memory_limit=300 << 20) as pool:
        measurer = Measurer(database, pool, tmp_path, policy=POLICY, limits=Limits(60, 60), cores=1)
        (cost,) = measurer.measure([task(tmp_path, ("leaks", ""))]).values()
        assert cost.outcome == "out-of-memory" and measurer.log.lost == 1
        assert not list(database.entries()), "the next run may have another limit, or none"


def test_failures_that_may_have_been_bad_luck_are_tried_again_once_a_run(pool: Pool, tmp_path: Path) -> None:
    work = task(tmp_path, ("raises", ""), ("refuses", ""), ("honest", "0.1"))

    def measured(database: Database, retrying: bool) -> list[str]:
        """What a run measures afresh, of two tasks that are the same."""
        found = Measurer(database, pool, tmp_path, policy=POLICY, limits=Limits(10, 10), cores=2, retrying=retrying)
        events: list[Event] = []
        for _ in range(2):
            found.measure([work], events.append)
        return [event.spec.title for event in events if event.kind != "known"]

    with Database() as database:
        assert sorted(measured(database, False)) == ["honest", "raises", "refuses"]
        assert measured(database, False) == []
        assert measured(database, True) == ["raises"]


def test_a_wrong_answer_is_judged_by_the_bound_of_the_day(measurer: Measurer, tmp_path: Path) -> None:
    (strict,) = measurer.measure([task(tmp_path, ("wrong", ""))]).values()
    assert strict.outcome == "wrong" and strict.error == pytest.approx(0.01, rel=1e-3)
    (loose,) = measurer.measure([task(tmp_path, ("wrong", ""), bound=2e-2)]).values()
    assert loose.outcome == "ok" and loose.latency is not None
    (strict_again,) = measurer.measure([task(tmp_path, ("wrong", ""))]).values()
    assert strict_again.outcome == "wrong" and "1e-06" in strict_again.reason.replace("1.00e-06", "1e-06")


def test_other_inputs_are_compared_too(measurer: Measurer, tmp_path: Path) -> None:
    negative, nothing = -np.arange(1, 1025, dtype=np.float32), np.zeros(1024)
    save_tensors(tmp_path / "negative.npz", {"x": negative})
    save_expected(tmp_path / "zeros.npz", {"y": nothing}, {"y": 0.0})
    asked: list[str] = []

    def allowances() -> dict[str, Allowance]:
        asked.append("once")
        return {"y": Allowance(1e-6)}

    one = Variation("negative", tmp_path / "negative.npz", tmp_path / "zeros.npz", allowances)
    plain = task(tmp_path, ("honest", ""), ("blind", ""))
    costs = named(measurer.measure([replace(plain, variations=lambda: (one,))]))
    assert costs["honest"].outcome == "ok" and costs["honest"].latency is not None
    assert costs["blind"].outcome == "wrong" and "negative" in costs["blind"].reason
    assert asked == ["once"], "what is right needs no more evaluations"
    unseen = named(measurer.measure([replace(plain, data="without variations")]))
    assert unseen["blind"].outcome == "ok", "on the first inputs alone it is right"


def test_an_error_belongs_to_the_weights_and_inputs_that_it_was_seen_on(measurer: Measurer, tmp_path: Path) -> None:
    """The identity of a region is blind to weights: another model's must be compared, though its time is known."""
    (first,) = measurer.measure([task(tmp_path, ("honest", ""))]).values()
    events: list[Event] = []
    (other,) = measurer.measure([task(tmp_path, ("honest", ""), data="others")], events.append).values()
    assert events[0].kind == "measured" and other.latency == first.latency and other.error == 0.0
    (again,) = measurer.measure([task(tmp_path, ("honest", ""), data="others")], events.append).values()
    assert events[1].kind == "known" and again == other
    (wrong,) = measurer.measure([task(tmp_path, ("wrong", ""))]).values()
    assert wrong.outcome == "wrong"
    good = task(tmp_path, ("wrong", ""), data="others")
    expected = vector(tmp_path, ("y",), 1024, rectified=True)
    halved = {"y": load_values(expected)["y"] * 1.01}  # on these weights the answer would be right
    save_tensors(tmp_path / "halved.npz", halved)
    (right,) = measurer.measure([replace(good, expected=tmp_path / "halved.npz", bound=1e-4)]).values()
    assert right.outcome == "ok", "what was wrong for one model is not wrong for ever"


def test_a_time_of_a_busy_machine_is_measured_again(measurer: Measurer, tmp_path: Path) -> None:
    calm, busy = Latency(1.0, 0.98, 1.03, 7), Latency(1.7, 1.4, 2.2, 7)
    (spec,) = task(tmp_path, ("honest", "")).candidates
    for alone in (True, False):
        whole = replace(spec, alone=alone)
        measurer.database.put(measurer.key(whole), Cost("ok", calm))
        measurer.database.put_deviation(measurer.key(whole), "these", Deviation(0.0, 0.0))
        assert measurer.cached([(whole, "these")], 1e-6)[0] is not None
        measurer.database.put(measurer.key(whole), Cost("ok", busy))
        assert (measurer.cached([(whole, "these")], 1e-6)[0] is None) == alone, (
            "what is small is hardly ever timed to a narrow interval"
        )


def test_a_new_version_and_a_longer_limit_try_again(measurer: Measurer, tmp_path: Path) -> None:
    (spec,) = task(tmp_path, ("honest", "")).candidates
    measurer.database.put(measurer.key(spec), Cost("timed-out", compile_s=30.0, reason="slow"))
    assert measurer.cached([(spec, "these")], 1e-6)[0] is None  # the limit is 60 s now
    measurer.database.put(measurer.key(spec), Cost("timed-out", compile_s=60.0, reason="slow"))
    assert measurer.cached([(spec, "these")], 1e-6)[0] is not None
    measurer._versions["honest"] = "2.0"
    assert measurer.cached([(spec, "these")], 1e-6)[0] is None


def test_what_is_compiled_when_the_time_ends_is_timed(
    measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, over = measurer.loader.load, []

    def loaded(*given: Any) -> None:
        load(*given)
        over.append(True)

    monkeypatch.setattr(measurer.loader, "load", loaded)
    tasks = [task(tmp_path, ("honest", f"0.{n}")) for n in range(1, 9)] + [
        task(tmp_path, ("twin", f"0.{n}")) for n in range(1, 9)
    ]
    costs = measurer.measure(tasks, should_stop=lambda: bool(over))
    assert 0 < len(costs) < len(tasks) and all(cost.outcome == "ok" for cost in costs.values())
    assert len(over) == 1, "nothing is compiled after the end"


def test_stopping_keeps_what_is_finished(measurer: Measurer, tmp_path: Path) -> None:
    tasks = [task(tmp_path, ("honest", "0.1"), ("twin", "0.1"), elements=1024 + n) for n in range(30)]
    events: list[Event] = []
    costs = measurer.measure(tasks, events.append, should_stop=lambda: len(events) >= 10)
    assert 10 <= len(costs) < 60 and len(costs) == len(events)
    assert len(list(measurer.database.entries())) == len(costs)
    assert all(cost.outcome == "ok" for cost in costs.values())


def test_a_keyboard_interrupt_keeps_what_is_finished_and_ends_the_workers(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.done == 3:
            raise KeyboardInterrupt

    with Database() as database, pytest.raises(KeyboardInterrupt), Pool() as pool:
        measurer = Measurer(database, pool, tmp_path, policy=POLICY)
        measurer.measure([task(tmp_path, ("honest", f"0.{n}")) for n in range(1, 9)], interrupt)
    family = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    servers = [one for one in family if fork_server.FLAG in one.cmdline() and one.ppid() == os.getpid()]
    workers = [one for one in family if "bricolage.measure" in one.cmdline()]
    assert servers and {one.pid for one in workers} == {one.pid for one in servers}
    with Database() as database:
        assert len(list(database.entries())) == 3


def test_a_hang_is_left_behind_when_time_is_up(measurer: Measurer, tmp_path: Path) -> None:
    start = time.monotonic()
    costs = measurer.measure([task(tmp_path, ("hangs", ""))], should_stop=lambda: time.monotonic() - start > 1.5)
    assert costs == {} and time.monotonic() - start < 4


def test_near_ties_get_more_rounds_and_others_do_not(
    measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: dict[str, int] = {}
    disturbed: list[bool] = []

    def noted(pool: Pool, jobs: list[Job], *rest: Any) -> set[str]:
        found = compare_jobs(pool, jobs, *rest)
        for job in jobs:
            rounds[job.spec.steps[0].implementation.config.name] = len(job.rounds)
            disturbed.extend(job.disturbed)
        return found

    monkeypatch.setattr("bricolage.measure.measurer.compare_jobs", noted)
    measurer.policy = TimingPolicy(rounds=6, most_rounds=24, hopeless=100.0, seconds=600.0)
    costs = named(measurer.measure([task(tmp_path, ("honest", "0.3"), ("twin", "0.30"), ("honest", "15"))]))
    one, two = (costs[name].latency for name in ("honest 0.3", "twin 0.30"))
    assert one is not None and two is not None
    assert rounds["15"] == 6 and (any(disturbed) or rounds["0.3"] == rounds["0.30"])
    decided = not one.overlaps(two) or max(one.width, two.width) <= 0.02
    assert decided or rounds["0.3"] == 24
    assert costs["honest 0.3"].noisy == costs["twin 0.30"].noisy == (not decided)
    assert not costs["honest 15"].noisy


# --- real backends --------------------------------------------------------------------------------------------------


def installed() -> list[str]:
    return [name for name in ("onnxruntime", "openvino") if isinstance(registry.get(name).status(), Available)]


def matmul_relu(directory: Path, size: int) -> RegionTask:
    """MatMul with a constant, then Relu, as one region."""
    path = directory / f"matmul-{size}.onnx"
    generator = np.random.default_rng(size)
    weight = generator.standard_normal((size, size)).astype(np.float32)
    x = generator.standard_normal((4, size)).astype(np.float32)
    kind = ir.TensorType(ir.DataType.FLOAT)
    value = ir.Value(name="x", shape=ir.Shape([4, size]), type=kind)
    constant = ir.Value(name="w", shape=ir.Shape([size, size]), type=kind, const_value=ir.tensor(weight, name="w"))
    middle = ir.Value(name="m", shape=ir.Shape([4, size]), type=kind)
    product = ir.node("MatMul", [value, constant], outputs=[middle])
    result = ir.node("Relu", [middle], outputs=[ir.Value(name="y", shape=ir.Shape([4, size]), type=kind)])
    graph = ir.Graph([value], result.outputs, nodes=[product, result], initializers=[constant], opset_imports={"": 18})
    write_model(ir.Model(graph, ir_version=10), path)
    save_tensors(directory / f"in-{size}.npz", {"x": x})
    save_tensors(directory / f"out-{size}.npz", {"y": np.maximum(x.astype(np.float64) @ weight.astype(np.float64), 0)})
    candidates = tuple(
        CandidateSpec(
            f"matmul {size}",
            (Step(Implementation(name, registry.get(name).configs("highest", host())[0]), path),),
            ("y",),
            1,
            False,
            host(),
        )
        for name in installed()
    )
    return RegionTask(directory / f"in-{size}.npz", directory / f"out-{size}.npz", 1e-6, candidates, "these")


@pytest.mark.skipif(not installed(), reason="no engine is installed")
def test_real_engines_are_measured(pool: Pool, tmp_path: Path) -> None:
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path, policy=POLICY)
        tasks = [matmul_relu(tmp_path, 32), matmul_relu(tmp_path, 2048)]
        costs = measurer.measure(tasks)
        assert len(costs) == 2 * len(installed())
        for small, large in zip(tasks[0].candidates, tasks[1].candidates, strict=True):
            assert costs[small].outcome == costs[large].outcome == "ok", costs[small].reason
            assert (costs[large].error or 1) < 1e-6
            # 4 KiB of weights against 16 MiB, which no cache holds: no noise makes up for a factor of ten.
            assert (costs[small].ms or 0) < (costs[large].ms or 0)
        assert measurer.measure(tasks) == costs


@pytest.mark.skipif("onnxruntime" not in installed(), reason="needs ONNX Runtime")
def test_shapes_that_are_open_until_the_run_are_measured_too(pool: Pool, tmp_path: Path) -> None:
    kind = ir.TensorType(ir.DataType.FLOAT)
    value = ir.Value(name="x", shape=ir.Shape(["n", 4]), type=kind)
    node = ir.node("Relu", [value], outputs=[ir.Value(name="y", shape=ir.Shape(["n", 4]), type=kind)])
    path = tmp_path / "open.onnx"
    write_model(ir.Model(ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 18}), ir_version=10), path)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)
    save_tensors(tmp_path / "in.npz", {"x": x})
    save_tensors(tmp_path / "out.npz", {"y": np.maximum(x, 0).astype(np.float64)})
    spec = CandidateSpec("open relu", (step("onnxruntime", "f32", path),), ("y",), 1, True, host())
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path, policy=POLICY)
        (cost,) = measurer.measure(
            [RegionTask(tmp_path / "in.npz", tmp_path / "out.npz", 1e-6, (spec,), "these")]
        ).values()
    assert cost.outcome == "ok" and cost.error == 0.0 and (cost.ms or 0) > 0, cost.reason


def test_what_was_measured_beside_others_in_an_earlier_run_is_measured_again(
    measurer: Measurer, tmp_path: Path
) -> None:
    spec = task(tmp_path, ("honest", "1")).candidates[0]
    key, bad = measurer.key(spec), Cost("ok", Latency(2.0, 1.0, 3.0, 7), disturbed=True)
    measurer.database.put(key, bad)
    measurer.database.put_deviation(key, "these", Deviation(0.0, 0.0))
    assert measurer.cached([(spec, "these")], 1e-6)[0] is None
    assert [cost.ms for cost in measurer.recorded(spec)] == [2.0, 2.0] and measurer.earlier[spec].disturbed
    measurer.finished.add(key)
    again = measurer.cached([(spec, "these")], 1e-6)[0]
    assert again is not None and again.disturbed, "in this run it is the best that there is"
    measurer.finished.clear()
    measurer.database.put(key, replace(bad, disturbed=False))
    calm = measurer.cached([(spec, "these")], 1e-6)[0]
    assert calm is not None and not calm.disturbed
    assert not bad.better_sampled_than(replace(bad, disturbed=False, latency=Latency(2.0, 1.0, 3.0, 3)))
