"""Processes that work together end together, and the error names the one at fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bricolage.base.codec import decode
from bricolage.base.options import ISA_VARIABLE
from bricolage.device.device import Device
from bricolage.device.host import unlimited
from bricolage.errors import TrainingWorkerFailed
from bricolage.measure.group import ProcessGroup
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from tests.measure.ranks import DIES, GOOD, SLEEPS

ROOT = Path(__file__).parents[2]
VARIABLES = {"PYTHONPATH": os.pathsep.join([str(ROOT), *(one for one in sys.path if one)])}


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    with ProcessGroup(GOOD, 3, 1, VARIABLES) as made:
        yield made


def given(group: ProcessGroup, *acts: str) -> list[dict[str, object]]:
    return [{"folder": str(group.folder), "act": act} for act in acts]


def ended(pids: tuple[int, ...], folder: Path) -> bool:
    return not any(map(psutil.pid_exists, pids)) and not folder.exists()


def test_all_answer_by_rank_and_leave_files(group: ProcessGroup) -> None:
    assert len(group) == 3
    group.join()
    answers = group.ask_each("step", 20.0, given(group, "", "", ""))
    assert [one["pid"] for one in answers] == list(group.pids)
    assert {str(pid) for pid in group.pids} <= {path.name for path in group.folder.iterdir()}
    group.close()
    assert ended(group.pids, group.folder)


def test_a_worker_is_told_its_device_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "avx512")
    device = unlimited().kept_to("avx2")
    with Pool(entry=GOOD, variables=VARIABLES) as pool:
        answer = pool.ask(pool.worker(Regime((), 1, False, device)), 20.0, "device")
    assert decode(Device, answer.facts["device"]) == device


def test_what_is_told_on_the_way_renews_the_patience(group: ProcessGroup) -> None:
    heard: list[object] = []
    assert group.ask("count", 0.9, to=6, pause_s=0.2, tell=heard.append) == [{"to": 6}] * 3
    assert sorted(map(str, heard)) == sorted(str(number) for number in range(6) for _ in range(3))


def test_one_that_dies_in_its_first_message() -> None:
    with pytest.raises(
        TrainingWorkerFailed, match=r"process \d of 2, before it was ready: .*status 7: there is no driver"
    ):
        ProcessGroup(DIES, 2, 1, VARIABLES)


def test_one_that_never_gets_ready() -> None:
    with pytest.raises(TrainingWorkerFailed, match=r"no answer to 'ready'.*is in sleeps_first \(ranks.py:\d+\)"):
        ProcessGroup(SLEEPS, 1, 1, VARIABLES, ready_s=1.5)


def test_one_that_never_comes_to_the_rendezvous(group: ProcessGroup) -> None:
    facts = [{"rank": rank, "size": 3, "store": str(group.folder / "store"), "timeout_s": 0.5} for rank in range(3)]
    with pytest.raises(
        TrainingWorkerFailed, match=r"timed out waiting.*; process 2 of 3 is in late \(ranks.py:\d+\)\."
    ):
        group.ask_each("late", 60.0, facts)
    assert ended(group.pids, group.folder)


@pytest.mark.parametrize(
    ("acts", "reason"),
    [
        (("wait", "die", "wait"), r"process 1 of 3: .*status 7: it prints this\."),
        (("", "hang", "raise"), r"process 2 of 3: ValueError: no such weather\."),
        (("wait", "hang", ""), r"process 0 of 3: .*closed by peer; process 1 of 3 is in step \(ranks.py:\d+\)\."),
    ],
)
def test_one_that_fails_in_the_middle(group: ProcessGroup, acts: tuple[str, ...], reason: str) -> None:
    begun = time.monotonic()
    with pytest.raises(TrainingWorkerFailed, match=reason):
        group.ask_each("step", 60.0, given(group, *acts))
    assert time.monotonic() - begun < 30 and ended(group.pids, group.folder)


def test_one_that_hangs_is_ended_at_the_limit(group: ProcessGroup) -> None:
    with pytest.raises(TrainingWorkerFailed, match="no answer to 'step' for 1 s; process 1 of 3 is in step"):
        group.ask_each("step", 1.0, given(group, "", "hang", ""))


def test_one_that_is_killed(group: ProcessGroup) -> None:
    os.kill(group.pids[2], signal.SIGKILL)
    with pytest.raises(TrainingWorkerFailed, match="process 2 of 3: its process was killed from outside"):
        group.ask_each("step", 20.0, given(group, "", "", ""))


def test_they_die_with_their_parent_even_when_they_hang() -> None:
    script = (
        "import threading, time; from bricolage.measure.group import ProcessGroup; from tests.measure.test_group import *; "
        "group = ProcessGroup(GOOD, 2, 1, VARIABLES); print(*group.pids, flush=True); "
        "group.ask_each('step', 60.0, given(group, 'hang', 'hang'))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT, encoding="utf-8"
    )
    assert parent.stdout is not None
    pids = tuple(int(word) for word in parent.stdout.readline().split())
    assert len(pids) == 2 and all(map(psutil.pid_exists, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))
