"""A native program as a task graph: any order that its dependences allow gives the bits of the static program."""

from __future__ import annotations

import ctypes
import json
import os
import random
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.engine.online import main
from benchmarks.engine.online_program import apart, pieces_library, task_graph
from benchmarks.scheduling.randwire import randwire
from benchmarks.scheduling.schedule_instances import RANDOM_GRAPHS
from bricolage.backends import registry
from bricolage.backends.interface import Missing, RegionModel, Resources
from bricolage.backends.native.engine import instruction_set
from bricolage.backends.native.loaded_library import NativeKernel
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.build import plan_fused_kernels, write_library
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.module import generate

no_compiler = pytest.mark.skipif(isinstance(registry.get("native").status(), Missing), reason="no C compiler")


@pytest.fixture(autouse=True)
def quickly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_NATIVE_LEVEL", "1")


def small() -> ir.Model:
    return randwire([RANDOM_GRAPHS / "ws-32-4-0.75-3.txt"], channels=8, size=16)


@no_compiler
@pytest.mark.parametrize("separate", [False, True])
def test_pieces_in_any_allowed_order_give_the_bits_of_the_static_program(tmp_path: Path, separate: bool) -> None:
    graph = prepare(small(), {})
    store = Store(tmp_path)
    store.share([graph.model])
    region = RegionModel(store.region(graph.everything, "all"))
    machine = CpuTarget(instruction_set(host()), 2)
    fusion = plan_fused_kernels(region, machine, FLOAT32, {})
    used = fusion.arena_bytes
    if separate:
        apart(fusion)
        assert fusion.arena_bytes > used
    source = generate(fusion, machine, FLOAT32)
    tasks = task_graph(source)
    assert max(tasks.pieces) > 1 and len(set(tasks.kernel)) == len(fusion.kernels)
    assert any(len(some) > 1 for some in tasks.before), "the network branches"
    write_library(source, machine.isa, FLOAT32, tmp_path)
    static = NativeKernel(region, tmp_path, Resources(threads=2))
    inputs = [allocate_aligned(info.sizes, info.numpy) for info in static.inputs]
    for array in inputs:
        array[...] = np.random.default_rng(1).standard_normal(array.shape)
    outputs = [[allocate_aligned(info.sizes, info.numpy) for info in static.outputs] for _ in range(2)]
    static.bind(inputs, outputs[0])()
    library = pieces_library(source, tasks, machine.isa, tmp_path)
    library.online_piece.argtypes = [ctypes.c_long, ctypes.c_long, *[ctypes.c_void_p] * 5]
    arena = allocate_aligned((source.arena_bytes + 64,), np.dtype(np.uint8))
    weights = allocate_aligned(source.weights.shape, source.weights.dtype)
    weights[...] = source.weights
    own = allocate_aligned((source.thread_scratch_bytes + 64,), np.dtype(np.uint8))
    shared = {k: allocate_aligned((source.shared_scratch_bytes + 64,), np.dtype(np.uint8)) for k in set(tasks.kernel)}
    memory = (*inputs, *outputs[1])
    addresses = (ctypes.c_void_p * len(memory))(*(array.ctypes.data for array in memory))
    draw = random.Random(5)
    for _ in range(3):
        outputs[1][0].fill(np.nan)
        arena.fill(0xFF)
        done: set[int] = set()
        while len(done) < len(tasks.calls):
            ready = [n for n in range(len(tasks.calls)) if n not in done and set(tasks.before[n]) <= done]
            phase = draw.choice(ready)
            for piece in draw.sample(range(tasks.pieces[phase]), tasks.pieces[phase]):
                library.online_piece(
                    phase,
                    piece,
                    addresses,
                    arena.ctypes.data,
                    weights.ctypes.data,
                    own.ctypes.data,
                    shared[tasks.kernel[phase]].ctypes.data,
                )
            done.add(phase)
        assert outputs[1][0].tobytes() == outputs[0][0].tobytes()


def test_without_taskflow_it_says_so_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--taskflow", str(tmp_path), "--workload", "randwire"]) == 0
    assert "skipped: there is no" in capsys.readouterr().err


@no_compiler
@pytest.mark.skipif("BRICOLAGE_TASKFLOW" not in os.environ, reason="BRICOLAGE_TASKFLOW names no folder with Taskflow")
def test_the_three_programs_agree(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.engine.online.randwire", lambda _graphs: small())
    assert (
        main(["--taskflow", os.environ["BRICOLAGE_TASKFLOW"], "--workload", "randwire", "--rounds", "2", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)[0]["dependences"] > 10
