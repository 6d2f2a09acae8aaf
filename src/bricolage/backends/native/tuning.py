"""A short measured search for how each product is computed best: which cuts, and whether by Winograd's transformation; then
whether kernels run in waves.

Rules of thumb decide first; every alternative changes one thing for all kernels that have it. A library of each is built that
takes the time of its kernels, and takes turns with the usual one; each kernel keeps the alternative that is clearly
faster than the rule of thumb. So as many libraries are built as there are alternatives, however many kernels there
are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bricolage import scratch
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel import Call
from bricolage.backends.native.cpu.arithmetic import Arithmetic
from bricolage.backends.native.cpu.build import write
from bricolage.backends.native.cpu.gemm import block_sizes
from bricolage.backends.native.cpu.kernel import NativeKernel, Stopwatch, on_random_inputs
from bricolage.backends.native.cpu.kernel_choice import DEFAULT, TILES, GemmConfig, KernelChoice
from bricolage.backends.native.cpu.module import generate
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.fuse.plan import FusionPlan
from bricolage.backends.native.fuse.waves import in_waves
from bricolage.backends.native.ir.tensors import Conv, MatMul
from bricolage.work.implementation import Scalar

_ROUNDS = 15
"""Runs of each library."""
_CLEARLY = 0.97
"""Part of the usual time that an alternative may take to be chosen ..."""
_OFTEN = 0.75
"""... and part of the rounds in which it must be faster."""


def parameters(planned: FusionPlan, target: CpuTarget, arithmetic: Arithmetic) -> dict[str, tuple[Scalar, ...]]:
    """What may be chosen of each kernel that is a product, by key (see `kernel_choice.to_parameters`)."""
    unit = bool(arithmetic.parts and target.isa.matrix_unit)
    mc_bytes, kc_bytes = block_sizes(target.l2_bytes, matrix_unit=unit)
    values: dict[str, tuple[Scalar, ...]] = {"parallel": ("n", "m"), "prefetch": (True, False), "mc_bytes": mc_bytes}
    if kc_bytes:
        values["kc_bytes"] = kc_bytes
    tiles = tuple(tile for tile in TILES if tile < arithmetic.tile)
    found: dict[str, tuple[Scalar, ...]] = {}
    for number, kernel in enumerate(planned.kernels):
        if isinstance(kernel.root, (Conv, MatMul)):
            found.update({f"{number}.{name}": allowed for name, allowed in values.items()})
            if tiles and isinstance(kernel.root, Conv):
                found[f"{number}.tile"] = tiles
    return found


def alternatives(space: Mapping[str, tuple[Scalar, ...]]) -> dict[KernelChoice, list[int]]:
    """What is tried instead of the usual choice, and for which kernels: one parameter at a time, but rows and depth of a block
    together, since they share a cache."""
    kernels: dict[KernelChoice, list[int]] = {}
    for number, values in _by_kernel(space).items():
        tried = [KernelChoice(tile=tile) for tile in values.get("tile", ())]
        tried += [KernelChoice(gemm=GemmConfig(parallel=axis)) for axis in values.get("parallel", ())]
        tried += [KernelChoice(gemm=GemmConfig(prefetch=fetched)) for fetched in values.get("prefetch", ())]
        depths = values.get("kc_bytes", (None,))
        tried += [KernelChoice(gemm=GemmConfig(mc, kc)) for mc in values.get("mc_bytes", ()) for kc in depths]
        for choice in tried:
            kernels.setdefault(choice, []).append(number)
    return kernels


def _by_kernel(space: Mapping[str, tuple[Scalar, ...]]) -> dict[int, dict[str, tuple[Any, ...]]]:
    found: dict[int, dict[str, tuple[Any, ...]]] = {}
    for key, values in space.items():
        number, _, name = key.partition(".")
        found.setdefault(int(number), {})[name] = values
    return found


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

    def built(choice: KernelChoice, kernels: Sequence[int], folder: Path) -> Stopwatch | None:
        """None for what has been built before."""
        source = generate(planned, target, arithmetic, dict.fromkeys(kernels, choice), timed=True)
        if source.text in texts:
            return None
        texts.add(source.text)
        write(source, target.isa, arithmetic, folder)
        return Stopwatch(NativeKernel(region, folder, resources), len(planned.kernels))

    texts: set[str] = set()
    tried: list[KernelChoice] = []
    times: list[tuple[np.ndarray, np.ndarray]] = []
    with scratch.using(scratch.temporary()) as first:
        usual = built(DEFAULT, (), first)
        assert usual is not None
        for choice, kernels in alternatives(parameters(planned, target, arithmetic)).items():
            with scratch.using(scratch.temporary()) as second:
                other = built(choice, kernels, second)
            if other is None:
                continue
            turns = [(usual.run(), other.run()) for _ in range(_ROUNDS)]
            tried.append(choice)
            times.append((np.array([own for own, _ in turns]), np.array([its for _, its in turns])))
    return choose(tried, times)


def gains_by_waves(
    region: RegionModel,
    planned: FusionPlan,
    choices: Mapping[int, KernelChoice],
    target: CpuTarget,
    arithmetic: Arithmetic,
    resources: Resources,
) -> bool:
    """Whether the region's kernels are clearly faster in waves: measured now, with its `choices`, where that saves meetings of
    threads.

    Raises:
        Refused: the C does not compile.
    """
    sources = [generate(one, target, arithmetic, choices) for one in (planned, in_waves(planned))]
    if sources[1].meetings >= sources[0].meetings:
        return False
    calls: list[Call] = []
    with scratch.using(scratch.temporary()) as first, scratch.using(scratch.temporary()) as second:
        for source, folder in zip(sources, (first, second), strict=True):
            write(source, target.isa, arithmetic, folder)
            calls.append(on_random_inputs(NativeKernel(region, folder, resources)))
        turns = np.array([[_milliseconds(call) for call in calls] for _ in range(1 + _ROUNDS)])[1:]
    return 0 in choose([DEFAULT], [(turns[:, :1], turns[:, 1:])])


def _milliseconds(call: Call) -> float:
    """Of one call, from as many as take a millisecond."""
    count, begun = 0, time.perf_counter()
    while (spent := (time.perf_counter() - begun) * 1e3) < 1.0 or not count:
        call()
        count += 1
    return spent / count
