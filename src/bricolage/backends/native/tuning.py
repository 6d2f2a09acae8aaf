"""A short measured search for how each product is computed best: which cuts, and whether by Winograd's transformation.

Rules of thumb decide first; every alternative changes one thing for all kernels. A library of each is built that
takes the time of its kernels, and takes turns with the usual one; each kernel keeps the alternative that is clearly
faster than the rule of thumb. So as many libraries are built as there are alternatives, however many kernels there
are."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.cpu.arithmetic import Arithmetic
from bricolage.backends.native.cpu.build import write
from bricolage.backends.native.cpu.isa import Isa
from bricolage.backends.native.cpu.kernel import NativeKernel, Stopwatch
from bricolage.backends.native.cpu.kernel_choice import DEFAULT, GemmConfig, KernelChoice
from bricolage.backends.native.cpu.module import generate
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.fuse.plan import FusionPlan

_ROUNDS = 15
"""Runs of each library."""
_CLEARLY = 0.97
"""Part of the usual time that an alternative may take to be chosen ..."""
_OFTEN = 0.75
"""... and part of the rounds in which it must be faster."""


def alternatives(arithmetic: Arithmetic, isa: Isa) -> tuple[KernelChoice, ...]:
    """What is tried instead of the usual choice."""
    kib = 1024
    tried = [
        KernelChoice(gemm=GemmConfig(parallel="n")),
        KernelChoice(gemm=GemmConfig(parallel="m")),
        KernelChoice(gemm=GemmConfig(prefetch=True)),
        KernelChoice(gemm=GemmConfig(prefetch=False)),
    ]
    if arithmetic.parts and isa.matrix_unit:
        sizes = [(384, 16), (1536, 16), (384, 64), (1536, 64), (768, 1 << 20)]
        tried += [KernelChoice(gemm=GemmConfig(mc * kib, kc * kib)) for mc, kc in sizes]
    else:
        tried += [KernelChoice(gemm=GemmConfig(size * kib)) for size in (96, 384, 768)]
    tried += [KernelChoice(tile) for tile in (0, 2) if tile < arithmetic.tile]
    return tuple(tried)


def choose(tried: Sequence[KernelChoice], times: Sequence[tuple[np.ndarray, np.ndarray]]) -> Mapping[int, KernelChoice]:
    """What each kernel should do, where it is not the usual.

    `times` are milliseconds [run, kernel] of the usual library and of an alternative that took turns with it, for each of
    `tried`. An alternative must be faster than the usual choice on the whole, and in most of the rounds.
    """
    found: dict[int, KernelChoice] = {}
    best: dict[int, float] = {}
    for choice, (usual, other) in zip(tried, times, strict=True):
        share = np.median(other, axis=0) / np.median(usual, axis=0)
        often = np.mean(other < usual, axis=0) > _OFTEN
        for kernel in np.flatnonzero((share < _CLEARLY) & often):
            if share[kernel] < best.get(int(kernel), 1.0):
                best[int(kernel)], found[int(kernel)] = float(share[kernel]), choice
    return found


def search(
    region: RegionModel, planned: FusionPlan, target: CpuTarget, arithmetic: Arithmetic, resources: Resources
) -> Mapping[int, KernelChoice]:
    """What each kernel should do, where it is not the usual: measured now.

    Raises:
        Refused: the C does not compile.
    """
    numbers = range(len(planned.kernels))

    def built(choice: KernelChoice, folder: Path) -> Stopwatch | None:
        """None for what has been built before."""
        source = generate(planned, target, arithmetic, dict.fromkeys(numbers, choice), timed=True)
        if source.text in texts:
            return None
        texts.add(source.text)
        write(source, target.isa, arithmetic, folder)
        return Stopwatch(NativeKernel(region, folder, resources), len(numbers))

    texts: set[str] = set()
    tried: list[KernelChoice] = []
    times: list[tuple[np.ndarray, np.ndarray]] = []
    with tempfile.TemporaryDirectory(prefix="bricolage-native-") as first:
        usual = built(DEFAULT, Path(first))
        assert usual is not None
        for choice in alternatives(arithmetic, target.isa):
            with tempfile.TemporaryDirectory(prefix="bricolage-native-") as second:
                other = built(choice, Path(second))
            if other is None:
                continue
            turns = [(usual.run(), other.run()) for _ in range(_ROUNDS)]
            tried.append(choice)
            times.append((np.array([own for own, _ in turns]), np.array([its for _, its in turns])))
    return choose(tried, times)
