"""Workers keep their promises: whatever a backend does, the parent hears what happened and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from bricolage.backends.interface import Resources
from bricolage.base.codec import encode
from bricolage.device import memory
from bricolage.device.host import host
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.specs import Regime
from bricolage.measure.worker_process import Answer
from bricolage.plan.program_step import Step
from bricolage.runtime.process_environment import environment
from bricolage.verify.named_arrays import load_values
from bricolage.work.implementation import Implementation, KernelConfig


def step(directory: Path, backend: str, config: str = "f32") -> object:
    region = relu_region(directory, "x", "y", 1024)
    return encode(Step(Implementation(backend, KernelConfig(config)), region))


def load(pool: Pool, directory: Path, backend: str, config: str = "f32", limit_s: float = 20.0) -> Answer:
    worker = pool.worker(Regime((backend,), 1, False, host()))
    return pool.ask(
        worker,
        limit_s,
        "load",
        id="1",
        steps=[step(directory, backend, config)],
        inputs=str(vector(directory, ("x",), 1024)),
        outputs=["y"],
        threads=1,
        alone=False,
        caching=False,
    )


def test_a_decision_begins_with_nothing_loaded(pool: Pool, tmp_path: Path) -> None:
    assert load(pool, tmp_path, "honest").ok
    worker = pool.worker(Regime(("honest",), 1, False, host()))
    pool.clear()
    assert pool.worker(worker.regime) is worker, "it stays"
    assert not pool.ask(worker, 10, "time", id="1", turns=1, warm_s=0.0).ok, "and its programs do not"
    assert load(pool, tmp_path, "honest").ok


def test_compiles_runs_and_times(pool: Pool, tmp_path: Path) -> None:
    assert load(pool, tmp_path, "honest", "0.05").ok
    worker = pool.worker(Regime(("honest",), 1, False, host()))
    assert pool.ask(worker, 10, "outputs", id="1", path=str(tmp_path / "o.npz")).ok
    x = load_values(vector(tmp_path, ("x",), 1024))["x"]
    assert np.array_equal(load_values(tmp_path / "o.npz")["y"], np.maximum(x, 0))
    answer = pool.ask(worker, 10, "time", id="1", turns=3, warm_s=0.01)
    rounds = answer.facts["rounds"]
    assert isinstance(rounds, list) and len(rounds) == 3
    assert all(0.05 <= sample < 5 for samples in rounds for sample in samples)


def test_what_is_done_ahead_is_done_first_and_nobody_hears_of_it(pool: Pool, tmp_path: Path) -> None:
    regime = Regime(("honest",), 1, False, host())
    for _ in range(2):
        pool.ahead(regime, "drop", ids=[])
    assert pool.wait(0.2) == []
    pool.ahead(regime, "no such command")
    answer = load(pool, tmp_path, "honest")
    assert answer.ok and "compile_s" in answer.facts, "the answer is that of the command that was asked"
    worker = pool.worker(regime)
    assert worker.ahead == 0 and worker.loads == 1


def test_who_dies_ahead_is_found_dead_and_started_again(pool: Pool) -> None:
    regime = Regime(("exits",), 1, False, host())
    pool.ahead(regime, "drop", ids=[])
    first = pool.worker(regime)
    first.signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while first.alive and time.monotonic() < end:
        assert pool.wait(0.2) == []
    assert not first.alive and pool.worker(regime) is not first
    assert pool.ask(pool.worker(regime), 10, "drop", ids=[]).ok


def test_a_crash_is_told_with_the_signal_and_the_last_words(pool: Pool, tmp_path: Path) -> None:
    answer = load(pool, tmp_path, "segfaults")
    assert answer.outcome == "crashed" and answer.fresh
    assert "SIGSEGV" in answer.reason and "about to step into nothing" in answer.reason
    assert load(pool, tmp_path, "honest").ok


def test_an_exit_is_a_crash_with_its_status(pool: Pool, tmp_path: Path) -> None:
    answer = load(pool, tmp_path, "exits")
    assert answer.outcome == "crashed" and "status 7" in answer.reason


def test_a_hang_is_ended_at_the_limit(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.measure.pool._START_GRACE_S", 0.0)
    worker = pool.worker(Regime(("hangs",), 1, False, host()))
    start = time.monotonic()
    assert load(pool, tmp_path, "hangs", limit_s=2.0).outcome == "timed-out"
    assert time.monotonic() - start < 5
    assert not psutil.pid_exists(worker.process.pid)


def test_a_leak_is_ended_at_the_memory_limit(tmp_path: Path) -> None:
    with Pool(memory_limit=500 << 20) as pool:
        answer = load(pool, tmp_path, "leaks")
        assert answer.outcome == "out-of-memory" and "limit is 500 MB" in answer.reason


def test_exceptions_and_refusals_leave_the_worker_alive(pool: Pool, tmp_path: Path) -> None:
    answer = load(pool, tmp_path, "raises")
    assert answer.outcome == "failed" and "wrong phase" in answer.reason
    answer = load(pool, tmp_path, "refuses")
    assert answer.outcome == "refused" and "not on Sundays" in answer.reason
    assert pool.worker(Regime(("refuses",), 1, False, host())).loads == 1


def test_printing_on_standard_output_does_not_disturb_the_protocol(pool: Pool, tmp_path: Path) -> None:
    answer = load(pool, tmp_path, "chatters")
    assert answer.ok and "compile_s" in answer.facts
    log = pool.worker(Regime(("chatters",), 1, False, host())).log.read_text(encoding="utf-8")
    assert '"rounds": [[0.0]]' in log and "from a child" in log


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ended_from_outside_is_lost_and_no_fault_of_the_candidate(
    pool: Pool, tmp_path: Path, number: signal.Signals
) -> None:
    assert load(pool, tmp_path, "honest").ok
    worker = pool.worker(Regime(("honest",), 1, False, host()))
    os.kill(worker.process.pid, number)
    answer = pool.ask(worker, 5, "time", id="1", turns=1, warm_s=0.0)
    assert answer.outcome == "lost" and "from outside" in answer.reason and answer.blameless
    assert pool.worker(worker.regime) is not worker


def test_a_kill_is_for_memory_where_the_kernel_counts_one(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom 0\noom_kill 3\n", encoding="utf-8")
    monkeypatch.setattr(memory, "_group_files", lambda: (counter,))
    pool._memory_kills = memory.kills()
    for expected in ("out-of-memory", "lost"):  # the second time the count stays
        assert load(pool, tmp_path, "honest").ok
        worker = pool.worker(Regime(("honest",), 1, False, host()))
        if expected == "out-of-memory":
            counter.write_text("oom 1\noom_kill 4\n", encoding="utf-8")
        os.kill(worker.process.pid, signal.SIGKILL)
        assert pool.ask(worker, 5, "time", id="1", turns=1, warm_s=0.0).outcome == expected


def test_a_kill_near_the_limit_is_for_memory(tmp_path: Path) -> None:
    with Pool(memory_limit=1 << 30) as pool:
        worker = pool.worker(Regime(("hangs",), 1, False, host()))
        steps, inputs = [step(tmp_path, "hangs")], str(vector(tmp_path, ("x",), 1024))
        pool.submit(
            worker, 60, "load", id="1", steps=steps, inputs=inputs, outputs=["y"], threads=1, alone=False, caching=False
        )
        pool.wait(2.0)
        assert worker.held > 0, "it is looked at while it works"
        pool.memory_limit = worker.held + (1 << 20)
        os.kill(worker.process.pid, signal.SIGKILL)
        ((_, answer),) = pool.wait(10.0)
        assert answer.outcome == "out-of-memory" and "when it held" in answer.reason


def test_what_a_killed_pool_left_goes_when_the_next_one_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = "from bricolage.measure.pool import Pool; import os; pool = Pool(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.glob("bricolage-scratch-*")
    with Pool():
        (own,) = tmp_path.glob("bricolage-scratch-*")
        assert own != left
    assert not list(tmp_path.glob("bricolage-scratch-*"))


def test_a_forked_process_ends_no_workers_of_its_parent(pool: Pool, tmp_path: Path) -> None:
    assert load(pool, tmp_path, "honest").ok
    child = os.fork()
    if child == 0:
        pool.close()
        os._exit(0)
    os.waitpid(child, 0)
    worker = pool.worker(Regime(("honest",), 1, False, host()))
    assert pool.ask(worker, 10, "outputs", id="1", path=str(tmp_path / "o.npz")).ok


def test_idle_workers_stand_still_while_one_is_timed(pool: Pool, tmp_path: Path) -> None:
    for name in ("honest", "twin"):
        assert load(pool, tmp_path, name).ok
    honest, twin = (pool.worker(Regime((name,), 1, False, host())) for name in ("honest", "twin"))
    with pool.exclusive():
        assert pool.ask(honest, 5, "time", id="1", turns=1, warm_s=0.01).ok
        assert psutil.Process(twin.process.pid).status() == psutil.STATUS_STOPPED
        assert pool.ask(twin, 5, "time", id="1", turns=1, warm_s=0.01).ok
    assert psutil.Process(twin.process.pid).status() != psutil.STATUS_STOPPED
    assert pool.ask(twin, 5, "drop", ids=["1"]).ok


def test_workers_have_a_session_of_their_own(pool: Pool, tmp_path: Path) -> None:
    assert load(pool, tmp_path, "honest").ok
    worker = pool.worker(Regime(("honest",), 1, False, host()))
    assert os.getsid(worker.process.pid) == worker.process.pid != os.getsid(0)


def test_workers_die_with_their_parent_even_when_they_hang(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from bricolage.device.host import host
        from bricolage.measure.pool import Pool
        from bricolage.measure.specs import Regime
        from tests.measure import rogues
        from tests.measure import test_pool
        rogues.register_all()
        pool = Pool()
        here = Path(sys.argv[1])
        assert test_pool.load(pool, here, "honest").ok
        hanging = pool.worker(Regime(("hangs",), 1, False, host()))
        steps = [test_pool.step(here, "hangs")]
        inputs = str(test_pool.vector(here, ("x",), 1024))
        pool.submit(hanging, 60, "load", id="1", steps=steps, inputs=inputs, outputs=["y"], threads=1, alone=False, caching=False)
        pool.wait(3)
        pids = [worker.process.pid for worker in (pool.worker(Regime(("honest",), 1, False, host())), hanging)]
        print(*pids, flush=True)
        time.sleep(60)
        """
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root, encoding="utf-8"
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 5
    while any(map(_lives, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_closing_ends_everything(tmp_path: Path) -> None:
    with Pool() as pool:
        assert load(pool, tmp_path, "honest").ok
        pid = pool.worker(Regime(("honest",), 1, False, host())).process.pid
    assert not psutil.pid_exists(pid)


def test_the_environment_limits_threads_and_follows_our_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    variables = environment(("honest",), Resources(3, host(), alone=True))
    assert variables["OMP_NUM_THREADS"] == "3"
    folders = variables["PYTHONPATH"].split(os.pathsep)
    assert folders[0] == str(Path(__file__).parent)
    assert not any("site-packages" in folder for folder in folders)
