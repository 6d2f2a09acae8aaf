"""Jobs that really run, as processes of this machine: they are stopped and go on, killed and taken up, by the same policies as in
replays. What each has trained says whether a step was lost or done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from bricolage.cluster.engines.local import LocalEngine
from bricolage.cluster.machines import ClusterSpec, NodeFailure, NodeGroup
from bricolage.cluster.serve.service import Service
from bricolage.cluster.serve.spool import ask
from bricolage.errors import AlreadyServed, BadCluster, JobFitsNowhere, JobRefused, NotServed, PolicyRefuses, UnknownJob
from tests.cluster.making import one_kind
from tests.cluster.serve.making import job, listed, saved, serving, submit, until, weight
from tests.cluster.serve.trainer import trained


def processes(state: Path, name: str) -> list[psutil.Process]:
    """The trainer's, of a job: not their supervisors."""
    return [
        one
        for one in psutil.process_iter(["cmdline", "environ"])
        if (one.info["environ"] or {}).get("BRICOLAGE_CHECKPOINT") == str(state / "jobs" / name / "checkpoint")
        and "supervisor.py" not in " ".join(one.info["cmdline"] or ())
    ]


def right(state: Path, jobs: Mapping[str, int]) -> None:
    """Every job has done each step once."""
    for name, steps in jobs.items():
        assert weight(state, name) == (trained(steps), steps), name


