"""Joining a Ray cluster, or starting one of this machine's processes."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from bricolage.base import telemetry
from bricolage.base.options import available_cores
from bricolage.base.signal_handlers import keep_handlers
from bricolage.errors import MissingLibrary, UnreachableCluster

RayObject: TypeAlias = Any
"""Ray's actors, references and placement groups have no types here."""
LOCAL = "local"
"""Address of a cluster of this machine's processes, which is started for its caller and ends with it."""
_LOCAL_STORE = 512 << 20
"""Bytes of shared memory for what travels within it."""
_KNOCK_S = 5.0
_ATTEMPTS_VARIABLE = "RAY_gcs_server_port_wait_time_s"


class RaySession:
    """A process's connection to a cluster. One that was there before stays after it.

    Args:
        address: as `ray.init` takes it, or `LOCAL`.
        namespace: of names of actors; Ray makes one of its own where it is empty.
        resources: what a cluster of `LOCAL` offers besides processors.

    Raises:
        MissingLibrary: ray is not installed.
        UnreachableCluster: there is no cluster at that address, or it has other versions of Python or Ray.
    """

    def __init__(self, address: str, namespace: str = "", resources: Mapping[str, float] | None = None) -> None:
        telemetry.disable()
        try:
            import ray
            from ray.exceptions import RayError
        except ImportError as error:
            raise MissingLibrary(name="ray", purpose="to use a cluster", extra="ray", reason=error) from error
        self.ray, self.errors = ray, (RayError,)
        self._owner = not ray.is_initialized()
        if self._owner:
            self._join(address, namespace, resources)

    def on_node(self, node: str) -> object:
        """The scheduling strategy of what runs on one node, by Ray's name of it, or nowhere."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=node, soft=False)

    def close(self) -> None:
        """Leaves a cluster that was joined here, and ends one that was started here."""
        if self._owner:
            self.ray.shutdown()

    def _join(self, address: str, namespace: str, resources: Mapping[str, float] | None) -> None:
        quiet: dict[str, object] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if namespace:
            quiet["namespace"] = namespace
        if address == LOCAL:
            quiet |= {"num_cpus": available_cores(), "include_dashboard": False, "object_store_memory": _LOCAL_STORE}
            quiet |= {"resources": dict(resources)} if resources else {}
        host, colon, port = address.rpartition(":")
        try:
            with ExitStack() as stack:
                if address != LOCAL:
                    stack.enter_context(_one_attempt())
                if colon and "/" not in host and port.isdigit():
                    socket.create_connection((host, int(port)), _KNOCK_S).close()
                # Ray takes the signal and leaves it taken: who asks us to end would end without our last words.
                stack.enter_context(keep_handlers(signal.SIGTERM))
                self.ray.init(address=address, **quiet)
        except Exception as error:  # Ray raises whatever went wrong within
            raise UnreachableCluster(address=address, reason=describe_error(error)) from error


@contextmanager
def _one_attempt() -> Iterator[None]:
    """Within it Ray tries once to find a cluster, which takes up to 20 seconds, instead of twenty times."""
    given = os.environ.get(_ATTEMPTS_VARIABLE)
    os.environ.setdefault(_ATTEMPTS_VARIABLE, "1")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(_ATTEMPTS_VARIABLE, None)


def describe_error(error: BaseException) -> str:
    """The first line of an error, or of what raised it on a node."""
    cause = getattr(error, "cause", None)
    origin = cause if isinstance(cause, BaseException) else error
    lines = [line.strip() for line in str(origin).splitlines() if line.strip()]
    return f"{type(origin).__name__}: {lines[0] if lines else ''}"[:300]
