"""A real Slurm, started and ended by the test: a controller and node daemons on loopback."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from benchmarks.cluster_real.slurm_daemons import LocalSlurm, NoSlurm, local_slurm
from bricolage.cli.main import app
from bricolage.cluster.slurm.commands import SlurmClient
from bricolage.cluster.slurm.job_changes import Levers
from bricolage.cluster.slurm.watch import SlurmWatch, past_jobs

run = CliRunner()
QUICK, LONG = "#!/bin/sh\nsleep 0.2\n", "#!/bin/sh\nsleep 300\n"


@pytest.fixture(scope="module")
def daemons() -> Iterator[LocalSlurm]:
    """Four nodes of one GPU. Its folder has a short path: sockets lie in it."""
    with TemporaryDirectory(prefix="slurm") as folder, pytest.MonkeyPatch.context() as patch:
        try:
            with local_slurm(Path(folder), 4) as found:
                for name in [name for name in os.environ if name.startswith("SLURM_")]:
                    patch.delenv(name)
                patch.setenv("SLURM_CONF", found.environment["SLURM_CONF"])
                yield found
        except NoSlurm as error:
            pytest.skip(f"no Slurm can be started here: {error}")


@pytest.fixture
def slurm(daemons: LocalSlurm) -> LocalSlurm:
    """Without jobs."""
    for words in (("--state=PENDING",), ("--signal=KILL", "--full")):
        daemons.call("scancel", *words, "--user=" + getpass.getuser())
    end = time.monotonic() + 20
    while daemons.call("squeue", "--noheader").strip():
        assert time.monotonic() < end
        time.sleep(0.05)
    return daemons


def cluster(*words: str) -> dict[str, object]:
    done = run.invoke(app, ["cluster", "slurm", *words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def completed(slurm: LocalSlurm) -> int:
    return slurm.call("squeue", "--noheader", "--states=COMPLETED", "--format=%i").count("\n")


def until(slurm: LocalSlurm, state: str, count: int) -> None:
    end = time.monotonic() + 20
    while slurm.call("squeue", "--noheader", "--states=all", "--format=%T").split().count(state) < count:
        assert time.monotonic() < end, slurm.call("squeue", "--states=all")
        time.sleep(0.05)


def test_advise_apply_watch_restore(slurm: LocalSlurm) -> None:
    for _ in range(4):
        slurm.submit(QUICK, "--gres=gpu:1", "--time=60", "--job-name=quick")
    until(slurm, "COMPLETED", 4)
    big = slurm.submit(LONG, "--gres=gpu:1", "--nodes=4", "--time=600", "--job-name=big")
    until(slurm, "RUNNING", 1)
    wide = slurm.submit(LONG, "--gres=gpu:v100:1", "--nodes=3", "--time=90", "--job-name=wide")
    quick = [
        slurm.submit(QUICK, "--gres=gpu:1", "--time=120", "--job-name=quick", f"--nice={nice}") for nice in (0, 30)
    ]
    array = slurm.submit(QUICK, "--gpus=1", "--time=30", "--array=0-1", "--job-name=quick")
    shown = "--Format=JobID:8,Nice:8,PriorityLong:14,TimeLimit:12,State:12,AdminComment:60"

    def jobs() -> dict[str, dict[str, int | float | str]]:
        found = {one.number: one for one in SlurmClient().queue().jobs if one.state in ("PENDING", "RUNNING")}
        return {
            number: {"nice": one.nice, "priority": one.priority, "limit": one.limit_s, "state": one.state}
            for number, one in found.items()
        }

    before, text = jobs(), slurm.call("squeue", shown)
    assert before[str(quick[1])]["nice"] == 30
    advice = cluster("advise", "--policy", "qssf")
    assert not advice["applied"] and slurm.call("squeue", shown) == text, "advice changes nothing"
    order = list(dict.fromkeys(one["job"] for one in advice["advice"]["jobs"]))  # type: ignore[index]
    assert order[0] == str(big) and set(order[1:4]) == {str(one) for one in (*quick, array)} and order[4] == str(wide)

    assert cluster("apply", "--policy", "qssf")["applied"]
    after = jobs()
    priorities = [after[one]["priority"] for one in order[1:]]
    assert priorities == sorted(priorities, reverse=True) and len(set(priorities)) == len(priorities)
    assert {after[str(one)]["limit"] for one in (*quick, array)} == {300.0}
    assert after[str(big)] == before[str(big)] and after[str(wide)]["limit"] == 5400.0, (
        "without history they keep their limits"
    )
    assert cluster("apply", "--policy", "qssf")["changes"] == []

    cluster("watch", "--policy", "fifo", "--hold", "--times", "1", "--no-limits")
    assert all(float(one["priority"]) > 0 for one in jobs().values()), "what was held is released in the end"
    restored = cluster("restore")
    assert restored["made"]
    last = jobs()
    assert {one: (job["nice"], job["limit"]) for one, job in last.items()} == {
        one: (job["nice"], job["limit"]) for one, job in before.items()
    }
    assert "bricolage" not in slurm.call("squeue", shown)


HISTORY = """JobID|JobName|User|Submit|Elapsed|State|AllocTRES
1|short|{user}|2024-03-01T12:00:00|00:00:10|COMPLETED|gres/gpu=4
2|middle|{user}|2024-03-01T12:00:00|00:01:00|COMPLETED|gres/gpu=4
3|long|{user}|2024-03-01T12:00:00|00:05:00|COMPLETED|gres/gpu=4
"""


def test_a_held_queue_follows_the_policy(slurm: LocalSlurm, tmp_path: Path) -> None:
    """Shortest first where Slurm alone would go by submission."""
    history = tmp_path / "history"
    history.write_text(HISTORY.format(user=getpass.getuser()))
    whole = ("--gres=gpu:1", "--nodes=4")
    slurm.submit("#!/bin/sh\nsleep 1\n", *whole, "--job-name=blocker")
    until(slurm, "RUNNING", 1)
    before = completed(slurm)
    script = f"#!/bin/sh\necho $SLURM_JOB_NAME >> {tmp_path}/order\n"
    for name in ("long", "middle", "short"):
        slurm.submit(script, *whole, f"--job-name={name}")

    def more() -> bool:
        assert time.monotonic() < end
        time.sleep(0.1)
        return completed(slurm) < before + 4

    client, end = SlurmClient(), time.monotonic() + 40
    past = past_jobs(client, history, 30, lambda _: None)
    SlurmWatch(client, "sjf", levers=Levers(limits=False, hold=True), history=past).watch(more, lambda *_: None)
    assert (tmp_path / "order").read_text().split() == ["short", "middle", "long"]
    assert "[bricolage" not in slurm.call("squeue", "--states=all", "--Format=AdminComment:60")


def test_a_controller_that_is_not_there(slurm: LocalSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (slurm.folder / "slurm.conf").read_text()
    lines = [line if not line.startswith("SlurmctldPort") else "SlurmctldPort=1" for line in text.splitlines()]
    (tmp_path / "slurm.conf").write_text("\n".join([*lines, "MessageTimeout=1", ""]))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    done = run.invoke(app, ["cluster", "slurm", "advise"])
    assert done.exit_code == 1, done.output
    assert "Slurm does not answer `squeue --json" in done.output
