"""The native engine on 64-bit Arm in an emulator: random regions, and that the emulator stops what a processor lacks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.arm.emulation import COMPILER, EmulatedLibrary, EmulatorEnded, Processor, emulate, find_lacking_tool
from bricolage.testing import SideBySide
from tests.native.exactness import check

pytestmark = pytest.mark.skipif(bool(find_lacking_tool()), reason=f"{find_lacking_tool()} is not here")


def test_random_regions_are_right_on_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(Processor("neon"), monkeypatch.setattr)
    check(SideBySide(range(4)), 0)


def test_an_instruction_that_the_processor_lacks_ends_the_run(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    text = '__attribute__((constructor)) static void dot(void) { __asm__ volatile("sdot v0.4s, v1.16b, v2.16b"); }'
    command = [COMPILER, "-shared", "-fPIC", "-march=armv8.2-a+dotprod", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=text, text=True, check=True)
    with pytest.raises(EmulatorEnded, match="an illegal instruction"):
        EmulatedLibrary(Processor("neon"), library, tmp_path)
    # A processor that has it gets as far as the functions, which this library lacks.
    with pytest.raises(EmulatorEnded, match="ended with 2"):
        EmulatedLibrary(Processor("dotprod", "max"), library, tmp_path)
