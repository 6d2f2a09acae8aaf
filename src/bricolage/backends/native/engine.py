"""The native engine as a backend: fused kernels, generated for exactly the region at hand and compiled on this machine."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from bricolage._version import __version__
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
    Status,
    require_static,
)
from bricolage.backends.native import toolchain, tuning
from bricolage.backends.native.anatomy import kernels_of
from bricolage.backends.native.build import TITLE, planned, write
from bricolage.backends.native.isa import ISAS, Isa, available, named
from bricolage.backends.native.kernel import NativeKernel, Stopwatch
from bricolage.backends.native.library import (
    FLOAT32,
    Arithmetic,
    Source,
    generate,
)
from bricolage.backends.native.lowering import lower_operator
from bricolage.backends.native.peaks import measure
from bricolage.backends.native.tensors import Node
from bricolage.graph.graph import Graph, Operator
from bricolage.options import Precision

ISA_VARIABLE = "BRICOLAGE_NATIVE_ISA"
"""Environment variable that forces an instruction set, for tests and comparisons."""
_VARIANTS = {
    "f32": FLOAT32,
    "f32-winograd2": Arithmetic(tile=2),
    "f32-winograd4": Arithmetic(tile=4),
    "bf16": Arithmetic(parts=1, stores="operands"),
    "bf16-winograd2": Arithmetic(tile=2, parts=1, stores="operands"),
    "bf16-stored": Arithmetic(parts=1, stores="everything"),
    "bf16x3": Arithmetic(parts=2),
    "bf16x6": Arithmetic(parts=3),
}
_REACHES = {1: "medium", 2: "high", 3: "highest"}
"""For which precision a number of bfloat16 parts is tried: fewer are not accurate enough, more cost more."""
_TUNED = "-tuned"
"""End of the name of a variant whose products were cut up as a measured search found best."""
_TIMED_RUNS = 10


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
    title: ClassVar[str] = TITLE
    kind: ClassVar[Kind] = "engine"

    def status(self) -> Status:
        if toolchain.compiler() is None:
            return Missing("it needs a C compiler and finds none", "pip install 'bricolage[cc]'")
        if toolchain.version() is None:
            return Missing(f"the C compiler '{' '.join(toolchain.compiler() or ())}' does not run", "reinstall it")
        forced = os.environ.get(ISA_VARIABLE)
        if forced and named(forced) is None:
            return Missing(f"{ISA_VARIABLE}={forced} does not run here", f"unset {ISA_VARIABLE}")
        version = f"{__version__}+{_generation()[:8]}"
        return Available(f"{version}+{forced}" if forced else version)  # its costs are no other instruction set's

    def table_version(self) -> str | None:
        """bricolage's: the generator changes with every change of its code, and its own tests answer for those in between."""
        return __version__

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self, _declines)

    def variants(self, precision: Precision) -> Sequence[str]:
        isa = instruction_set()
        # Whether the error of larger tiles is small enough shows when it is verified.
        return tuple(
            name
            for name, way in _VARIANTS.items()
            if not way.parts or (_REACHES[way.parts] == precision and _lacks(way, isa) is None)
        )

    def tuned(self, variant: str) -> str | None:
        return None if variant.endswith(_TUNED) else variant + _TUNED

    def compile(self, region: RegionModel, variant: str, resources: Resources) -> Kernel:
        require_static(region, self.title)
        isa = instruction_set()
        if resources.cache is None:
            with tempfile.TemporaryDirectory(prefix="bricolage-native-") as folder:
                _make(region, variant, Path(folder), resources)
                return NativeKernel(region, Path(folder), resources)
        key = content_key(region, variant, isa.name, str(resources.threads), _generation())
        target = resources.cache / f"native-{key}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"native-{key}-", dir=target.parent) as folder:
                made = Path(folder) / "made"
                made.mkdir()
                _make(region, variant, made, resources)
                try:
                    made.replace(target)
                except OSError:  # another process was faster
                    if not target.exists():
                        raise
        return NativeKernel(region, target, resources)

    def anatomy(self, region: RegionModel, variant: str, resources: Resources) -> Anatomy:
        require_static(region, self.title)
        origins = dict[Node, str]()
        with tempfile.TemporaryDirectory(prefix="bricolage-native-") as folder:
            made = _make(region, variant, Path(folder), resources, origins)
            watch = Stopwatch(NativeKernel(region, Path(folder), resources), len(made.plan.kernels))
            spent = np.mean([watch.run() for _ in range(_TIMED_RUNS)], axis=0)
        peaks = measure(instruction_set(), _arithmetic(variant), resources.threads)
        return Anatomy(kernels_of(made.plan, origins, spent.tolist()), made.text, peaks)


def _arithmetic(variant: str) -> Arithmetic:
    """What a variant means.

    Raises:
        Refused: the instruction set lacks what it needs.
    """
    arithmetic = _VARIANTS[variant.removesuffix(_TUNED)]
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
    if arithmetic.stores == "everything" and not isa.matrix_unit:
        return f"{isa.name} has no matrix unit, without which residual streams in float32 cost no time"
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


def _make(
    region: RegionModel, variant: str, folder: Path, resources: Resources, origins: dict[Node, str] | None = None
) -> Source:
    """Writes the region's library to `folder`, after a search for the best choices where the variant asks for one. With
    `origins` (see `lower`), the library takes the time of its kernels.

    Raises:
        Refused: something in the region has no rule, or the C does not compile.
    """
    isa, arithmetic, threads = instruction_set(), _arithmetic(variant), resources.threads
    kernels = planned(region, isa, threads, arithmetic, origins)
    choices = tuning.search(region, kernels, isa, arithmetic, resources) if variant.endswith(_TUNED) else {}
    source = generate(kernels, isa, threads, arithmetic, choices, timed=origins is not None)
    write(source, isa, arithmetic, folder)
    return source
