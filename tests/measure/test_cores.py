"""Who times has the cores alone."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bricolage.measure import cores

HOLDER = """
import sys
from bricolage.measure import cores
with getattr(cores, sys.argv[1])():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    """Another process that compiles or times until it is told to end."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def entered(what: str, event: threading.Event) -> threading.Thread:
    def enter() -> None:
        with getattr(cores, what)():
            event.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return thread


def gate_is_free() -> bool:
    descriptor = cores._open_lock_file("gate")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("holder", ["compiling"], indirect=True)
def test_many_compile_at_a_time(holder: subprocess.Popen[str]) -> None:
    with cores.compiling(), cores.compiling():
        assert holder.poll() is None


@pytest.mark.parametrize(
    ("holder", "what"), [("timing", "timing"), ("timing", "compiling"), ("compiling", "timing")], indirect=["holder"]
)
def test_nobody_times_beside_another_even_one_that_is_killed(holder: subprocess.Popen[str], what: str) -> None:
    event = threading.Event()
    thread = entered(what, event)
    assert not event.wait(0.3)
    holder.kill()
    assert event.wait(30.0)
    thread.join(30.0)


@pytest.mark.parametrize("holder", ["compiling"], indirect=True)
def test_nobody_begins_to_compile_while_somebody_waits_to_time(holder: subprocess.Popen[str]) -> None:
    timing, compiling = threading.Event(), threading.Event()
    first = entered("timing", timing)
    while gate_is_free():
        time.sleep(0.01)
    second = entered("compiling", compiling)
    assert not compiling.wait(0.3)
    holder.kill()
    assert timing.wait(30.0) and compiling.wait(30.0)
    first.join(30.0)
    second.join(30.0)
