"""What compilers make of loops: vectors where a kernel stores several results or calls large functions. The order of panels."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.loaded_library import NativeKernel
from bricolage.device.caches import Cache, Caches
from bricolage.native.build import plan_fused_kernels, write_library
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import ISAS
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.module import generate
from tests.backends import regions
from tests.native.ir.lowerings.test_recurrent import Cell
from tests.native.test_strands import target

_AVX2 = CpuTarget(next(isa for isa in ISAS if isa.name == "avx2"), 2, Caches())
"""For code that is compiled and not run."""
_CELL = Cell("LSTM", steps=3, batch=1, inputs=8, hidden=64, bias=False)


def vectorised(source: CSource, folder: Path) -> tuple[list[int], list[int]]:
    """Lines of loops over elements, and those of them of which GCC says that it makes vectors."""
    if (
        "Free Software Foundation"
        not in subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False).stdout
    ):
        pytest.skip("only GCC tells which loops it vectorised, in these words")
    (file := folder / "loops.c").write_text(source.text, encoding="utf-8")
    flags = (*toolchain.FLAGS, "-O3", *_AVX2.isa.flags, "-fopt-info-vec-optimized")
    command = ["cc", *flags, "-c", str(file), "-o", "/dev/null"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    lines = source.text.split("\n")
    loops = [n + 1 for n, line in enumerate(lines) if "for (long i = begin" in line]
    said = {int(found) for found in re.findall(r"loops\.c:(\d+):\d+: optimized: loop vectorized", told)}
    return loops, [line for line in loops if said & {line, line + 1}]


def test_loops_that_store_several_results_become_vectors(tmp_path: Path) -> None:
    """A cell reads eleven pairs of memories that might overlap: GCC asks at run time for ten of them at most."""
    plan = plan_fused_kernels(_CELL.write(tmp_path)[0], _AVX2, FLOAT32, {}, strands=False, slices=False)
    loops, found = vectorised(generate(plan, _AVX2), tmp_path)
    assert loops and found == loops


def test_functions_never_become_calls(tmp_path: Path) -> None:
    """In a large library GCC ends to inline by itself, and a loop with a call has no vectors: YOLO-v4 took twice as long."""
    body = "a = Softplus (x)  b = Tanh (a)  c = Erf (b)  d = Sin (c)  e = Pow (d, x)  y = Log (e)"
    region = regions.region(tmp_path, body, "float[40, 32] x", "float[40, 32] y")
    source = generate(plan_fused_kernels(region, _AVX2, FLOAT32, {}), _AVX2)
    assert source.text.count("nat_softplus(") > 1
    (file := tmp_path / "called.c").write_text(source.text, encoding="utf-8")
    command = ["cc", *toolchain.FLAGS, "-O0", *_AVX2.isa.flags, "-S", str(file), "-o", "-"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "call" in made and not re.findall(r"call\s+nat_\w+", made)


def _run(region: RegionModel, source: CSource, folder: Path, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    folder.mkdir()
    write_library(source, target().isa, FLOAT32, folder)
    _, outputs, call = regions.bound(NativeKernel(region, folder, Resources(threads=2)), region, *values)
    call()
    return outputs


def test_weights_larger_than_a_cache_are_read_to_and_fro(tmp_path: Path) -> None:
    region, values = replace(_CELL, hidden=96).write(tmp_path)
    usual = target()
    small = replace(usual, caches=Caches((Cache(1, 1024), Cache(2, 4096))))
    plan = plan_fused_kernels(region, usual, FLOAT32, {}, strands=False)
    there, back = (generate(plan, one) for one in (usual, small))
    assert "panel--" not in there.text and 0 < back.text.count("panel--") < back.text.count("panel++")
    one, other = (_run(region, each, tmp_path / name, values) for name, each in (("there", there), ("back", back)))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