def test_a_short_job_stops_a_long_one_which_goes_on_elsewhere(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def talk() -> None:
        submit(state, job("long", 150, devices=2))
        until(lambda: saved(state, "long") >= 20)
        submit(state, job("short", 20))
        until(lambda: listed(state)["short"]["state"] != "waiting")

    states = serving(state, one_kind(2), "srtf", talk)
    assert states["long"].restarts == 1 and states["short"].finish_s < states["long"].finish_s
    right(state, {"long": 150, "short": 20})


def test_a_gang_runs_on_every_node_with_its_devices(tmp_path: Path) -> None:
    state = tmp_path / "state"
    seen = tmp_path / "seen"
    code = f"echo $RANK $WORLD_SIZE $BRICOLAGE_DEVICES $CUDA_VISIBLE_DEVICES $BRICOLAGE_KIND $BRICOLAGE_GANG >> {seen}"
    told = {"name": "gang", "command": ["sh", "-c", code], "steps": 1, "devices": 3, "seconds": 1.0}
    serving(state, one_kind(2, nodes=2), "fifo", lambda: submit(state, {**told, "directory": str(tmp_path)}))
    assert sorted(seen.read_text().splitlines()) == ["0 2 0,1 0,1 a 3", "1 2 0 0 a 3"]


def test_a_killed_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def talk() -> None:
        submit(state, job("one", 100))
        until(lambda: (state / "jobs/one/checkpoint/steps").exists())
        for process in processes(state, "one"):
            process.send_signal(signal.SIGKILL)

    states = serving(state, one_kind(1), "fifo", talk)
    assert states["one"].restarts == 1
    right(state, {"one": 100})


def test_a_job_that_fails_again_and_again_is_given_up(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def talk() -> None:
        submit(state, job("bad", 100, fail_at=5), job("good", 30))
        until(lambda: listed(state)["bad"]["state"].startswith("failed"))
        assert listed(state)["bad"]["state"] == "failed: exit code 1: the loss is NaN"

    states = serving(state, one_kind(1), "fifo", talk)
    assert states["bad"].restarts == 2
    right(state, {"good": 30})


def test_a_cancelled_job_saves_and_lets_its_device_go(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def talk() -> None:
        submit(state, job("first", 10_000), job("second", 20), job("third", 20))
        until(lambda: saved(state, "first") >= 5)
        why: Any = ask(state, {"why": "second"})["why"]
        assert (why["state"], why["waits_for"], why["place"]) == ("waiting", "devices", 1)
        assert why["reason"] == "1 more a: 0 of 1 are free, and its gang needs 1"
        assert 0.0 < why["start_interval_s"][0] <= why["start_s"] < why["end_s"] <= why["end_interval_s"][1]
        assert ask(state, {"why": "first"})["why"]["start_s"] is None
        assert ask(state, {"cancel": "first"}) == {"cancelled": "first"}
        assert ask(state, {"cancel": "third"}) == {"cancelled": "third"}

    serving(state, one_kind(1), "fifo", talk)
    done = weight(state, "first")[1]
    assert 5 <= done < 10_000
    right(state, {"first": done, "second": 20})
    assert not (state / "jobs/third/checkpoint/weight").exists()


SERVER = """
import sys
from pathlib import Path
from bricolage.cluster.engines.local import LocalEngine
from bricolage.cluster.serve.service import Service
from tests.cluster.making import one_kind
Service(Path(sys.argv[1]), one_kind(2, round_s=1.0), sys.argv[2], LocalEngine).serve()
"""


@pytest.mark.parametrize("policy", ["srtf", pytest.param("max-min", marks=pytest.mark.slow)])
def test_a_driver_that_is_killed_is_taken_up_again(tmp_path: Path, policy: str) -> None:
    state = tmp_path / "state"
    jobs = {f"j{number}": 40 + 20 * number for number in range(4)}
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(state), policy], cwd=Path(__file__).parents[3])
    try:
        until(lambda: (state / "serving").exists())
        until(lambda: _submitted(state, jobs))
        until(lambda: saved(state, "j1") >= 10)
        before = listed(state)
    finally:
        server.kill()
        server.wait()
    states = serving(state, one_kind(2, round_s=1.0), policy, lambda: None)
    assert set(states) == set(jobs)
    for name, one in states.items():
        assert before[name]["submit_s"] == one.job.submit_s and one.finish_s > before[name]["submit_s"]
    right(state, jobs)


def _submitted(state: Path, jobs: Mapping[str, int]) -> bool:
    try:
        submit(state, *(job(name, steps) for name, steps in jobs.items()))
    except NotServed:
        return False
    return True


def test_another_policy_takes_the_jobs_over(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def talk() -> None:
        submit(state, job("a", 200), job("b", 200), job("c", 30))
        until(lambda: saved(state, "a") >= 20)

    serving(state, one_kind(1), "fifo", talk, until_idle=False)
    done = weight(state, "a")[1]
    assert 20 <= done < 200, "it was asked to save"
    before = (state / "log").read_bytes()
    with pytest.raises(JobRefused, match="names rates on a"):
        Service(state, ClusterSpec((NodeGroup("b"),)), "sjf", LocalEngine)
    assert (state / "log").read_bytes() == before
    Service(state, one_kind(2), "sjf", LocalEngine).close()  # it ends before the first turn
    states = serving(state, one_kind(2), "sjf", lambda: None)
    assert states["c"].finish_s < states["b"].finish_s and states["a"].restarts == 1
    right(state, {"a": 200, "b": 200, "c": 30})


def test_only_one_process_serves_and_nobody_else_answers(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(NotServed):
        ask(state, {"list": {}})
    service = Service(state, one_kind(1), "fifo", LocalEngine)
    with pytest.raises(AlreadyServed):
        Service(state, one_kind(1), "fifo", LocalEngine)
    service.close()
    assert os.stat(state).st_mode & 0o777 == 0o700
    with pytest.raises(NotServed):
        ask(state, {"list": {}})


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    failing = ClusterSpec((NodeGroup("a"),), (NodeFailure("a", 0, 1.0, 2.0),))
    with pytest.raises(BadCluster, match="for replays"):
        Service(state, failing, "fifo", LocalEngine)
    with pytest.raises(PolicyRefuses, match="one kind"):
        Service(state, ClusterSpec((NodeGroup("a"), NodeGroup("b"))), "shockwave", LocalEngine)

    def talk() -> None:
        submit(state, job("a", 5))
        for wrong, error in (
            ([job("a", 5)], JobRefused),
            ([job("b", 5), job("b", 5)], JobRefused),
            ([job("b", 5), job("c", 5, devices=3)], JobFitsNowhere),
            ([job("b", 5, rates={"h100": 1.0})], JobRefused),
            ([{"name": "../x"}], JobRefused),
        ):
            with pytest.raises(error):
                submit(state, *wrong)
        with pytest.raises(UnknownJob):
            ask(state, {"why": "b"})
        assert set(listed(state)) == {"a"}

    serving(state, one_kind(2), "fifo", talk)
