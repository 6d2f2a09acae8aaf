"""The native engine as a backend: fused kernels, generated for exactly the region at hand and compiled on this machine."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key
from bricolage.backends.interface import (
    Anatomy,
    Available,
    Backend,
    Claim,
    Kernel,
    Kind,
    Missing,
    Refused,
    RegionModel,
    Resources,
    StaticKernel,
    Status,
    require_static,
)
from bricolage.backends.native import toolchain
from bricolage.backends.native.anatomy import kernels_of
from bricolage.backends.native.fusion import plan
from bricolage.backends.native.isa import ISAS, Isa, available, named
from bricolage.backends.native.library import FLOAT32, Arithmetic, Source, flags_of, generate, transform_of
from bricolage.backends.native.lowering import lower, lower_operator
from bricolage.backends.native.peaks import measure
from bricolage.backends.native.rules import NoRule
from bricolage.backends.native.tensors import Conv, MatMul, Node
from bricolage.graph.graph import Graph, Operator
from bricolage.graph.prepare import infer
from bricolage.options import Precision
from bricolage.runtime.buffers import aligned
from bricolage.runtime.kernel import Array, Call

ISA_VARIABLE = "BRICOLAGE_NATIVE_ISA"
"""Environment variable that forces an instruction set, for tests and comparisons."""
_VARIANTS = {
    "f32": FLOAT32,
    "f32-winograd2": Arithmetic(tile=2),
    "f32-winograd4": Arithmetic(tile=4),
    "bf16": Arithmetic(parts=1),
    "bf16-winograd2": Arithmetic(tile=2, parts=1),
    "bf16x3": Arithmetic(parts=2),
    "bf16x6": Arithmetic(parts=3),
}
_REACHES = {1: "medium", 2: "high", 3: "highest"}
"""For which precision a number of bfloat16 parts is tried: fewer are not accurate enough, more cost more."""
_TIMED_RUNS = 10
_SPINS_ALONE, _SPINS_SHARED = 12_000, 0  # some 0.3 ms, so that another kernel soon has the cores


def instruction_set() -> Isa:
    """The best instruction set that runs here, or the one that is forced.

    Raises:
        Refused: the forced one is unknown or does not run here.
    """
    wanted = os.environ.get(ISA_VARIABLE)
    if not wanted:
        return available()[0]
    found = named(wanted)
    if found is None:
        known = ", ".join(isa.name for isa in ISAS)
        raise Refused(backend=Native.title, reason=f"{ISA_VARIABLE}={wanted} does not run here (there are: {known})")
    return found


class Native(Backend):
    """bricolage's own engine."""

    name: ClassVar[str] = "native"
    title: ClassVar[str] = "bricolage native"
    kind: ClassVar[Kind] = "engine"

    def status(self) -> Status:
        if toolchain.compiler() is None:
            return Missing("it needs a C compiler and finds none", "pip install 'bricolage[cc]'")
        if toolchain.version() is None:
            return Missing(f"the C compiler '{' '.join(toolchain.compiler() or ())}' does not run", "reinstall it")
        return Available(f"{importlib.metadata.version('bricolage')}+{_generation()[:8]}")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self.name, _declines)

    def variants(self, precision: Precision) -> Sequence[str]:
        isa = instruction_set()
        # Whether the error of larger tiles is small enough shows when it is verified.
        return tuple(
            name
            for name, way in _VARIANTS.items()
            if not way.parts or (_REACHES[way.parts] == precision and _lacks(way, isa) is None)
        )

    def compile(self, region: RegionModel, variant: str, resources: Resources) -> Kernel:
        require_static(region, self.title)
        isa, arithmetic = instruction_set(), _arithmetic(variant)
        if resources.cache is None:
            with tempfile.TemporaryDirectory(prefix="bricolage-native-") as folder:
                _build(region, Path(folder), isa, resources.threads, arithmetic)
                return _NativeKernel(region, Path(folder), resources)
        key = content_key(region, variant, isa.name, str(resources.threads), _generation())
        target = resources.cache / f"native-{key}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"native-{key}-", dir=target.parent) as folder:
                made = Path(folder) / "made"
                made.mkdir()
                _build(region, made, isa, resources.threads, arithmetic)
                try:
                    made.replace(target)
                except OSError:  # another process was faster
                    if not target.exists():
                        raise
        return _NativeKernel(region, target, resources)

    def anatomy(self, region: RegionModel, variant: str, resources: Resources) -> Anatomy:
        require_static(region, self.title)
        isa, arithmetic = instruction_set(), _arithmetic(variant)
        with tempfile.TemporaryDirectory(prefix="bricolage-native-") as name:
            folder, origins = Path(name), dict[Node, str]()
            made = _build(region, folder, isa, resources.threads, arithmetic, origins)
            spent = _NativeKernel(region, folder, resources).spent(len(made.plan.kernels))
        peaks = measure(isa, arithmetic, resources.threads)
        return Anatomy(kernels_of(made.plan, origins, spent), made.text, peaks)


def _arithmetic(variant: str) -> Arithmetic:
    """What a variant means.

    Raises:
        Refused: the instruction set lacks what it needs.
    """
    arithmetic = _VARIANTS[variant]
    lacking = _lacks(arithmetic, instruction_set())
    if lacking is not None:
        raise Refused(backend=Native.title, reason=lacking)
    return arithmetic


