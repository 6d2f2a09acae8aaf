"""A smaller processor than this one: what libraries see of it, and what stays as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import processor
from bricolage.errors import UsageError

_HOST = """
import json, subprocess
import numpy as np
from bricolage.device.host import host
from benchmarks.processor import current
seen = sorted(name for name, there in np._core._multiarray_umath.__cpu_features__.items() if there)
inner = subprocess.run(["grep", "-c", "avx512f", "/proc/cpuinfo"], capture_output=True, text=True).stdout.strip()
print(json.dumps([seen, sorted(host().instructions), host().model, host().fingerprint(), current(), inner]))
"""
_FAULT = """
import ctypes, faulthandler, signal, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a blocked fault would end the process
asked = threading.Thread(target=__import__, args=["numpy"])
asked.start(); asked.join()
assert "numpy" in sys.modules
faulthandler.enable()
ctypes.string_at(0)
"""
_CAUGHT = """
import os, signal, sys
signal.signal(signal.SIGSEGV, lambda number, frame: print("caught", number, flush=True))
os.kill(os.getpid(), signal.SIGSEGV)
import numpy
signal.signal(signal.SIGSEGV, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGSEGV)
print(signal.signal(signal.SIGSEGV, signal.SIG_DFL) == signal.SIG_IGN, flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""


def _needs(name: str) -> None:
    reason = processor.missing(name)
    if reason:
        pytest.skip(reason)


def _ran(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    variables = processor.masked(name, os.environ)
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "there", "hidden"),
    [
        ("avx2", ["avx2", "fma"], ["avx512f", "avx_vnni", "amx_tile"]),
        ("avx512-vnni", ["avx512f", "avx512_vnni"], ["avx512_bf16", "avx512_fp16", "avx_vnni", "amx_int8"]),
    ],
)
def test_numpy_linux_and_we_see_the_smaller_one(name: str, there: Sequence[str], hidden: Sequence[str]) -> None:
    _needs(name)
    ran = _ran(name, sys.executable, "-c", _HOST)
    assert ran.returncode == 0, ran.stderr
    seen, ours, model, fingerprint, current, inner = json.loads(ran.stdout)
    assert {*there} <= {*ours} and not {*hidden} & {*ours}
    assert ("AVX512F" in seen) == ("avx512f" in there) and "AVX512_SPR" not in seen
    assert (inner != "0") == ("avx512f" in there)
    assert f" as {name} " in model and current == name and len(fingerprint) == 12


@pytest.mark.parametrize("name", processor.PROCESSORS)
def test_linux_tells_of_what_it_has_alone(name: str) -> None:
    _needs(name)
    told = _ran(name, "cat", "/proc/cpuinfo").stdout
    real = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags, before = (set(text.partition("flags")[2].partition("\n")[0].split()) for text in (told, real))
    assert flags == before - set(processor.PROCESSORS[name].lacks) and {*processor.PROCESSORS[name].needs} <= flags
    assert told.count(f" as {name}\n") == told.count("model name") and told.count("\n") == real.count("\n")


def test_a_process_that_cannot_be_masked_does_not_start() -> None:
    _needs("avx2")
    variables = {**processor.masked("avx2", os.environ), "BRICOLAGE_PROCESSOR_CPUID": "7.0.e=1"}
    ran = subprocess.run(["true"], env=variables, capture_output=True, text=True, check=False, encoding="utf-8")
    assert ran.returncode == 70 and "BRICOLAGE_PROCESSOR_CPUID has no form" in ran.stderr


def test_a_real_fault_is_still_told_of() -> None:
    """Also in a process, and in a thread, that blocks all signals while libraries ask the processor."""
    _needs("avx2")
    ran = _ran("avx2", sys.executable, "-c", _FAULT)
    assert ran.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ran.stderr and "string_at" in ran.stderr


def test_a_handler_of_the_process_keeps_its_place() -> None:
    _needs("avx2")
    ran = _ran("avx2", sys.executable, "-c", _CAUGHT)
    assert (ran.returncode, ran.stdout.split("\n")[:2]) == (
        -signal.SIGSEGV,
        [f"caught {signal.SIGSEGV.value}", "True"],
    ), ran.stderr


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(words: str, told: dict[str, str]) -> None:
        monkeypatch.setattr(processor, "_facts", lambda: told)
        with pytest.raises(UsageError, match=words):
            processor.masked("avx-vnni", {})

    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(processor.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv(processor.PROCESSOR_VARIABLE, raising=False)
    refused("lets CPUID fault", {"flags": "avx2 fma f16c avx_vnni"})
    refused("it has no f16c, avx_vnni itself", {"flags": "avx2 fma cpuid_fault"})
    monkeypatch.setenv(processor.PROCESSOR_VARIABLE, "avx2")
    refused("takes it for 'avx2' already", {"flags": "avx2 cpuid_fault", "model name": "Xeon as avx2"})
    refused("it has no fma", {"flags": "avx2 cpuid_fault", "model name": "Xeon"})  # the library was not loaded
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    refused("x86-64 alone", {"flags": "avx2 fma f16c avx_vnni cpuid_fault"})
    for given, words in ((["pentium", "--", "true"], "invalid choice"), (["avx2"], "which command")):
        with pytest.raises(SystemExit):
            processor.main(given)
        assert words in capsys.readouterr().err


def test_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _needs("avx2")
    with pytest.raises(SystemExit):
        processor.main(["avx2", "--", str(tmp_path / "none")])
    assert "No such file" in capsys.readouterr().err
