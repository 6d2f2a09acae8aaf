"""A real Ray cluster of processes on this machine, in which every node passes for a machine of its own: it has a cache folder of
its own. Nodes die, hang, come back and are of another device class."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base import sealed
from bricolage.base.cache import compiled_directory, machine_id
from bricolage.base.deadline import Deadline
from bricolage.costs.database import Database
from bricolage.costs.entries import Cost
from bricolage.device.host import host
from bricolage.errors import MissingLibrary, NoMeasuringNode, UnreachableCluster
from bricolage.measure.measurer import Event, Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, TimingPolicy
from bricolage.plan.program_step import Step
from bricolage.tune.kernel_search import Snapshot
from bricolage.tune.kernel_tuner import KernelTuner
from bricolage.verify.named_arrays import save_expected
from bricolage.work.implementation import Implementation, KernelConfig
from tests.measure import rogues
from tests.ray_nodes import ROOT, imports, ray_network

ray = pytest.importorskip("ray", reason="ray is not installed")

from bricolage.measure.scale_out.ray_nodes import Cluster  # noqa: E402

POLICY = TimingPolicy(rounds=2, most_rounds=2, seconds=2.0)
Machines = Callable[..., Any]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Adds nodes to a cluster; the first call starts it."""
    folder = tmp_path_factory.mktemp("machines")
    with ray_network() as started:

        def add(name: str, **variables: str) -> Any:
            own = {"BRICOLAGE_CACHE": str(folder / name), **imports()}
            return started.add_node(num_cpus=1, env_vars={**own, **variables})

        add.address = started.address  # type: ignore[attr-defined]
        add.remove = started.remove_node  # type: ignore[attr-defined]
        yield add


@pytest.fixture
def machines(network: Any) -> Iterator[Machines]:
    """Nodes for one test."""
    mine: list[Any] = []

    def add(name: str, **variables: str) -> Any:
        mine.append(network(name, **variables))
        return mine[-1]

    add.address = network.address  # type: ignore[attr-defined]

    def remove(node: Any) -> None:
        mine.remove(node)
        network.remove(node)

    add.remove = remove  # type: ignore[attr-defined]
    yield add
    while mine:
        remove(mine[-1])


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(memory_limit=1 << 30) as made:
        yield made


def measurer(database: Database, pool: Pool, folder: Path) -> Measurer:
    return Measurer(database, pool, folder, policy=POLICY, limits=Limits(60, 60), cores=2)


def task(folder: Path, elements: int, *candidates: str, data: str = "these") -> RegionTask:
    """A region of its own size, to be run by backends, written "name config"."""
    region = relu_region(folder, "x", "y", elements)
    made = (word.partition(" ") for word in candidates)
    specs = tuple(
        CandidateSpec(
            f"relu {elements}",
            (Step(Implementation(name, KernelConfig(config or "f32")), region),),
            ("y",),
            1,
            False,
            host(),
        )
        for name, _, config in made
    )
    inputs, expected = vector(folder, ("x",), elements), vector(folder, ("y",), elements, rectified=True)
    return RegionTask(inputs, expected, 1e-6, specs, data)


def rows(database: Database, *, lasting: bool = False) -> Mapping[str, tuple[str, float]]:
    """Who measured what, and when, by region and configuration; where it is `lasting`, without what later decisions measure again,
    since others disturbed it."""
    return {
        f"{one.key.region} {one.key.backend} {one.key.config}": (one.machine, one.cost.date)
        for one in database.entries()
        if not (lasting and one.cost.disturbed)
    }


