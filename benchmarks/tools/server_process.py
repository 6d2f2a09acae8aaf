"""A process of `bricolage serve` on free ports of 127.0.0.1, and requests to it over HTTP."""

from __future__ import annotations

import http.client
import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 120.0
"""For a server to be ready, and for its answers, on a busy machine."""


@dataclass(frozen=True)
class Served:
    """A server process."""

    process: subprocess.Popen[str]
    http_port: int
    grpc_port: int

    def exchange(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """One request over HTTP, in a connection of its own: status, body and headers of its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read(), response.headers
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The value of a metric with its labels; 0 where it was not counted yet."""
        lines = self.exchange("GET", "/metrics")[1].decode().splitlines()
        return next((float(text.rpartition(" ")[2]) for text in lines if text.startswith(f"{name} ")), 0.0)


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    """A server of these words of a command line, ready. Behind the block it is ended, if it has not ended.

    Raises:
        TimeoutError: it was not ready in time.
    """
    command = [sys.executable, "-m", "bricolage", "serve", "--http-port", "0", "--grpc-port", "0", "--json", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], PATIENCE_S)[0]:
            raise TimeoutError("the server was not ready in time")
        listening = json.loads(process.stdout.readline())
        yield Served(process, listening["http_port"], listening["grpc_port"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
