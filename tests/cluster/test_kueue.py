"""The admission-check controller against a server that keeps Kueue's resources."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from bricolage.cli.main import app
from bricolage.cluster.estimates import Rolling
from bricolage.cluster.kueue.admission_check import learn_durations, verdicts
from bricolage.cluster.kueue.controller import CONTROLLER, KueueController
from bricolage.cluster.kueue.objects import KueueState, quantity, state_of
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.errors import KueueMissing, KueueNoChecks, KueueUnavailable
from tests.cluster.kueue_server import GPU, Kueue, date, served

NOW = 1_800_000_000.0


def controller(host: str, policy: str = "sjf", **more: Any) -> KueueController:
    pytest.importorskip("kubernetes", reason="the package `kubernetes` is not installed")
    from bricolage.cluster.kueue.api import KueueClient

    return KueueController(KueueClient(host=host), policy, every_s=5.0, **more)


@pytest.fixture(params=["v1beta2", "v1beta1"])
def kueue(request: pytest.FixtureRequest) -> Kueue:
    found = Kueue(request.param)
    found.check("policy", CONTROLLER)
    found.check("other", "somebody.else/check")
    found.queue("main", {"a100": 4}, "policy")
    return found


@pytest.fixture
def host(kueue: Kueue) -> Iterator[str]:
    with served(kueue) as address:
        yield address


def history(kueue: Kueue, **seconds: int) -> None:
    """Workloads that have ended, by the name of their job."""
    for name, took in seconds.items():
        rows = [
            {"type": kind, "status": "True", "reason": "Succeeded", "lastTransitionTime": date(1_700_000_000 + at)}
            for kind, at in (("QuotaReserved", 0), ("Admitted", 0), ("Finished", took))
        ]  # fmt: skip
        kueue.workload(f"{name}-1", 4, "main")
        kueue.put("workloads", f"{name}-1", {**kueue.get(f"{name}-1"), "status": {"conditions": rows}}, "team")


def test_whose_turn_it_is_gets_in(kueue: Kueue, host: str) -> None:
    """Kueue goes by creation; the policy lets the shortest in first."""
    history(kueue, long=3600, short=60)
    kueue.workload("long-2", 4, "main")
    kueue.reconcile()
    kueue.workload("short-2", 4, "main")
    kueue.reconcile()
    found = controller(host)
    found.decide(found.look())
    assert kueue.state("long-2") == "Retry" and kueue.state("short-2") == ""
    row = kueue.get("long-2")["status"]["admissionChecks"][0]
    assert row["message"].startswith("team/short-2 comes first under sjf; it is expected to start in 1 min")
    check = kueue.objects["admissionchecks", "", "policy"]
    assert [one["type"] for one in check["status"]["conditions"]] == ["Active"]
    assert "status" not in kueue.objects["admissionchecks", "", "other"], (
        "the check of another controller is left alone"
    )
    kueue.reconcile()
    found.decide(found.look())
    kueue.reconcile()
    assert [row["type"] for row in kueue.get("short-2")["status"]["conditions"]] == ["QuotaReserved", "Admitted"]
    assert kueue.state("long-2") == "", "it has no quota while the other one runs"
    assert found.decide(found.look()) == [], "who runs stays, and nothing is written twice"
    kueue.finish("short-2")
    kueue.reconcile()
    found.decide(found.look())
    assert kueue.state("long-2") == "Ready"


def test_a_controller_that_runs(kueue: Kueue, host: str) -> None:
    """Through conflicts, an API that is away for a while, and a watch that is too old."""
    told: list[str] = []
    found = controller(host, "fifo", told=told.append)
    stop = threading.Event()
    thread = threading.Thread(target=found.run, args=(stop.is_set, lambda _: None), daemon=True)
    kueue.refuses["PATCH w0"] = 409
    kueue.workload("w0", 3, "main")
    kueue.reconcile()
    thread.start()
    until(lambda: any("has changed meanwhile" in line for line in told))
    kueue.put("workloads", "w0", kueue.get("w0"), "team")
    until(lambda: kueue.state("w0") == "Ready")
    kueue.reconcile()
    kueue.forget()
    until(lambda: any("listed anew" in line for line in told))
    kueue.refuses["GET workloads"] = 503
    kueue.forget()
    kueue.workload("w1", 1, "main")
    kueue.reconcile()
    until(lambda: kueue.state("w1") == "Ready")
    kueue.workload("cpu", 0, "main")
    kueue.workload("w2", 2, "main")
    kueue.reconcile()
    assert kueue.state("w2") == "", "Kueue gave it no quota"
    stop.set()
    kueue.finish("w0")
    thread.join(10)
    assert not thread.is_alive()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_command(kueue: Kueue, host: str) -> None:
    pytest.importorskip("kubernetes", reason="the package `kubernetes` is not installed")
    kueue.workload("w0", 3, "main")
    kueue.reconcile()
    words = ["cluster", "kueue", "--policy", "easy", "--server", host, "--times", "1", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "workload": "team/w0",
        "check": "policy",
        "state": "Ready",
        "message": "its turn under easy",
    }
    done = CliRunner().invoke(app, [*words, "--controller", "nobody"])
    assert done.exit_code == 2 and "no AdmissionCheck has the controllerName 'nobody'" in done.output


def test_what_is_not_there(kueue: Kueue, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KueueUnavailable, match="serves none of"):
        kueue.version = "v2"
        controller(host).look()
    with pytest.raises(KueueUnavailable, match="Connection"):
        controller("http://127.0.0.1:9").look()
    kueue.version = "v1beta2"
    with pytest.raises(KueueNoChecks):
        controller(host, controller="nobody").look()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from bricolage.cluster.kueue.api import KueueClient

    monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)
    with pytest.raises(KueueMissing, match="pip install"):
        KueueClient(host="http://127.0.0.1:9")


def made(*names: str, quotas: dict[str, int], reserve: bool = True, **gpus: int) -> KueueState:
    """What is known of workloads with so many devices each, once Kueue has looked at them."""
    kueue = Kueue()
    kueue.queue("main", quotas, "policy")
    for number, (name, count) in enumerate(gpus.items()):
        kueue.workload(name, count, "main")
        kueue.objects["workloads", "team", name]["metadata"]["creationTimestamp"] = f"2027-01-15T07:00:{number:02d}Z"
    if reserve:
        kueue.reconcile()
    rows = {
        plural: [one for (kind, _, _), one in kueue.objects.items() if kind == plural]
        for plural in ("workloads", "clusterqueues", "localqueues")
    }
    return state_of(rows["workloads"], rows["clusterqueues"], rows["localqueues"], frozenset({"policy"}), GPU, NOW)


def test_verdicts() -> None:
    state = made(quotas={"a100": 4, "t4": 2}, w0=3, w1=2, w2=2, w3=9)
    assert [(one.key, one.flavor, one.reserved) for one in state.workloads] == [
        ("team/w0", "a100", True), ("team/w1", "t4", True), ("team/w2", "", False), ("team/w3", "", False),
    ]  # fmt: skip
    found = verdicts(state, find_policy("fifo"), Rolling(), draws=2)
    assert [(one.workload.name, one.state) for one in found] == [("w0", "Ready"), ("w1", "Ready")]
    assert all(one.news for one in found)


def test_names_of_programs_and_quantities() -> None:
    state = made(quotas={"a": 99}, **{"train-7": 1, "job-train-x9k2f": 1, "resnet": 1, "eval-20240301-5b6f7": 1})
    assert sorted(one.program for one in state.workloads) == ["eval", "job-train", "resnet", "train"]
    assert [quantity(word) for word in ("2", "500m", "1k", "2Ki", 3, "x", "1.5")] == [2, 0.5, 1000, 2048, 3, 0, 1.5]
    assert all(math.isnan(one.admitted_s) and math.isinf(one.limit_s) for one in state.workloads)
    assert learn_durations(state).known == {}
