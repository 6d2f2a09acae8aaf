from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.device import machine as hardware
from bricolage.device.machine import Hardware, this_machine


def test_this_machine_has_what_a_key_needs() -> None:
    found = this_machine()
    assert found.processor and found.machine and found.system
    assert found.cores >= 1 and found.threads >= 1 and found.memory_gb >= 1
    assert found.processor in str(found) and f"{found.memory_gb} GB" in str(found)


def test_every_field_changes_the_fingerprint() -> None:
    base = Hardware("Some Processor", ("avx2",), 4, 4, 16, "Linux", "x86_64")
    others = [
        replace(base, processor="Other"),
        replace(base, instructions=("avx2", "avx512f")),
        replace(base, cores=8),
        replace(base, threads=2),
        replace(base, memory_gb=32),
        replace(base, system="Darwin"),
        replace(base, machine="arm64"),
    ]
    assert len({machine.fingerprint() for machine in (base, *others)}) == 8
    assert base.fingerprint() == replace(base).fingerprint()


def test_cpuinfo_of_an_unnamed_virtual_processor_is_told_apart_by_family(tmp_path: Path) -> None:
    text = (
        "processor\t: 0\nmodel name\t: Brand\ncpu family\t: 26\nmodel\t\t: 2\nflags\t: avx2 avx512f\n\nprocessor: 1\n"
    )
    (tmp_path / "cpuinfo").write_text(text)
    facts = hardware._cpuinfo(tmp_path / "cpuinfo")
    assert hardware._processor_name(facts) == "Brand (family 26/2)"
    assert facts["flags"] == "avx2 avx512f"


def test_works_without_cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware._cpuinfo(tmp_path / "absent") == {}
    monkeypatch.setattr(hardware, "_cpuinfo", dict)
    bare = hardware.this_machine.__wrapped__()
    assert bare.processor and bare.cores >= 1
