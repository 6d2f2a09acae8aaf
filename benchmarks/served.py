"""What a request to `bricolage serve` costs over the run of the model, what the server gets through, and whether it grows.

    python -m benchmarks.served --json
    python -m benchmarks.served --mlserver PYTHON --output out/served.json
    python -m benchmarks.served --workload resnet-50 --requests 10000

*Overhead*: a mean over an image of 150,528 floats, in our engine. The executable in this process and requests over one connection,
whose bodies are made before, take turns: in binary, as JSON, over gRPC. With `--mlserver`, the same artifact behind MLServer
(`examples/serving/mlserver`), as JSON too; PYTHON is that of an environment with mlserver and bricolage.

*Throughput*: a workload's plan, unmeasured, in our engine: `Executable.map` here and requests over several connections in turns.

*Memory*: resident memory and open files of the server before and after many requests, of which every tenth is malformed and every
hundredth hangs up.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil

from benchmarks.call_overhead import whole_on
from benchmarks.tools.output import keep
from benchmarks.tools.server_process import PATIENCE_S, Served, serving
from benchmarks.workloads import export, workloads
from bricolage.base.options import available_cores
from bricolage.device.host import host
from bricolage.runtime.executable import Executable

_IMAGE = (1, 3, 224, 224)
_MEAN = (
    '<ir_version: 9, opset_import: ["" : 20]> mean (float[1,3,224,224] image) => (float[1,3,1,1] mean)'
    " { mean = GlobalAveragePool (image) }"
)
_ROUNDS = 60
_THROUGHPUT_ROUNDS = 5
_CALLS = 5
"""Of each contestant's turn in a round."""
_RUNTIME = Path(__file__).parents[1] / "examples" / "serving" / "mlserver"
_LENGTH = "Inference-Header-Content-Length"
_WARM_REQUESTS = 500
_BAD_EVERY, _GONE_EVERY = 10, 100


@dataclass(frozen=True)
class Overhead:
    """A request in one form."""

    contestant: str
    request_ms: float
    """Median, seen by the client."""
    over_ms: float
    """Median of the differences from the executable's own run in the same round."""
    interval_ms: tuple[float, float]
    """95 % of the bootstrap of that median."""


@dataclass(frozen=True)
class Throughput:
    """Requests a second, in turns."""

    workload: str
    map_per_s: float
    """By `Executable.map`."""
    served_per_s: float
    ratio: float
    """Median of the ratios of the rounds."""


@dataclass(frozen=True)
class Growth:
    """The server's process before and after requests."""

    requests: int
    resident_mb_before: float
    resident_mb_after: float
    files_before: int
    files_after: int


# --- bodies -----------------------------------------------------------------------------------------------------------------


