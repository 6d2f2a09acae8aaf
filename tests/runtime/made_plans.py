"""Plans made by hand, and backends that run any region slowly but surely and tell what they compiled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from bricolage.backends import registry
from bricolage.backends.interface import Available, Backend, Claim, Missing, RegionModel, Resources, Status
from bricolage.backends.kernel import Call, Kernel, StaticKernel
from bricolage.base.cache import cache_directory
from bricolage.base.options import Options
from bricolage.device.host import select_device
from bricolage.graph.extract import write_model
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare, simplify
from bricolage.graph.store import Store
from bricolage.plan import artifact
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.decision_record import DecisionRecord
from bricolage.plan.number_sets import format_numbers
from bricolage.plan.plan import Bucket, Plan, Provenance, TensorSpec
from bricolage.plan.race_outcome import Contestant, RaceOutcome
from bricolage.plan.shipped_program import ORIGINAL, PlannedRegion, ShippedProgram
from bricolage.verify.reference import evaluate
from bricolage.work import bits
from bricolage.work.implementation import Assignment, Implementation, KernelConfig, Placement
from tests.graph.models import parse

# --- backends -------------------------------------------------------------------------------------------------------


class _Evaluated(StaticKernel):
    def __init__(self, title: str, region: RegionModel) -> None:
        super().__init__(title, region.inputs, region.outputs)
        self._model = region.model
        self.factor = 1.0

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Call:
        def call() -> None:
            Quick.cores.append(("called", allowed()))
            given = {info.name: array for info, array in zip(self.inputs, inputs, strict=True)}
            found = evaluate(self._model, given, dtype=np.float32)
            for info, target in zip(self.outputs, outputs, strict=True):
                np.copyto(target, self.factor * found[info.name])

        return call


Compiled = tuple[str, tuple[str, ...], KernelConfig, Resources]
"""Backend, operator types, configuration, resources."""


def allowed() -> frozenset[int]:
    """The cores on which this thread may run; none where the system does not say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


class Quick(Backend):
    """Runs a region by the reference evaluator. What this process compiled is in `compiled`."""

    name: ClassVar[str] = "quick"
    dynamic: ClassVar[bool] = False
    compiled: ClassVar[list[Compiled]] = []
    cores: ClassVar[list[tuple[str, frozenset[int]]]] = []
    """On which cores the thread may run that compiled, or called."""

    def status(self) -> Status:
        return Available("1.0")

    def claims(self) -> Iterable[Claim]:
        return ()

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        types = tuple(node.op_type for node in region.model.graph)
        Quick.compiled.append((self.name, types, config, resources))
        Quick.cores.append(("compiled", allowed()))
        return _Evaluated(self.name, region)


class Nimble(Quick):
    """Another one of that kind."""

    name: ClassVar[str] = "nimble"


TESTS = "TESTS_PROCESS"
"""Environment variable with the number of the process that must not be harmed."""


class Fragile(Quick):
    """Ends its process at an empty tensor, and is wrong on one row."""

    name: ClassVar[str] = "fragile"

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        rows = region.inputs[0].sizes[0]
        if os.environ[TESTS] == str(os.getpid()):
            assert rows > 1, "sizes that were never tried must not come here"
        elif not rows:
            os.kill(os.getpid(), signal.SIGABRT)
        kernel = super().compile(region, config, resources)
        assert isinstance(kernel, _Evaluated)
        kernel.factor = 1.5 if rows == 1 else 1.0
        return kernel


class Slow(Quick):
    """Takes long to compile, so it keeps its code where it may; `compilations` counts them in all processes."""

    name: ClassVar[str] = "slow-compiler"
    compiles_slowly: ClassVar[bool] = True

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        kernel = super().compile(region, config, resources)
        code = resources.cache / f"{config.text}.code" if resources.cache is not None else None
        if code is None or not code.exists():
            with (cache_directory() / "compilations").open("a", encoding="utf-8") as file:
                file.write(f"{code}\n")
        if code is not None:
            code.write_text("compiled", encoding="utf-8")
        return kernel


class Absent(Quick):
    """Runs nowhere."""

    name: ClassVar[str] = "absent"

    def status(self) -> Status:
        return Missing("it does not exist", "nothing helps")


def compilations() -> list[str]:
    """Where the code of each compilation of `Slow` went, "None" where it was not kept."""
    path = cache_directory() / "compilations"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def register_all() -> None:
    for backend in (Quick, Nimble, Fragile, Slow, Absent):
        registry.register(backend.name, f"{__name__}:{backend.__name__}")


def forget_all() -> None:
    """Other tests must not meet them."""
    Quick.compiled.clear()
    registry._sources.cache_clear()
    registry.get.cache_clear()


# --- plans ----------------------------------------------------------------------------------------------------------

BODY = "a=Relu(x) b=Tanh(a) c=Add(b,x) y=Relu(c)"


def symbolic_model(body: str = BODY) -> ir.Model:
    """A model of tensors of n × 4."""
    return parse(f'<ir_version: 8, opset_import: ["" : 18]> made (float[n,4] x) => (float[n,4] y) {{ {body} }}')


def expected(x: np.ndarray) -> np.ndarray:
    """What `symbolic_model` computes."""
    return np.maximum(np.tanh(np.maximum(x, 0)) + x, 0)


def whole(graph: Graph, implementation: Implementation) -> Placement:
    return (Assignment(graph.everything.bits, implementation),)


def baseline(implementation: Implementation, ms: float | None, accepted: bool = True) -> Contestant:
    interval = None if ms is None else (ms * 0.99, ms * 1.01)
    return Contestant(
        str(implementation), "baseline", ms, interval, 0.0, accepted, implementation=implementation, compile_s=0.1
    )


def made_bucket(
    folder: Path,
    graph: Graph,
    placement: Placement,
    sizes: Mapping[str, int],
    contestants: Sequence[Contestant] = (),
    variant: str = ORIGINAL,
) -> Bucket:
    """A bucket whose graph is in the folder, which is made where it is not there."""
    folder.mkdir(exist_ok=True)
    regions = tuple(
        PlannedRegion(
            one.implementation,
            format_numbers(tuple(bits.members(one.region))),
            one.region.bit_count(),
            "",
            "",
            0,
            0,
            None,
            False,
        )
        for one in placement
    )
    entered = tuple(contestants) or (baseline(placement[0].implementation, 1.0),)
    best = entered[0].name
    program = ShippedProgram(sizes, Store(folder).graph(graph), len(graph), regions, variant=variant)
    return Bucket(program, RaceOutcome.unraced(best, entered), Verification(0.0, 1e-6), DecisionRecord(None))


def graph_of_size(n: int, body: str = BODY) -> Graph:
    return simplify(prepare(symbolic_model(body), {"n": n}).model)


def made_plan(folder: Path, *buckets: Bucket, options: Options | None = None, body: str = BODY) -> Plan:
    """A plan for this machine; its model is in the folder."""
    write_model(symbolic_model(body), folder / artifact.MODEL)
    options = options or Options(threads=1)
    device = select_device(options.isa, options.cores)
    names = dict.fromkeys(name for bucket in buckets for name in bucket.program.backends)
    versions = {name: registry.version(name) for name in names if name in registry.names() and name != Absent.name}
    origin = Provenance("0.1.0", versions, device.fingerprint(), str(device), options, "2026-01-02T03:04:05Z")
    ends = (TensorSpec("x", "float32", ("n", 4)),), (TensorSpec("y", "float32", ("n", 4)),)
    return Plan("made.onnx", "0" * 32, *ends, buckets, origin)
