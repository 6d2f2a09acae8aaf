from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.device.host import host
from bricolage.errors import BadOption, InvalidGraph, NotEnoughMemory
from bricolage.graph.graph import TensorInfo
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.plan.program_step import Step
from bricolage.runtime.compile import compile_program
from bricolage.runtime.program import BoundStage, Program
from bricolage.work.implementation import Implementation
from tests.graph.models import graph

WEIGHT = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
BODY = "a=Relu(x) b=MatMul(a,w) c=Add(b,a) d=Tanh(c) y=Mul(d,b)"


def steps(directory: Path, cuts: list[int], backends: list[str]) -> tuple[list[Step], np.ndarray]:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    g = graph(BODY, "float[3,64] x", "float[3,64] y", w=weight)
    store, identities = Store(directory), Identities(g)
    store.share([g.model])
    return [
        Step(Implementation(backend), store.region(region, identities.key(region)))
        for region, backend in zip(map(g.region, cuts), backends, strict=True)
    ], weight


def expected(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    a = np.maximum(x, 0)
    b = a @ weight
    return np.tanh(b + a) * b


@pytest.mark.parametrize(
    ("cuts", "backends"),
    [
        ([0b11111], ["onnxruntime"]),
        ([0b00011, 0b11100], ["onnxruntime", "openvino"]),
        ([0b1, 0b10, 0b100, 0b1000, 0b10000], ["openvino", "onnxruntime", "openvino", "onnxruntime", "openvino"]),
    ],
)
def test_any_cut_gives_the_same_answer_again_and_again(tmp_path: Path, cuts: list[int], backends: list[str]) -> None:
    chosen, weight = steps(tmp_path, cuts, backends)
    bound = compile_program(chosen, ["x"], ["y"], Resources(threads=1)).bind()
    rng = np.random.default_rng(1)
    for _ in range(3):
        x = rng.normal(size=(3, 64)).astype(np.float32)
        np.copyto(bound.inputs["x"], x)
        bound()
        np.testing.assert_allclose(bound.outputs["y"], expected(x, weight), rtol=1e-4, atol=1e-5)


def test_running_without_buffers_gives_the_same(tmp_path: Path) -> None:
    chosen, weight = steps(tmp_path, [0b00011, 0b11100], ["onnxruntime", "openvino"])
    x = np.random.default_rng(2).normal(size=(3, 64)).astype(np.float32)
    results = compile_program(chosen, ["x"], ["y"], Resources(threads=1)).run({"x": x})
    np.testing.assert_allclose(results["y"], expected(x, weight), rtol=1e-4, atol=1e-5)


def test_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    chosen, _ = steps(tmp_path, [0b00011, 0b11100], ["onnxruntime", "onnxruntime"])
    with pytest.raises(InvalidGraph, match="before it is read"):
        compile_program(chosen[::-1], ["x"], ["y"], Resources(threads=1))


def test_a_missing_region_is_refused(tmp_path: Path) -> None:
    chosen, _ = steps(tmp_path, [0b00011], ["onnxruntime"])
    with pytest.raises(InvalidGraph, match="computed by no region"):
        compile_program(chosen, ["x"], ["y"], Resources(threads=1))


def test_tensors_that_the_machine_cannot_hold_are_not_allocated(tmp_path: Path) -> None:
    chosen, _ = steps(tmp_path, [0b11111], ["onnxruntime"])
    (stage,) = compile_program(chosen, ["x"], ["y"], Resources(threads=1)).stages
    large = [TensorInfo(name, stage.inputs[0].dtype, (1 << 20, 1 << 20, 4)) for name in ("x", "y")]
    program = Program([BoundStage(stage.kernel, (large[0],), (large[1],))], large[:1], ["y"], host())
    with pytest.raises(NotEnoughMemory, match="takes 3[0-9.e+]* GB"):
        program.bind()


CORES = host().cores


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
def test_regions_side_by_side_give_the_same_answer_again_and_again(tmp_path: Path) -> None:
    """Four branches on two cores, and a join on both; what lies between them shares one arena."""
    branches = " ".join(f"a{i}=Relu(x{i}) b{i}=MatMul(a{i},w) c{i}=Tanh(b{i}) x{i + 1}=Neg(x{i})" for i in range(4))
    g = graph(f"x0=Identity(x) {branches} s=Sum(c0,c1,c2,c3) y=Add(s,x4)", "float[3,64] x", "float[3,64] y", w=WEIGHT)
    store, identities = Store(tmp_path), Identities(g)
    store.share([g.model])
    single = [g.region(1 << number) for number in range(len(g))]
    backends = ["onnxruntime", "openvino"]
    chosen = [Step(Implementation(backends[n % 2]), store.region(r, identities.key(r))) for n, r in enumerate(single)]
    cores = [(CORES[n % 2],) if n + 1 < len(g) else CORES[:2] for n in range(len(g))]
    plain = compile_program(chosen, ["x"], ["y"], Resources(threads=2)).bind()
    program = compile_program(chosen, ["x"], ["y"], Resources(threads=2), cores=cores)
    beside = program.bind()
    assert program.scheduled and all(stage.cores == own for stage, own in zip(program.stages, cores, strict=True))
    rng = np.random.default_rng(1)
    for _ in range(30):
        x = rng.normal(size=(3, 64)).astype(np.float32)
        for bound in (plain, beside):
            np.copyto(bound.inputs["x"], x)
            bound()
        np.testing.assert_allclose(beside.outputs["y"], plain.outputs["y"], rtol=1e-5, atol=1e-5)
    for bound in (plain, beside):
        assert sorted(span.step for span in bound.traced()) == list(range(len(g)))


def test_a_schedule_for_cores_that_are_not_there_is_refused(tmp_path: Path) -> None:
    chosen, _ = steps(tmp_path, [0b11111], ["onnxruntime"])
    with pytest.raises(BadOption, match=r"Use cores among"):
        compile_program(chosen, ["x"], ["y"], Resources(threads=1), cores=[(max(CORES) + 1,)])