def test_other_machines_measure_and_say_who_they_are(machines: Any, pool: Pool, tmp_path: Path) -> None:
    machines("one"), machines("two")
    tasks = [task(tmp_path, elements, "honest 0.1", "honest 1", "refuses", "wrong") for elements in (64, 128)]
    cluster = Cluster(machines.address, host())
    pool.scale_out(cluster)
    there = {what.machine for what, measures in cluster.describe() if measures}
    assert len(there) == 2 and machine_id() not in there
    events: list[Event] = []
    with Database() as database:
        costs = measurer(database, pool, tmp_path).measure(tasks, events.append)
        assert [cost.outcome for cost in costs.values()] == ["ok", "ok", "refused", "wrong"] * 2
        assert all(cost.foreign for cost in costs.values()) and len(events) == 8
        assert {machine for machine, _ in rows(database).values()} <= there
        assert len(rows(database)) == 6  # what is wrong on these weights is no cost
        first = tasks[0].candidates[0]
        assert database.deviation(measurer(database, pool, tmp_path).key(first), "these") is None
        # Another decision asks again, since an answer was never compared here; the machines know.
        again = measurer(database, pool, tmp_path).measure(tasks)
        lasting = [spec for spec, cost in costs.items() if cost.outcome == "ok" and not cost.disturbed]
        assert [again[spec].date for spec in lasting] == [costs[spec].date for spec in lasting]
        assert all(cost.foreign for cost in again.values())
    assert not list(tmp_path.glob("cache/costs*-wal"))


@pytest.mark.slow
def test_within_a_decision_nothing_is_asked_twice(machines: Any, pool: Pool, tmp_path: Path) -> None:
    machines("one")
    work = task(tmp_path, 64, "honest 0.1", "wrong", "raises")
    pool.scale_out(Cluster(machines.address, host()))
    with Database() as database:
        mine = measurer(database, pool, tmp_path)
        first = mine.measure([work])
        assert {cost.outcome for cost in first.values()} == {"ok", "wrong", "failed"}
        for spec, cost in first.items():
            known = mine.cached([(spec, work.data)], work.bound)[0]
            assert known is not None and known.outcome == cost.outcome


@pytest.mark.slow
def test_limits_of_rounding_are_asked_for_where_they_decide(machines: Any, pool: Pool, tmp_path: Path) -> None:
    machines("one")
    honest = task(tmp_path, 64, "honest 0.1", "wrong")
    asked: list[int] = []

    def limits() -> Mapping[str, float]:
        asked.append(1)
        return {"y": 10.0}  # whatever the answer, rounding explains it

    expected = tmp_path / "expected.npz"
    from bricolage.verify.named_arrays import load_values

    save_expected(expected, load_values(honest.expected), {"y": 0.0})
    work = RegionTask(honest.inputs, expected, honest.bound, honest.candidates, "those", limits)
    pool.scale_out(Cluster(machines.address, host()))
    with Database() as database:
        costs = measurer(database, pool, tmp_path).measure([work])
    assert [cost.outcome for cost in costs.values()] == ["ok", "ok"] and asked
    assert all(cost.foreign for cost in costs.values())


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing_that_was_finished(machines: Any, pool: Pool, tmp_path: Path) -> None:
    machines("one"), machines("two")
    tasks = [task(tmp_path, elements, "honest 1", "twin 1") for elements in range(64, 72)]
    cluster = Cluster(machines.address, host())
    pool.scale_out(cluster)
    victim = cluster.describe()[0][0]
    before: dict[str, tuple[str, float]] = {}
    with Database() as database:

        def note(event: Event) -> None:
            if not before:
                before.update(rows(database))
                os.kill(victim.pid, signal.SIGKILL)

        costs = measurer(database, pool, tmp_path).measure(tasks, note)
        after = rows(database)
    assert len(costs) == 16 and {cost.outcome for cost in costs.values()} == {"ok"}
    assert before and all(after[key] == value for key, value in before.items())
    assert cluster.lost >= 1
    assert victim.pid not in {what.pid for what, _ in cluster.describe()}


@pytest.mark.slow  # who does what when a node is gone is tested without Ray (test_dispatch.py)
def test_the_work_of_a_node_that_goes_away_is_done_by_others(machines: Any, pool: Pool, tmp_path: Path) -> None:
    nodes = [machines("one"), machines("two")]
    tasks = [task(tmp_path, elements, "honest 1") for elements in range(64, 70)]
    cluster = Cluster(machines.address, host())
    pool.scale_out(cluster)
    with Database() as database:

        def note(event: Event) -> None:
            if len(nodes) == 2:
                machines.remove(nodes.pop())

        costs = measurer(database, pool, tmp_path).measure(tasks, note)
    assert len(costs) == 6 and {cost.outcome for cost in costs.values()} == {"ok"}


