from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bricolage.base.options import ISA_VARIABLE, available_cores
from bricolage.device import host as reading
from bricolage.device.host import count_physical_cores, cpuinfo, host, model_name, nominal_peaks, unlimited
from bricolage.device.memory import total_bytes
from bricolage.errors import BadOption
from bricolage.work.implementation import HOST

AVX512 = "processor\t: 0\nmodel name\t: Brand\ncpu family\t: 26\nmodel\t\t: 2\nflags\t: avx2 avx512f amx_tile sse2\ncpu MHz : 3000.0\n\nprocessor: 1\n"  # noqa: E501


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is known of the processor, which is of x86-64, is read again, and once more for those who come after."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    monkeypatch.setattr(reading, "_numpy_features", dict)  # what this machine's processor answers is not asked for
    reading._whole.cache_clear()
    yield
    reading._whole.cache_clear()


def test_this_processor_has_what_a_key_needs() -> None:
    found = host()
    assert found.name == HOST and found.kind == "cpu"
    assert found.model and found.architecture and found.system
    assert found.physical_cores >= 1 and found.threads >= available_cores() and found.memory_bytes > 0
    assert found.peaks.gflops > 0 and found.peaks.gbytes > 0
    assert found.model in str(found)


def test_the_environment_may_keep_it_to_an_instruction_set(
    afresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(AVX512, encoding="utf-8")
    monkeypatch.setattr(reading, "_CPUINFO", tmp_path / "cpuinfo")
    assert host().isa == "" and host().instructions == {"avx2", "avx512f", "amx_tile"}
    seen = {host().fingerprint()}
    for isa, left in (("avx512", {"avx2", "avx512f"}), ("avx2", {"avx2"})):
        monkeypatch.setenv(ISA_VARIABLE, isa)
        assert host().isa == isa and host().instructions == left
        assert unlimited().kept_to(isa) == host() and unlimited().isa == ""
        seen.add(host().fingerprint())
    assert len(seen) == 3
    monkeypatch.setenv(ISA_VARIABLE, "sse9")
    with pytest.raises(BadOption, match="sse9"):
        host()


def test_cpuinfo_of_an_unnamed_virtual_processor_is_told_apart_by_family(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(AVX512, encoding="utf-8")
    facts = cpuinfo(tmp_path / "cpuinfo")
    assert model_name(facts) == "Brand (family 26/2)"
    assert facts["flags"] == "avx2 avx512f amx_tile sse2"


def test_works_without_cpuinfo(afresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CPUINFO", tmp_path / "absent")
    assert cpuinfo(tmp_path / "absent") == {}
    bare = host()
    assert bare.model and bare.physical_cores >= 1 and bare.peaks.gflops > 0


def test_nominal_peaks_follow_lanes_clock_and_cores() -> None:
    avx2 = nominal_peaks(frozenset({"avx2"}), 4, 2.5)
    assert avx2.gflops == 2 * 2 * 8 * 2.5 * 4
    assert nominal_peaks(frozenset({"avx2", "avx512f"}), 4, 2.5).gflops == 2 * avx2.gflops
    assert nominal_peaks(frozenset({"asimd"}), 2, 2.5).gflops == avx2.gflops / 4


def test_the_system_is_read_as_psutil_reads_it() -> None:
    """A fingerprint that was made with psutil holds without it."""
    assert count_physical_cores() == psutil.cpu_count(logical=False)
    assert total_bytes() == psutil.virtual_memory().total


def test_without_a_topology_cores_are_counted_by_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(reading, "_CPUINFO", tmp_path / "cpuinfo")
    packages = [(0, 4), (0, 4), (1, 6)]
    text = "\n\n".join(f"processor : {i}\nphysical id : {p}\ncpu cores : {c}" for i, (p, c) in enumerate(packages))
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert count_physical_cores() == 10
