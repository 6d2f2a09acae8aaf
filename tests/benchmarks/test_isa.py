"""Comparisons under an instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.processor import PROCESSOR_VARIABLE
from benchmarks.tools import isa
from bricolage.base.options import ISA_VARIABLE
from bricolage.device import host as reading

BUSY = "x = 0\nwhile True: x += 1"


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the processor's flags are read, for this test and not after it."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(reading, "_CPUINFO", path)
    monkeypatch.setattr(reading, "_numpy_features", dict)
    monkeypatch.delenv(PROCESSOR_VARIABLE, raising=False)
    monkeypatch.setattr(isa, "current", str)
    reading._whole.cache_clear()
    yield path
    reading._whole.cache_clear()


@pytest.fixture
def with_avx512(cpuinfo: Path) -> None:
    cpuinfo.write_text("flags : avx2 avx512f amx_tile\n", encoding="utf-8")


def test_a_verdict_needs_a_working_thread_and_allows_for_a_copy() -> None:
    assert not isa.verdict([])[0]
    assert isa.verdict([0.0, 0.01])[0]
    kept, words = isa.verdict([0.0, 0.9])
    assert not kept and "90%" in words


def test_everybody_keeps_to_what_the_processor_has(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo.write_text("flags : avx2 fma\n", encoding="utf-8")
    monkeypatch.setenv(ISA_VARIABLE, "avx2")
    assert isa.keeps("onnxruntime", "dcgan", 1, 1.0)[0]


def test_from_amx_those_are_kept_that_can_be_told(with_avx512: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "avx512")
    assert isa.keeps("openvino", "dcgan", 1, 1.0) == (True, "was told")
    assert isa.keeps("onnxruntime", "dcgan", 1, 1.0) == (False, "cannot be told")


def test_tools_find_a_smaller_processor_where_they_can(with_avx512: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are told where they cannot."""
    given: list[dict[str, str]] = []
    monkeypatch.setattr(isa.os, "execve", lambda *command: given.append(command[2]))
    monkeypatch.setattr(isa, "missing", lambda _: None)
    monkeypatch.setattr(isa, "masked", lambda name, variables: {**variables, PROCESSOR_VARIABLE: name})
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    isa.restart_under("avx512")
    assert given[-1][PROCESSOR_VARIABLE] == "no-amx" and ISA_VARIABLE not in given[-1]
    monkeypatch.setattr(isa, "missing", lambda _: "no flag cpuid_fault")
    isa.restart_under("avx512")
    assert given[-1][ISA_VARIABLE] == "avx512" and PROCESSOR_VARIABLE not in given[-1]
    monkeypatch.setattr(isa, "current", lambda: "no-amx")
    isa.restart_under("avx512")
    assert len(given) == 2 and isa.limit() == "as no-amx"
    assert isa.keeps("onnxruntime", "dcgan", 1, 1.0) == (True, "finds no more")


def test_who_cannot_be_looked_at_does_not_count(with_avx512: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> list[float]:
        raise RuntimeError("it was not ready after 1 s")

    monkeypatch.setenv(ISA_VARIABLE, "avx2")
    monkeypatch.setattr(isa, "watched", fails)
    assert isa.keeps("openvino", "dcgan", 1, 1.0) == (False, "it was not ready after 1 s")


@pytest.mark.skipif(not isa.tells(), reason="this system does not tell")
def test_looking_at_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never gets ready, one that fails, and one that works without AVX-512."""
    monkeypatch.setattr(isa, "_SECONDS", 1.0)
    monkeypatch.setattr(isa, "_BUSY_TICKS", 1)
    variables = {**os.environ, **isa._AVX2_LIBRARIES}

    def looked(code: str) -> list[float]:
        with (tmp_path / "said").open("w", encoding="utf-8") as said:
            child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=said, stderr=said, env=variables)
            try:
                return isa._look(child, 2.0)
            finally:
                child.kill()
                child.wait()

    with pytest.raises(RuntimeError, match="failed"):
        looked("raise SystemExit(1)")
    with pytest.raises(RuntimeError, match="not ready"):
        looked(BUSY)
    assert len(looked(f"print('ready', flush=True)\n{BUSY}")) == 1


def test_the_table_has_a_column_for_each_backend() -> None:
    text = isa.table([("a", {"x": "yes"}), ("b", {"x": "no", "y": "yes"})])
    assert text.splitlines() == ["| workload | x | y |", "|---|---|---|", "| a | yes |  |", "| b | no | yes |"]
