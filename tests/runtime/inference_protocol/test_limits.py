"""Limits of time and of the queue, clients that hang up, and the end of a server."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tools.server_process import PATIENCE_S, Served, serving
from bricolage.api.model_serving import name_models, serve_artifacts
from bricolage.base.generation_options import LanguageSettings
from bricolage.errors import (
    BadOption,
    MissingFile,
    MissingLibrary,
    ModelNotReady,
    NotServable,
    PortTaken,
    RequestTooLarge,
    ServerDraining,
    SlowRequest,
    UnknownModel,
    UnknownPath,
)
from bricolage.plan.plan import TensorSpec
from bricolage.runtime.inference_protocol.server_settings import ServerSettings
from tests.needed import needs
from tests.runtime.inference_protocol.conftest import LIBRARIES

for library_name in LIBRARIES:
    needs(library_name)

from bricolage.runtime.inference_protocol.datatypes import check_servable  # noqa: E402
from bricolage.runtime.inference_protocol.http_application import HttpApplication, HttpExchange  # noqa: E402
from bricolage.runtime.inference_protocol.model_metrics import ModelMetrics  # noqa: E402
from bricolage.runtime.inference_protocol.served_model import ServedModels  # noqa: E402

INFER = "/v2/models/affine/infer"
LIMIT_S = 1.5
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


def wait_until(holds: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


class Sending:
    """A request in a thread of its own."""

    def __init__(self, server: Served) -> None:
        self.status, self.answer = 0, b""
        self._thread = threading.Thread(target=self._send, args=(server,), daemon=True)
        self._thread.start()

    def _send(self, server: Served) -> None:
        self.status, self.answer, _ = server.exchange("POST", INFER, BODY)

    def wait(self) -> tuple[int, dict[str, Any]]:
        self._thread.join(PATIENCE_S)
        return self.status, json.loads(self.answer)


@pytest.fixture(scope="module")
def slow(artifacts: Mapping[str, Path]) -> Iterator[Served]:
    """A server where a request waits for three others, longer than its limit, and where two may wait."""
    point = "batch=4,max_delay_ms=60000,queue=2"
    with serving(str(artifacts["affine"]), "--operating-point", point, "--time-limit", f"{LIMIT_S}s") as server:
        yield server


def waiting(server: Served) -> float:
    return server.metric('bricolage_requests_waiting{model="affine"}')


def test_an_answer_that_takes_too_long(slow: Served) -> None:
    begun = time.monotonic()
    status, answer = Sending(slow).wait()
    assert status == 504 and "no answer within 1.5 s" in answer["error"]
    assert time.monotonic() - begun >= LIMIT_S
    assert waiting(slow) == 0, "it has left the queue"


def test_a_queue_that_is_full(slow: Served) -> None:
    both = [Sending(slow), Sending(slow)]
    wait_until(lambda: waiting(slow) == 2)
    status, answer = Sending(slow).wait()
    assert status == 503 and "the queue of requests is full: 2 wait" in answer["error"]
    assert [sending.wait()[0] for sending in both] == [504, 504]


def test_a_client_that_hangs_up_leaves_the_queue(slow: Served) -> None:
    cancelled = 'bricolage_requests_cancelled_total{model="affine"}'
    before = slow.metric(cancelled)
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", slow.http_port), PATIENCE_S) as connection:
        connection.sendall(head + BODY)
        wait_until(lambda: waiting(slow) == 1)
    wait_until(lambda: waiting(slow) == 0)
    assert slow.metric(cancelled) == before + 1
    if time.monotonic() - begun < LIMIT_S:
        assert slow.metric('bricolage_requests_total{model="affine",protocol="http",status="200"}') == 0


def test_a_body_that_does_not_arrive(slow: Served) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", slow.http_port), PATIENCE_S) as connection:
        connection.sendall(head + BODY[:-1])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


def test_the_end_loses_no_request(artifacts: Mapping[str, Path]) -> None:
    words = (str(artifacts["affine"]), f"again={artifacts['affine']}", "--operating-point", "batch=4,max_delay_ms=1500")
    with serving(*words) as server:
        assert json.loads(server.exchange("GET", "/v2/models/again")[1])["name"] == "again"
        sending = Sending(server)
        wait_until(lambda: waiting(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not accepts(server))
        status, answer = sending.wait()
        assert status == 200 and answer["outputs"][1]["data"] == [1, 2, 3, 4]
        assert server.process.wait(PATIENCE_S) == 0


def accepts(server: Served) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.http_port), PATIENCE_S):
            return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("kind", ["http_port", "grpc_port"])
def test_a_port_that_another_one_has(kind: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"http_port": 0, "grpc_port": 0, kind: taken.getsockname()[1]}
        with pytest.raises(PortTaken, match=f"port {ports[kind]} of 127.0.0.1"):
            serve_artifacts({"absent": Path("absent.bricolage")}, ServerSettings(**ports))


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    """And the process has its signals back: once a Ctrl-C reached the closed loop of a server alone."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(MissingFile):
        serve_artifacts({"absent": Path("absent.bricolage")}, ServerSettings(http_port=0, grpc_port=0))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as where it is not installed
    for name in ("http_listener", "model_server"):
        monkeypatch.delitem(sys.modules, f"bricolage.runtime.inference_protocol.{name}", raising=False)
    with pytest.raises(MissingLibrary, match="uvicorn is needed to serve models.*pip install 'uvicorn"):
        serve_artifacts({"absent": Path("absent.bricolage")}, ServerSettings())