@pytest.mark.slow
def test_without_any_node_left_the_rest_is_measured_here(machines: Any, pool: Pool, tmp_path: Path) -> None:
    nodes = [machines("one")]
    tasks = [task(tmp_path, elements, "honest 1") for elements in range(64, 72)]
    pool.scale_out(Cluster(machines.address, host()))
    with Database() as database:

        def note(event: Event) -> None:
            if nodes:
                machines.remove(nodes.pop())

        costs = measurer(database, pool, tmp_path).measure(tasks, note)
        assert len(costs) == 8 and {cost.outcome for cost in costs.values()} == {"ok"}
        assert machine_id() in {machine for machine, _ in rows(database).values()}


@pytest.mark.slow
def test_a_node_that_hangs_gets_company_and_its_late_results_are_dropped(
    machines: Any, pool: Pool, tmp_path: Path
) -> None:
    machines("one"), machines("two")
    cluster = Cluster(machines.address, host())
    pool.scale_out(cluster)
    sleeper = psutil.Process(cluster.describe()[0][0].pid)
    tasks = [task(tmp_path, elements, "honest 0.1") for elements in range(64, 70)]
    with Database() as database:
        mine = measurer(database, pool, tmp_path)
        sleeper.suspend()
        try:
            costs = mine.measure(tasks)
        finally:
            sleeper.resume()
        assert len(costs) == 6 and {cost.outcome for cost in costs.values()} == {"ok"}
        assert cluster.duplicates >= 1
        known = rows(database)
        end = time.monotonic() + 30.0
        while not cluster.dropped and time.monotonic() < end:
            mine.measure([task(tmp_path, 100 + int(end - time.monotonic()), "honest 0.1")])
        assert cluster.dropped >= 1
        assert all(rows(database)[key] == value for key, value in known.items())


