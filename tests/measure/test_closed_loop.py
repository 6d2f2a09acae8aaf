"""Programs that answer several requests at a time: streams on cores of their own, and a backend's own queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.backends import registry
from bricolage.backends.interface import Available, RegionModel, Resources
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host
from bricolage.errors import BackendFailed, Refused
from bricolage.measure import closed_loop
from bricolage.measure.closed_loop import Serving
from bricolage.plan.program_step import Step
from bricolage.work.implementation import Implementation

ROWS = 4


@pytest.fixture
def region(tmp_path: Path) -> Path:
    """y = relu(x) + x, four rows."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, 64]) for name in "xy"]
    made = helper.make_model(
        helper.make_graph(nodes, "tiny", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    ir.save(ir.from_proto(made), tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


def needs(backend: str) -> None:
    if not isinstance(registry.get(backend).status(), Available):
        pytest.skip(f"{backend} is not installed")


def serving(streams: int) -> Serving:
    """Streams of one thread each, on as many cores as there are."""
    cores = host().cores
    if len(cores) < streams:
        pytest.skip(f"there are no {streams} cores")
    return Serving(tuple((core,) for core in cores[:streams]), ROWS)


X = np.random.default_rng(0).standard_normal((ROWS, 64)).astype(np.float32)
Y = np.maximum(X, 0) + X


def load(backend: str, region: Path, how: Serving, threads: int = 1) -> closed_loop.ClosedLoop:
    needs(backend)
    step = Step(Implementation(backend), region)
    return closed_loop.load_streams([step], ["x"], ["y"], {"x": X}, Resources(threads), how, caching=False)


@pytest.mark.parametrize("backend", ["native", "onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("streams", [1, 2])
def test_every_stream_answers(backend: str, streams: int, region: Path) -> None:
    loop = load(backend, region, serving(streams))
    answer = closed_loop.require_agreement(loop, 1e-6)
    np.testing.assert_allclose(answer["y"], Y, rtol=1e-6)
    assert len(loop.outputs) == streams
    for buffers in loop.outputs:
        np.testing.assert_allclose(buffers["y"], Y, rtol=1e-6)
    turn = loop.turn(0.02)
    assert len(turn.latencies) >= 3 * streams and list(turn.latencies) == sorted(turn.latencies)
    assert 0 < turn.row_ms <= max(turn.latencies) / ROWS, "requests share the time of a call"


def test_a_backends_own_queue_answers_on_every_lane(region: Path) -> None:
    loop = load("openvino", region, Serving((host().cores,), ROWS, queue=0), threads=len(host().cores))
    np.testing.assert_allclose(closed_loop.require_agreement(loop, 1e-6)["y"], Y, rtol=1e-6)
    turn = loop.turn(0.02)
    assert len(turn.latencies) >= 3 * len(loop.outputs) and turn.row_ms > 0


def test_a_queue_has_the_streams_that_are_asked_for(region: Path) -> None:
    needs("openvino")
    queue = registry.get("openvino").queue(RegionModel(region), Implementation("openvino").config, Resources(2), 2)
    assert queue.streams == 2 and queue.lanes >= 2
    given, wanted = allocate_aligned(X.shape, X.dtype), [allocate_aligned(X.shape, X.dtype) for _ in range(queue.lanes)]
    given[...] = X
    for lane, buffer in enumerate(wanted):
        queue.bind(lane, [given], [buffer])
    heard: list[int] = []
    queue.listen(heard.append)
    for token in range(50):
        queue.submit(token)
    queue.wait()
    assert sorted(heard) == list(range(50))
    assert any(np.allclose(buffer, Y) for buffer in wanted)


def test_a_backend_without_a_queue_says_so(region: Path) -> None:
    native = registry.get("native")
    assert not native.queues
    with pytest.raises(Refused, match="queue"):
        native.queue(RegionModel(region), Implementation("native").config, Resources(1), 0)


def test_a_stream_that_answers_otherwise_is_found(region: Path) -> None:
    loop = load("onnxruntime", region, serving(2))

    def spoilt() -> None:
        type(loop).once(loop)
        loop.outputs[1]["y"][0, 0] += 1.0

    loop.once = spoilt  # type: ignore[method-assign]
    with pytest.raises(BackendFailed, match="stream 2"):
        closed_loop.require_agreement(loop, 1e-6)