def test_names_and_settings(tmp_path: Path) -> None:
    assert name_models(["a/digits.bricolage", "b=a/digits.bricolage"]) == {
        "digits": Path("a/digits.bricolage"),
        "b": Path("a/digits.bricolage"),
    }
    (tmp_path / "a=b.bricolage").touch()
    assert name_models([str(tmp_path / "a=b.bricolage")]) == {"a=b": tmp_path / "a=b.bricolage"}
    with pytest.raises(BadOption, match="Two models have the name 'a'"):
        name_models(["a.bricolage", "b/a.bricolage"])
    with pytest.raises(BadOption, match="--http-port"):
        ServerSettings(http_port=70_000)
    with pytest.raises(BadOption, match="a port each"):
        ServerSettings(http_port=80, grpc_port=80)
    with pytest.raises(BadOption, match="--stream-interval"):
        ServerSettings(stream_interval_s=-1.0)
    with pytest.raises(BadOption, match=r"--threads cannot be '2'.*language models alone"):
        serve_artifacts({"a": tmp_path / "a.bricolage"}, ServerSettings(), LanguageSettings(threads=2))


@pytest.mark.parametrize(
    ("option", "given"), [("--any-machine", {"any_machine": True}), ("--target", {"target": "server"})]
)
def test_options_of_artifacts_are_refused_for_language_models(
    option: str, given: Mapping[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(BadOption, match=f"{option}.*these are language models"):
        serve_artifacts({"model": path}, ServerSettings(), **given)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("x", "Sequence(Tensor(FLOAT))", None),
        TensorSpec("x", "int4", (2,)),
        TensorSpec("x", "float32", (1, 2), (0, 1)),
    ],
)
def test_types_that_the_protocol_does_not_have(spec: TensorSpec) -> None:
    with pytest.raises(NotServable, match="'x' is"):
        check_servable("m", [spec])


def test_before_and_after() -> None:
    """What a server says while it loads and while it ends, and of bodies that are too long or too slow."""
    models = ServedModels({"m": Path("m.bricolage")})
    application = HttpApplication(models, ModelMetrics(models), ServerSettings())

    async def part() -> dict[str, object]:
        return {"type": "http.request", "body": b"12", "more_body": True}

    async def nothing() -> dict[str, object]:
        await asyncio.sleep(PATIENCE_S)
        return {}

    def ask(method: str, path: str) -> Any:
        return asyncio.run(application._answer(HttpExchange(method, path, {}, nothing)))

    assert ask("GET", "/v2/health/live").status == 200
    assert ask("GET", "/v2/health/ready").status == ask("GET", "/v2/models/m/ready").status == 503
    with pytest.raises(ModelNotReady, match="'m' is not ready yet"):
        ask("GET", "/v2/models/m")
    with pytest.raises(UnknownModel, match="There are: m"):
        ask("GET", "/v2/models/n")
    with pytest.raises(UnknownPath, match="GET /v3"):
        ask("GET", "/v3")
    models.draining = True
    with pytest.raises(ServerDraining):
        ask("POST", "/v2/models/m/infer")
    with pytest.raises(RequestTooLarge, match="longer than 3 bytes"):
        asyncio.run(HttpExchange("POST", "/", {}, part).read(ServerSettings(request_limit=3)))
    with pytest.raises(SlowRequest, match="within 0.01 s"):
        asyncio.run(HttpExchange("POST", "/", {}, nothing).read(ServerSettings(time_limit_s=0.01)))