@pytest.mark.slow
def test_a_node_of_another_device_class_compiles_and_never_measures(
    machines: Any, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = registry.get("native")
    status = native.status()
    if not isinstance(status, Available) or host().architecture != "x86_64":
        pytest.skip("this needs the native engine on x86-64")
    machines("other", BRICOLAGE_ISA="avx2")
    with pytest.raises(NoMeasuringNode, match="another device"):
        Cluster(machines.address, host())
    machines("like")
    cluster = Cluster(machines.address, host())
    pool.scale_out(cluster)
    assert sorted(measures for _, measures in cluster.describe()) == [False, True]
    device, folder = host(), compiled_directory(host().fingerprint(), "native", status.version)
    spec, other = (task(tmp_path, elements, "native f32").candidates[0] for elements in (4096, 8192))
    only = next(node for node in cluster._members.ready if not node.alike)
    monkeypatch.setattr(
        cluster, "_may_compile", lambda item, node: node is only and Cluster._may_compile(cluster, item, node)
    )
    assert cluster.compile([spec, other], 60.0, lambda: False) == 2
    made = [path for path in folder.iterdir() if path.name.startswith("native-")]
    assert len(made) == 2 and all(map(sealed.intact, made))
    with Database() as database:  # what it has compiled for this device is what runs here
        here = CandidateSpec(spec.region_key, spec.steps, spec.outputs, 1, True, device)
        work = task(tmp_path, 4096, "native f32")
        own = RegionTask(work.inputs, work.expected, work.bound, (here,), work.data)
        costs = measurer(database, pool, tmp_path).measure([own])
    assert costs[here].outcome == "ok" and not costs[here].foreign
    assert [path for path in folder.iterdir() if path.name.startswith("native-")] == made


DRIVER = """
import sys
from pathlib import Path
from bricolage.device.host import host
from bricolage.costs.database import Database
from bricolage.measure.pool import Pool
from bricolage.measure.scale_out.ray_nodes import Cluster
from tests.measure import rogues
from tests.ray_nodes import ROOT, imports, ray_network
from tests.measure.scale_out.test_ray_nodes import measurer, task
rogues.register_all()
folder, address = Path(sys.argv[1]), sys.argv[2]
with Database() as database, Pool(memory_limit=1 << 30) as pool:
    pool.scale_out(Cluster(address, host()))
    tasks = [task(folder, elements, "honest 1") for elements in range(64, 80)]
    costs = measurer(database, pool, folder).measure(tasks, lambda event: print(event.kind, flush=True))
    print(len(costs), {cost.outcome for cost in costs.values()}, flush=True)
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_where_it_was(machines: Any, tmp_path: Path) -> None:
    machines("one")
    path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-c", DRIVER, str(tmp_path), machines.address]
    first = subprocess.Popen(command, env=path, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert first.stdout is not None
    for _ in range(4):
        assert first.stdout.readline() == "measured\n"
    first.kill()
    first.communicate()
    with Database() as database:
        before = rows(database, lasting=True)
        assert 4 <= len(rows(database)) < 16
    second = subprocess.run(
        command, env=path, stdout=subprocess.PIPE, text=True, check=True, timeout=120, encoding="utf-8"
    )
    assert second.stdout.splitlines()[-1] == "16 {'ok'}"
    with Database() as database:
        after = rows(database)
    assert len(after) == 16
    assert all(after[key] == value for key, value in before.items())


@pytest.mark.slow
def test_trials_of_kernels_are_spread_and_kept_by_machine(
    machines: Any, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides is timed here; a machine that is lost in the middle costs nothing."""
    lost = machines("one")
    machines("two")
    step = Step(Implementation("tunes"), relu_region(tmp_path, "x", "y", 1024))
    cluster = Cluster(machines.address, host())
    pool.scale_out(cluster)
    there = {what.machine for what, measures in cluster.describe() if measures}
    seen: list[Snapshot] = []

    def told(snapshot: Snapshot) -> None:
        seen.append(snapshot)
        if len(seen) == 1:
            machines.remove(lost)

    with Database() as database:
        own = measurer(database, pool, tmp_path)
        found = KernelTuner(own, host(), 1).search(step, "a relu", "1.0", Deadline(90.0), told)
        trials = [json.loads(line)["trial"] for line in database.export_lines() if '"trial"' in line]
    assert found.tuned.implementation.config == KernelConfig("f32", (("0.n", 5), ("1.n", 5)))
    assert sum(task.trials for task in found.tuned.tasks) == 13, "each choice once, but for the timing that decides"
    assert len({json.dumps([trial["key"]["workload"], trial["record"]["choice"]]) for trial in trials}) == 13
    assert {trial["machine"] for trial in trials} & there, "others timed them"
    assert {line.split()[-1] for line in rogues.noted("tried")} <= {"21", "7"}


def test_a_cluster_that_is_not_there_is_said() -> None:
    with pytest.raises(UnreachableCluster, match="127.0.0.1:1"):
        Cluster("127.0.0.1:1", host())


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingLibrary, match="pip install 'ray"):
        Cluster("local", host())


def test_costs_of_a_decision_on_processes_of_this_machine_are_its_own(tmp_path: Path) -> None:
    """What `--ray local` starts compiles; timing stays where it was. It comes last: Ray takes this process for that cluster's
    ever after."""
    from bricolage.base.options import Options
    from bricolage.driver.context import open_pool

    ending = signal.getsignal(signal.SIGTERM)
    with open_pool(Options(ray="local")) as pool, Database() as database:
        assert signal.getsignal(signal.SIGTERM) is ending, "Ray took the signal that ends a command"
        assert pool.cluster is not None and [measures for _, measures in pool.cluster.describe()] == [False]
        costs: dict[CandidateSpec, Cost] = measurer(database, pool, tmp_path).measure(
            [task(tmp_path, 64, "honest 0.1")]
        )
        assert [(cost.outcome, cost.foreign) for cost in costs.values()] == [("ok", False)]
        assert {machine for machine, _ in rows(database).values()} == {machine_id()}