def binary_body(name: str, array: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """A request with one input in binary, and its headers."""
    tensor = {"name": name, "shape": array.shape, "datatype": "FP32", "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + array.tobytes(), {_LENGTH: str(len(head))}


def json_body(name: str, array: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """The same request as JSON."""
    tensor = {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.reshape(-1).tolist()}
    return json.dumps({"inputs": [tensor]}).encode(), {"content-type": "application/json"}


def _caller(port: int, model: str, body: bytes, headers: Mapping[str, str]) -> Callable[[], bytes]:
    """A call over a connection that stays open.

    Raises (when called):
        RuntimeError: the answer has another status than 200.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def call() -> bytes:
        connection.request("POST", f"/v2/models/{model}/infer", body, dict(headers))
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer[:200].decode(errors='replace')}")
        return answer

    return call


def _grpc_caller(port: int, model: str, name: str, array: np.ndarray) -> Callable[[], bytes]:
    import grpc

    from bricolage.runtime.inference_protocol.grpc_messages import MESSAGES, SERVICE

    tensor = {"name": name, "datatype": "FP32", "shape": array.shape}
    message = MESSAGES["ModelInferRequest"](
        model_name=model, inputs=[tensor], raw_input_contents=[array.tobytes()]
    ).SerializeToString()
    infer = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(f"/{SERVICE}/ModelInfer")

    def call() -> bytes:
        answer: bytes = infer(message, timeout=PATIENCE_S)
        return answer

    return call


@contextmanager
def mlserver(python: Path, artifact: Path) -> Iterator[int]:
    """MLServer with an artifact, ready: its port of HTTP."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(_RUNTIME, folder, dirs_exist_ok=True)
        model = {**json.loads((folder / "model-settings.json").read_text()), "name": artifact.stem}
        model["parameters"] = {"uri": str(artifact)}
        (folder / "model-settings.json").write_text(json.dumps(model))
        ports = _free_ports(3)
        settings = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
        (folder / "settings.json").write_text(json.dumps({**settings, "host": "127.0.0.1", "parallel_workers": 0}))
        command = [str(python), "-c", "from mlserver.cli import main; main()", "start", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        try:
            _wait_until_ready(ports[0], artifact.stem)
            yield ports[0]
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _wait_until_ready(port: int, model: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"/v2/models/{model}/ready")
            if connection.getresponse().status == 200:
                return
        except (ConnectionError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise TimeoutError("MLServer was not ready in time")


# --- overhead -----------------------------------------------------------------------------------------------------------------


def measure_overhead(folder: Path, rounds: int, python: Path | None) -> list[Overhead]:
    """Each form of a request against the executable's own run, in turns."""
    fast = whole_on("native", onnx.parser.parse_model(_MEAN), available_cores())
    artifact = fast.save(folder / "mean.bricolage")
    image = np.random.default_rng(0).normal(size=_IMAGE).astype(np.float32)
    binary, as_json = binary_body("image", image), json_body("image", image)
    expected = np.asarray(fast.run({"image": image})["mean"])
    with serving(str(artifact)) as served, _optional_mlserver(python, artifact) as other:
        calls: dict[str, Callable[[], object]] = {
            "bricolage, binary": _caller(served.http_port, "mean", *binary),
            "bricolage, JSON": _caller(served.http_port, "mean", *as_json),
            "bricolage, gRPC": _grpc_caller(served.grpc_port, "mean", "image", image),
        }
        if other is not None:
            calls["MLServer, JSON"] = _caller(other, "mean", *as_json)
        for name, call in calls.items():
            _check_answer(name, call(), expected)
        times = _take_turns({"own": lambda: fast.run({"image": image}), **calls}, rounds)
    return [_summarise(name, times[name], times["own"]) for name in calls]


@contextmanager
def _optional_mlserver(python: Path | None, artifact: Path) -> Iterator[int | None]:
    if python is None:
        yield None
        return
    with mlserver(python, artifact) as port:
        yield port


def _check_answer(name: str, answer: object, expected: np.ndarray) -> None:
    """Whether an answer holds the expected numbers, as bytes or as JSON.

    Raises:
        RuntimeError: it does not.
    """
    assert isinstance(answer, bytes)
    if expected.tobytes() in answer:
        return
    data = json.loads(answer)["outputs"][0]["data"] if answer.startswith(b"{") else []
    if not np.array_equal(np.asarray(data, np.float32).reshape(-1), expected.reshape(-1)):
        raise RuntimeError(f"{name} answers something else")


def _take_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds a call in each round; the order changes from round to round."""
    times = {name: list[float]() for name in calls}
    for number in range(rounds + 1):
        order = sorted(calls, reverse=bool(number % 2))
        for name in order:
            calls[name]()
            begun = time.perf_counter()
            for _ in range(_CALLS):
                calls[name]()
            times[name].append((time.perf_counter() - begun) / _CALLS * 1e3)
    return {name: values[1:] for name, values in times.items()}


def _summarise(name: str, request_ms: Sequence[float], own_ms: Sequence[float]) -> Overhead:
    over = np.asarray(request_ms) - np.asarray(own_ms)
    drawn = np.random.default_rng(0).integers(0, len(over), size=(1000, len(over)))
    low, high = np.quantile(np.median(over[drawn], axis=1), [0.025, 0.975])
    return Overhead(name, statistics.median(request_ms), float(np.median(over)), (float(low), float(high)))


# --- throughput -----------------------------------------------------------------------------------------------------------------


def measure_throughput(name: str, folder: Path, requests: int, rounds: int, connections: int) -> Throughput:
    """`Executable.map` and the server in turns, each with so many requests a round."""
    workload = workloads()[name]
    sizes = dict.fromkeys(workload.symbolic, 1)
    fast = whole_on("native", onnx.load(export(workload)), available_cores(), **sizes)
    artifact = fast.save(folder / "workload.bricolage")
    inputs = {key: np.asarray(value) for key, value in workload.example_inputs(0).items()}
    if len(inputs) != 1 or next(iter(inputs.values())).dtype != np.float32:
        raise SystemExit(f"{name} does not take one tensor of float32")
    ((key, array),) = inputs.items()
    rates: dict[str, list[float]] = {"map": [], "served": []}
    with serving(str(artifact)) as served, fast:
        body, headers = binary_body(key, array)
        for _ in range(rounds + 1):
            calls = [_caller(served.http_port, "workload", body, headers) for _ in range(connections)]
            rates["map"].append(_map_rate(fast, inputs, requests))
            rates["served"].append(_served_rate(calls, requests))
    rates = {side: values[1:] for side, values in rates.items()}
    ratio = statistics.median(served / own for own, served in zip(rates["map"], rates["served"], strict=True))
    return Throughput(name, statistics.median(rates["map"]), statistics.median(rates["served"]), ratio)


def _map_rate(fast: Executable, inputs: Mapping[str, np.ndarray], requests: int) -> float:
    begun = time.perf_counter()
    for _ in fast.map(itertools.repeat(dict(inputs), requests)):
        pass
    return requests / (time.perf_counter() - begun)


def _served_rate(calls: Sequence[Callable[[], object]], requests: int) -> float:
    """Requests a second over all connections, each with one request under way."""
    left = iter(range(requests))

    def work(call: Callable[[], object]) -> None:
        while next(left, None) is not None:
            call()

    with ThreadPoolExecutor(len(calls)) as threads:
        begun = time.perf_counter()
        list(threads.map(work, calls))
        return requests / (time.perf_counter() - begun)


# --- growth ---------------------------------------------------------------------------------------------------------------------


def measure_growth(folder: Path, requests: int) -> Growth:
    """What many requests leave in the server's process."""
    fast = whole_on("native", onnx.parser.parse_model(_MEAN), available_cores())
    artifact = fast.save(folder / "growth.bricolage")
    image = np.random.default_rng(0).normal(size=_IMAGE).astype(np.float32)
    body, headers = binary_body("image", image)
    with serving(str(artifact)) as served:
        call = _caller(served.http_port, "growth", body, headers)
        process = psutil.Process(served.process.pid)
        for number in range(_WARM_REQUESTS):
            _send(number, served, call, body, headers)
        before, files_before = process.memory_info().rss, process.num_fds()
        for number in range(requests):
            _send(number, served, call, body, headers)
        time.sleep(1.0)  # connections that hung up are closed
        after, files_after = process.memory_info().rss, process.num_fds()
    return Growth(requests, before / 1e6, after / 1e6, files_before, files_after)


def _send(number: int, served: Served, call: Callable[[], object], body: bytes, headers: Mapping[str, str]) -> None:
    """A good request, a malformed one or one that hangs up."""
    path = "/v2/models/growth/infer"
    if number % _GONE_EVERY == 1:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{_LENGTH}: {headers[_LENGTH]}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", served.http_port), PATIENCE_S) as connection:
            connection.sendall(head.encode() + body[: len(body) // (1 + number % 2)])
    elif number % _BAD_EVERY == 0:
        broken = (body[:-4], body.replace(b"image", b"imaje", 1), body.replace(b"FP32", b"FP33", 1), b"{")[
            number // 10 % 4
        ]
        status, answer, _ = served.exchange("POST", path, broken, headers)
        if status != 400:
            raise RuntimeError(f"a malformed request got {status}: {answer[:200].decode(errors='replace')}")
    else:
        call()


# --- command line -----------------------------------------------------------------------------------------------------------------


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.served", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="overhead,throughput,growth", help="with commas between")
    parser.add_argument("--mlserver", type=Path, metavar="PYTHON", help="of an environment with mlserver and bricolage")
    parser.add_argument("--workload", default="resnet-50", help="for the throughput; it takes one tensor of float32")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="of the overhead")
    parser.add_argument("--connections", type=int, default=4, help="of the throughput")
    parser.add_argument("--round-requests", type=int, default=60, help="of the throughput, on each side in a round")
    parser.add_argument("--requests", type=int, default=10_000, help="of the growth")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    only = given.only.split(",")
    report: dict[str, object] = {"hardware": str(host()), "cores": available_cores(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "overhead" in only:
            report["overhead"] = [asdict(row) for row in measure_overhead(folder, given.rounds, given.mlserver)]
            keep(report, given.output)
        if "throughput" in only:
            report["throughput"] = asdict(
                measure_throughput(given.workload, folder, given.round_requests, _THROUGHPUT_ROUNDS, given.connections)
            )
            keep(report, given.output)
        if "growth" in only:
            report["growth"] = asdict(measure_growth(folder, given.requests))
            keep(report, given.output)
    print(json.dumps(report, indent=1) if given.json else "\n".join(f"{key}: {value}" for key, value in report.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
