"""Artifacts that leave Python, and the libraries that they become."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bricolage.backends import registry
from bricolage.base.options import Options
from bricolage.device.host import select_device
from bricolage.graph.extract import write_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.cpu import toolchain
from bricolage.plan import artifact
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.plan import Bucket, Plan, Provenance
from bricolage.plan.planned_interface import input_specs, output_specs
from bricolage.plan.schedules import PlannedSchedule
from bricolage.work.implementation import Assignment, Implementation, KernelConfig
from tests.runtime.made_plans import made_bucket

SIZES = (1, 40)
"""Of the open dimension `n`, in the order of the buckets."""
NATIVE = Implementation("native", KernelConfig("f32"))


def model() -> ir.Model:
    """Two products of open rows with a softmax behind them, and a second output."""
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> net (float[n, 64] x, int64[n, 1] ids) => (float[n, 24] y, float[n, 40] hidden)'
        "{ a = MatMul (x, w) hidden = Relu (a) c = MatMul (hidden, v) e = Gather (table, ids) f = Squeeze (e, axes)"
        " s = Add (c, f) y = Softmax <axis = -1> (s) }"
    )
    proto, draw = onnx.parser.parse_model(text), np.random.default_rng(0)
    constants = {
        "w": draw.standard_normal((64, 40)).astype(np.float32),
        "v": draw.standard_normal((40, 24)).astype(np.float32),
        "table": draw.standard_normal((7, 24)).astype(np.float32),
        "axes": np.array([1]),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    parsed: ir.Model = ir.from_proto(proto)
    return parsed


def write_artifact(
    folder: Path,
    *,
    regions: int = 1,
    other: str = "",
    threads: int = 2,
    symbolic: ir.Model | None = None,
    schedule: PlannedSchedule | None = None,
) -> Path:
    """An artifact of our engine alone, in so many regions, unless the last one is another backend's."""
    parts = folder / "parts"
    parts.mkdir(parents=True)
    symbolic, buckets = symbolic or model(), list[Bucket]()
    write_model(symbolic, parts / artifact.MODEL)
    Store(parts).share([symbolic])
    for size in SIZES:
        graph = prepare(symbolic, {"n": size})
        cut = [len(graph) * number // regions for number in range(regions + 1)]
        placement = tuple(
            Assignment(sum(1 << i for i in range(start, stop)), NATIVE) for start, stop in itertools.pairwise(cut)
        )
        if other:
            last = placement[-1]
            placement = (*placement[:-1], Assignment(last.region, Implementation(other, KernelConfig("f32"))))
        bucket = made_bucket(parts, graph, placement, {"n": size})
        buckets.append(replace(bucket, verification=Verification(0.0, 1e-5)).with_schedule(schedule))
    path = folder / "net.bricolage"
    save_plan(path, symbolic, buckets, threads)
    return path


def save_plan(path: Path, symbolic: ir.Model, buckets: Sequence[Bucket], threads: int) -> None:
    """An artifact for this machine, of buckets whose graphs lie in the folder `parts` beside it."""
    options = Options(threads=threads)
    device = select_device(options.isa, options.cores)
    names = dict.fromkeys(name for bucket in buckets for name in bucket.program.backends)
    versions = {name: registry.version(name) for name in names}
    origin = Provenance("0.1.0", versions, device.fingerprint(), str(device), options, "2026-01-02T03:04:05Z")
    ends = input_specs(symbolic), output_specs(symbolic)
    plan = Plan("net.onnx", "0" * 32, *ends, tuple(buckets), origin)
    artifact.save(plan, path.parent / "parts", path)


@dataclass(frozen=True)
class Built:
    """A library that CMake has built."""

    source: Path
    folder: Path

    @property
    def weights(self) -> Path:
        return self.source / "share" / "net"

    def run(self, program: str, *words: object, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        command = [*prefix, str(self.folder / program), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def build(source: Path, folder: Path, *options: str) -> Built:
    for command in (
        ["cmake", "-S", str(source), "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "-j2"],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return Built(source, folder)


def need(*programs: str) -> None:
    """Skips a test for which a program lacks, and says which one."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here")


@cache
def c_compiler() -> str:
    command = toolchain.compiler()
    if command is None or len(command) > 1:
        pytest.skip("there is no C compiler of the system")
    return command[0]


def compile_c(
    folder: Path, text: str, source: Path, *flags: str, compiler: Sequence[str] = (), suffix: str = "c"
) -> Path:
    """A program with the C of an exported library in it."""
    (main := folder / f"main.{suffix}").write_text(text, encoding="utf-8")
    program = folder / "main"
    objects = sorted(str(path) for path in (source / "src").glob("*.c"))
    words = [
        *(compiler or [c_compiler()]),
        "-g",
        "-O1",
        "-std=gnu11",
        "-w",
        "-pthread",
        f"-I{source / 'include'}",
        *flags,
    ]
    ran = subprocess.run(
        [*words, str(main), *objects, "-lm", "-o", str(program)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return program


def zig() -> str:
    """Zig's compiler of the wheel."""
    return str(Path(pytest.importorskip("ziglang").__file__).parent / "zig")
