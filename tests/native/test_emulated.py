"""Our engine on a processor without AVX: a slice of `make test-as` and `make test-emulated`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.processor import current, masked, missing
from tests.backends import regions

_RUN = """
import sys
from pathlib import Path
import numpy as np
from bricolage.backends.interface import RegionModel, Resources
from bricolage.native.cpu.isa import available_isas
from bricolage.backends.native.engine import Native
from bricolage.work.implementation import KernelConfig
folder = Path(sys.argv[1])
x = np.load(folder / "x.npy")
kernel = Native().compile(RegionModel(folder / "region.onnx"), KernelConfig("f32"), Resources(threads=2))
np.save(folder / "y.npy", kernel.run([x])[0])
print(available_isas()[0].name)
"""


def test_without_avx(tmp_path: Path) -> None:
    """Where CPUID cannot be masked, in an emulator: there the system still tells of the real processor's flags, and what is
    chosen comes from what the emulated one answers."""
    python, variables = [sys.executable], dict(os.environ)
    reason = missing("sse")
    if reason is None:
        variables = masked("sse", os.environ)
    elif current():
        pytest.skip(reason)
    elif shutil.which("qemu-x86_64"):
        python = ["qemu-x86_64", "-cpu", "Nehalem", sys.executable]
        variables.pop(
            "OPENBLAS_CORETYPE", None
        )  # where it is set, for the processor that is there: numpy's products would use AVX2
    else:
        pytest.skip(f"{reason}, and qemu-x86_64 (Debian's qemu-user) is not installed")
    model, x = regions.attention_block(tmp_path), regions.noise(1, 16, 32)
    np.save(tmp_path / "x.npy", x)
    command = [*python, "-c", _RUN, str(tmp_path)]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, encoding="utf-8")
    assert (ran.returncode, ran.stdout) == (0, "generic\n"), ran.stderr
    assert regions.error([np.load(tmp_path / "y.npy")], regions.reference(model, x)[:1]) < 2e-6
