"""Nothing is sent anywhere: what `optimize`, `load` and `run` ask of the network is watched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.verify.reference import LIBRARY_VARIABLE
from tests.watching import Watch

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or which("cc") is None, reason="it needs Linux and a C compiler"
)
_SERVING_S = 75
"""ONNX Runtime's uploader first looks for its server after some tens of seconds."""
_SERVE = """
import sys, time
import numpy as np
import bricolage
fast = bricolage.load(sys.argv[1])
end = time.monotonic() + float(sys.argv[2])
while True:
    fast({"x": np.ones((4, 16), np.float32)})
    if time.monotonic() >= end:
        break
    time.sleep(0.5)
"""


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path / "watch")


def model(folder: Path) -> Path:
    """y = relu(x · w) for x of 4 × 16."""
    weights = onnx.numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weights])
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))
    return path


def use(
    folder: Path, watch: Watch, backends: Sequence[str], budget: str, serving_s: float, *more: str, **others: str
) -> None:
    """`optimize`, `run`, and a process that loads and serves; in a home of their own, in which nothing else may appear."""
    home, artifact = folder / "home", folder / "net.bricolage"
    home.mkdir()
    variables = watch.environment(
        HOME=str(home), XDG_CACHE_HOME=str(home / ".cache"), BRICOLAGE_CACHE=str(folder / "cache"), TMPDIR=str(folder)
    )
    variables.update(others)
    variables = {name: value for name, value in variables.items() if name != "ORT_DISABLE_TELEMETRY"}
    np.savez(folder / "x.npz", x=np.ones((4, 16), np.float32))
    chosen = [word for name in backends for word in ("--backend", name)]
    bricolage = [sys.executable, "-m", "bricolage"]
    commands = [
        [*bricolage, "optimize", model(folder), "-o", artifact, "--threads", "1", "--budget", budget, *chosen, *more],
        [*bricolage, "run", artifact, "--input", folder / "x.npz"],
        [sys.executable, "-c", _SERVE, artifact, str(serving_s)],
    ]
    for command in commands:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, encoding="utf-8")
        assert done.returncode == 0, done.stderr
    assert watch.calls == []
    found = [path for path in home.rglob("*") if "icrosoft" in str(path) or "telemetry" in path.name.lower()]
    assert not found, "what is collected would be kept here until it is sent"


def test_what_is_sent_is_seen(watch: Watch) -> None:
    script = """
import socket
for call in (
    lambda: socket.getaddrinfo("planted.invalid", 80),
    lambda: socket.gethostbyname("other.invalid"),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.2", 9)),
    lambda: socket.getaddrinfo("localhost", 80),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9)),
):
    try:
        call()
    except OSError:
        pass
"""
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {script!r}])"]
    subprocess.run(command, env=watch.environment(), check=True)
    assert "getaddrinfo planted.invalid" in watch.calls and "sendto 192.0.2.1" in watch.calls
    assert any(line.endswith(" other.invalid") for line in watch.calls) and "connect 192.0.2.2" in watch.calls
    assert not any("localhost" in line or "127.0.0.1" in line for line in watch.calls)


def test_nothing_is_sent(watch: Watch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    use(tmp_path, watch, ["onnxruntime", "native"], "2s", 0.0, "--effort", "instant", **{LIBRARY_VARIABLE: "onnx"})


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.names())
def test_nothing_is_sent_by_any_backend_however_long_it_serves(watch: Watch, tmp_path: Path, name: str) -> None:
    if not isinstance(registry.get(name).status(), Available):
        pytest.skip(f"{name} is not installed")
    use(tmp_path, watch, [name], "10s", _SERVING_S)


def test_the_switch_stands_before_a_framework_is_loaded() -> None:
    script = """
import os, sys
from bricolage.backends import registry
for name in registry.names():
    registry.get(name)
assert not {"onnxruntime", "openvino", "torch", "jax", "tvm", "iree"} & set(sys.modules)
assert os.environ["ORT_DISABLE_TELEMETRY"] == "1" and sys.modules["openvino_telemetry"] is None
"""
    variables = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", script], env=variables, check=True)
