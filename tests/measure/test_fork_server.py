"""Forked workers are workers like others: they have what they are given, and their ends are heard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bricolage.backends.interface import Resources
from bricolage.base.codec import encode
from bricolage.device.host import host
from bricolage.measure import launch as launching
from bricolage.measure.launch import ForkedWorker, launch
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from tests.measure.test_pool import load

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forked on Linux alone")


@pytest.fixture(autouse=True)
def fresh_servers() -> Iterator[None]:
    launching.close()
    yield
    launching.close()


def regime(*, fresh: bool = False) -> Regime:
    return Regime(("honest",), 1, False, host(), fresh=fresh)


def test_one_server_becomes_all_workers_but_fresh_ones(pool: Pool) -> None:
    forked = [pool.worker(Regime((name,), 1, False, host())).process for name in ("honest", "twin")]
    fresh = pool.worker(regime(fresh=True)).process
    parents = [psutil.Process(process.pid).ppid() for process in (*forked, fresh)]
    assert parents[0] == parents[1] != parents[2] == os.getpid()
    assert all(isinstance(process, ForkedWorker) for process in forked) and isinstance(fresh, subprocess.Popen)


def test_a_worker_has_its_own_variables_folder_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRICOLAGE_SOMETHING", "else")
    process = launch(("honest",), Resources(1, host()), tmp_path / "log", {"TMPDIR": "/nowhere"})
    try:
        assert process.stdin is not None and process.stdout is not None
        seen = psutil.Process(process.pid)
        assert seen.cwd() == str(tmp_path) and os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) != os.getsid(0), "Ctrl-C in the terminal is for us"
        process.stdin.write((json.dumps(encode(host())) + '\n{"command": "no such"}\n').encode())
        os.set_blocking(process.stdout.fileno(), True)
        assert b"outcome" in process.stdout.read(4096)
        assert sorted(seen.cpu_affinity()) == sorted(host().cores)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait(5) == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL


def test_temporary_files_lie_where_the_worker_was_told(tmp_path: Path) -> None:
    """And not where the server's own would, which an import there may have asked for."""
    code = """
import os, sys, tempfile
from bricolage.measure import fork_server
before = tempfile.gettempdir()
asked = {"arguments": [], "environment": {"TMPDIR": sys.argv[1]}, "folder": "/"}
if os.fork() == 0:
    fork_server._become(asked, [os.dup(one) for one in range(3)], [])
    print(before != sys.argv[1] == tempfile.gettempdir(), flush=True)
    os._exit(0)
os.wait()
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert found.stdout.strip() == "True", found.stderr


def test_who_needs_other_variables_at_the_start_has_another_server(pool: Pool) -> None:
    one, other = (pool.worker(Regime(("honest",), threads, False, host())).process for threads in (1, 3))
    assert psutil.Process(one.pid).ppid() != psutil.Process(other.pid).ppid()


def test_workers_end_with_their_server_and_the_next_has_another(pool: Pool, tmp_path: Path) -> None:
    assert load(pool, tmp_path, "honest").ok
    worker = pool.worker(regime())
    server = psutil.Process(worker.process.pid).ppid()
    os.kill(server, signal.SIGKILL)
    assert worker.process.wait(5) == -signal.SIGKILL
    assert load(pool, tmp_path, "honest").outcome == "lost"
    assert load(pool, tmp_path, "honest").ok
    assert psutil.Process(pool.worker(regime()).process.pid).ppid() not in (server, os.getpid())


def test_the_server_ends_with_its_client() -> None:
    script = (
        "import os, psutil, signal; from bricolage.measure.pool import Pool; from bricolage.measure.specs import Regime; "
        "from bricolage.device.host import host; "
        "pool = Pool(); worker = pool.worker(Regime((), 1, False, host())); "
        "print(worker.process.pid, psutil.Process(worker.process.pid).ppid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    pids = [int(word) for word in found.stdout.split()]
    assert len(pids) == 2 and found.returncode == -signal.SIGKILL
    end = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))


def test_a_process_that_was_forked_from_this_one_has_servers_of_its_own(pool: Pool) -> None:
    ours = psutil.Process(pool.worker(regime()).process.pid).ppid()
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with Pool(memory_limit=1 << 30) as other:
                os.write(telling, str(psutil.Process(other.worker(regime()).process.pid).ppid()).encode())
            launching.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(told, 100)) != ours
    os.close(told)
    os.close(telling)
    assert pool.ask(pool.worker(regime()), 10, "clear").ok