def _lacks(arithmetic: Arithmetic, isa: Isa) -> str | None:
    """What an instruction set lacks for it, if anything."""
    if arithmetic.parts and not isa.multiplies_bfloat16:
        return f"{isa.name} has no products of bfloat16 here"
    if arithmetic.parts > 1 and not isa.matrix_unit:
        return f"{isa.name} has no matrix unit, without which float32 is faster than its parts in bfloat16"
    return None


def _declines(graph: Graph, operator: Operator) -> str | None:
    return lower_operator(operator.node, graph.opsets.get(operator.node.domain, 1))


@cache
def _generation() -> str:
    """Hash of the generator's own code and of the compiler: other code makes other libraries."""
    digest = hashlib.sha256((toolchain.version() or "").encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(
    region: RegionModel,
    folder: Path,
    isa: Isa,
    threads: int,
    arithmetic: Arithmetic,
    origins: dict[Node, str] | None = None,
) -> Source:
    """Writes the region's library, its constants and the sizes of its memory. With `origins` (see `lower`), the library
    takes the time of its kernels.

    Raises:
        Refused: something in the region has no rule, or the C does not compile.
    """
    try:
        infer(region.model)
        inputs, outputs = lower(region.model, origins)
    except NoRule as reason:
        raise Refused(backend=Native.title, reason=str(reason)) from reason
    planned = plan(inputs, outputs, bfloat16=arithmetic.parts == 1)
    tile, roots = arithmetic.tile, [kernel.root for kernel in planned.kernels]
    if arithmetic.parts and not any(isinstance(root, (Conv, MatMul)) for root in roots):
        raise Refused(backend=Native.title, reason="the region has no products, which are what bfloat16 is for")
    chosen = [transform_of(root, planned, isa, threads, arithmetic) for root in roots if isinstance(root, Conv)]
    if tile and not any(transform is not None and transform.m == tile for transform in chosen):
        raise Refused(backend=Native.title, reason=f"no convolution gains from tiles of {tile}x{tile}")
    source = generate(planned, isa, threads, arithmetic, timed=origins is not None)
    toolchain.build(source.text, flags_of(isa, arithmetic), folder / "region.so", Native.title)
    source.weights.tofile(folder / "weights.bin")
    sizes = {"arena": source.arena_bytes, "own": -(-source.own_bytes // 64) * 64, "shared": source.shared_bytes}
    (folder / "sizes.json").write_text(json.dumps(sizes))
    return source


class _Team:
    """Threads that run regions; they end with the last kernel that uses them."""

    def __init__(self, library: ctypes.CDLL, threads: int, spins: int) -> None:
        self._library = library
        self.handle = library.region_team(threads, spins)

    def __del__(self) -> None:
        self._library.region_free(self.handle)


_TEAMS: weakref.WeakValueDictionary[tuple[int, int], _Team] = weakref.WeakValueDictionary()
_TEAMS_LOCK = threading.Lock()


def _team(library: ctypes.CDLL, threads: int, spins: int) -> _Team:
    """The process's team of that kind. Any library can make it, and all can use it: they have the same code for it."""
    with _TEAMS_LOCK:
        found = _TEAMS.get((threads, spins))
        if found is None:
            found = _TEAMS[threads, spins] = _Team(library, threads, spins)
        return found


class _NativeKernel(StaticKernel):
    def __init__(self, region: RegionModel, folder: Path, resources: Resources) -> None:
        super().__init__(Native.title, region.inputs, region.outputs)
        sizes = json.loads((folder / "sizes.json").read_text())
        self._library = ctypes.CDLL(str(folder / "region.so"))
        self._library.region_team.restype = ctypes.c_void_p
        self._library.region_team.argtypes = [ctypes.c_long, ctypes.c_long]
        self._library.region_free.argtypes = [ctypes.c_void_p]
        self._library.region_free.restype = None
        self._library.region_run.restype = None
        self._library.region_run.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_size_t]
        with (folder / "weights.bin").open("rb") as file:
            self._weights = aligned((os.fstat(file.fileno()).st_size,), np.dtype(np.uint8))
            file.readinto(self._weights.data)
        self._own = int(sizes["own"])
        self._arena = aligned((int(sizes["arena"]) + 64,), np.dtype(np.uint8))
        self._scratch = aligned((self._own * resources.threads + int(sizes["shared"]) + 64,), np.dtype(np.uint8))
        self._team = _team(self._library, resources.threads, _SPINS_ALONE if resources.alone else _SPINS_SHARED)

    def spent(self, kernels: int) -> list[float]:
        """Milliseconds of each kernel of a timed library, on random inputs, averaged over some runs."""
        draw = np.random.default_rng(0)
        inputs, outputs = ([aligned(info.sizes, info.numpy) for info in infos] for infos in (self.inputs, self.outputs))
        for array in inputs:
            array[...] = draw.standard_normal(array.shape) if array.dtype.kind == "f" else 0
        call = self.bind(inputs, outputs)
        self._library.region_spent.restype = ctypes.POINTER(ctypes.c_double)
        total = np.ctypeslib.as_array(self._library.region_spent(), (kernels,))
        call()
        total[...] = 0
        for _ in range(_TIMED_RUNS):
            call()
        return [float(ms) / _TIMED_RUNS for ms in total]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        memory = (*inputs, *outputs)
        places = (ctypes.c_void_p * max(1, len(memory)))(*(array.ctypes.data for array in memory))
        call = partial(
            self._library.region_run,
            self._team.handle,
            ctypes.addressof(places),
            self._arena.ctypes.data,
            self._weights.ctypes.data,
            self._scratch.ctypes.data,
            self._own,
        )
        call.__dict__["keeps"] = (self, places, memory)  # whoever holds the call holds what it reads
        return call
