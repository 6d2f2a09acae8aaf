"""Where a server listens, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.errors import BadOption
from bricolage.plan.operating_point import OperatingPoint

_HIGHEST_PORT = 65_535
_LONGEST_INTERVAL_S = 10.0


@dataclass(frozen=True)
class ServerSettings:
    """How models are served.

    Raises:
        BadOption: a value is out of range.
    """

    host: str = "127.0.0.1"
    http_port: int = 8080
    """0: any that is free."""
    grpc_port: int = 8081
    """0: any that is free."""
    request_limit: int = 64_000_000
    """Bytes of a request, after it is decompressed."""
    time_limit_s: float = 60.0
    """For a request to arrive, and again for its answer."""
    grace_s: float = 30.0
    """For requests under way when the server is to end."""
    point: OperatingPoint | None = None
    """Of every model; None: that of its plan."""
    stream_interval_s: float = 0.02
    """Of language models: tokens of a stream that come within this time are sent together; 0: each at once."""

    def __post_init__(self) -> None:
        for option, port in (("--http-port", self.http_port), ("--grpc-port", self.grpc_port)):
            if not 0 <= port <= _HIGHEST_PORT:
                raise BadOption(option=option, value=port, advice=f"Give a port from 0 to {_HIGHEST_PORT}")
        if not 0 <= self.stream_interval_s <= _LONGEST_INTERVAL_S:
            advice = f"Give a time up to {_LONGEST_INTERVAL_S:g}s"
            raise BadOption(option="--stream-interval", value=f"{self.stream_interval_s:g}s", advice=advice)
        if self.http_port == self.grpc_port != 0:
            advice = "HTTP and gRPC need a port each"
            raise BadOption(option="--grpc-port", value=self.grpc_port, advice=advice)


@dataclass(frozen=True)
class Listening:
    """Where a server answers."""

    host: str
    http_port: int
    grpc_port: int | None
    """None: this server has none."""
    models: tuple[str, ...]


@dataclass(frozen=True)
class LoadOptions:
    """How artifacts are loaded."""

    any_machine: bool = False
    target: str = ""
    """Of packs."""
