"""What Linux says of Arm's cores: features, names, and a processor that is another one's in its table."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bricolage.base.options import ISA_VARIABLE
from bricolage.device import host as reading
from bricolage.device.arm_cores import (
    CORES,
    LANES,
    core_named,
    fastest_core,
    name_cores,
    read_cores,
    read_features,
)
from bricolage.device.host import host
from bricolage.errors import BadOption

X86 = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: cx16 lahf_lm avx2\ncpu MHz\t\t: 2445.0\n"
_VECTOR = r"""
#include <stdio.h>
#include <sys/auxv.h>
int main(void) { printf("%lu %lu\n", getauxval(AT_HWCAP), getauxval(AT_HWCAP2)); return 0; }
"""


def table(*parts: int) -> str:
    """Linux's table of a processor with these cores."""
    return "\n\n".join(f"processor\t: {n}\nCPU implementer\t: 0x41\nCPU part\t: {p:#x}" for n, p in enumerate(parts))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    folder = tmp_path_factory.mktemp("hwcap")
    (folder / "hwcap.c").write_text(_VECTOR, encoding="ascii")
    words = ["aarch64-linux-gnu-gcc", "-static", str(folder / "hwcap.c"), "-o", str(folder / "hwcap")]
    subprocess.run(words, check=True)
    return folder / "hwcap"


@pytest.mark.parametrize(
    ("core", "has"),
    [
        ("cortex-a53", {"asimd"}),
        ("cortex-a72", {"asimd"}),
        ("cortex-a76", {"asimd", "atomics", "asimdhp", "asimddp"}),
        ("neoverse-n1", {"asimd", "atomics", "asimdhp", "asimddp"}),
        ("a64fx", {"asimd", "atomics", "asimdhp", "sve"}),
    ],
)
def test_features_are_those_of_the_emulated_processor(core: str, has: set[str], program: Path) -> None:
    ran = subprocess.run(["qemu-aarch64", "-cpu", core, str(program)], capture_output=True, text=True, check=True)
    words = dict(zip((16, 26), map(int, ran.stdout.split()), strict=True))
    assert read_features(words.__getitem__) == has
    known = core_named(core)
    assert known is None or known.instructions <= has


def test_a_system_without_the_vector_says_nothing() -> None:
    assert read_features(lambda _: 0) == frozenset()
    if platform.machine() in ("x86_64", "AMD64"):
        assert reading.unlimited().architecture not in ("aarch64", "arm64")


def test_cores_by_their_register_or_by_the_table(tmp_path: Path) -> None:
    text = table(0xD05, 0xD05, 0xD0B)
    assert read_cores(tmp_path, text) == ((0x41, 0xD05), (0x41, 0xD05), (0x41, 0xD0B))
    for number in range(11):
        folder = tmp_path / f"cpu{number}" / "regs" / "identification"
        folder.mkdir(parents=True)
        register = 0x41 << 24 | 0x3 << 20 | 0xF << 16 | (0xD0C if number < 10 else 0xD03) << 4 | 1
        (folder / "midr_el1").write_text(f"{register:#018x}\n", encoding="ascii")
    assert read_cores(tmp_path, text) == ((0x41, 0xD0C),) * 10 + ((0x41, 0xD03),)
    assert (
        read_cores(tmp_path / "none", X86) == () == read_cores(tmp_path / "none", "CPU implementer : ?\nCPU part : 1")
    )


def test_unequal_cores_are_named_each_and_the_fastest_gives_the_rate() -> None:
    cores = ((0x41, 0xD05),) * 4 + ((0x41, 0xD0B),) * 2 + ((0x41, 0xFFF),)
    assert name_cores(cores) == "1 × core 0x41/0xfff, 2 × cortex-a76, 4 × cortex-a55"
    assert fastest_core(cores) == core_named("cortex-a76")
    assert name_cores(()) == "" and fastest_core(((0x41, 0xFFF),)) is None
    assert len({(core.implementer, core.part) for core in CORES}) == len(CORES) == len({core.name for core in CORES})


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process takes itself for one on an Arm processor with these files."""
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(reading, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(reading, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(reading, "_numpy_features", dict)
    monkeypatch.setattr(reading, "read_features", lambda: frozenset({"asimd", "asimddp", "atomics"}))
    reading._whole.cache_clear()
    yield tmp_path / "cpuinfo"
    reading._whole.cache_clear()


def test_nothing_of_the_machine_under_an_emulator_is_taken_for_the_processor(arm: Path) -> None:
    arm.write_text(X86, encoding="utf-8")
    assert host().instructions == {"asimd", "asimddp"}
    assert "AMD" not in str(host()) and host().architecture == "aarch64"


def test_the_peak_is_that_of_the_cores(arm: Path) -> None:
    arm.write_text(table(0xD40, 0xD40), encoding="utf-8")
    v1 = host()
    assert v1.model == "2 × neoverse-v1"
    frequency = arm.parent / "cpu0" / "cpufreq"
    frequency.mkdir(parents=True)
    (frequency / "cpuinfo_max_freq").write_text("3000000\n", encoding="ascii")
    reading._whole.cache_clear()
    core = core_named("neoverse-v1")
    assert core is not None
    assert host().peaks.gflops == pytest.approx(2 * LANES * core.products_a_cycle * 3.0 * v1.threads)
    assert host().byte_products == 4.0


def test_an_arm_processor_is_kept_to_no_set_of_x86(arm: Path) -> None:
    with pytest.raises(BadOption, match="this processor is Arm's"):
        host().kept_to("avx2")
    assert host().kept_to("") == host()
