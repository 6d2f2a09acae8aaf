"""How a worker process is started."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.measure import fork_server
from bricolage.measure.fork_server import ForkedWorker
from bricolage.runtime.process import environment

_LOG = logging.getLogger(__name__)
Process = subprocess.Popen[bytes] | ForkedWorker


def launch(
    backends: Sequence[str], resources: Resources, log: Path, variables: Mapping[str, str], *, fresh: bool = False
) -> Process:
    """A worker, which reads commands and writes answers through pipes.

    Args:
        backends: names of those that it hosts.
        resources: what they may take.
        log: file to which its standard error is added.
        variables: environment variables beside those of `environment`.
        fresh: an interpreter of its own, so that its memory lies otherwise than that of other workers; else it may be forked
            from a process that has imported what workers import.
    """
    given = {**environment(backends, resources), **variables}
    arguments = ["--cores", ",".join(map(str, resources.device.cores))]
    for name, reference in registry.added().items():
        arguments += ["--register", f"{name}={reference}"]
    with log.open("ab") as file:
        process = None if fresh or not sys.platform.startswith("linux") else _forked(arguments, given, file.fileno())
        if process is None:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bricolage.measure", "--parent", str(os.getpid()), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=given,
                start_new_session=True,  # Ctrl-C in the terminal is for us; it must not kill a worker half-way
                bufsize=0,
            )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _forked(arguments: Sequence[str], given: Mapping[str, str], log: int) -> Process | None:
    """None where no fork server starts."""
    try:
        return fork_server.fork(arguments, given, log)
    except OSError as error:
        _LOG.warning("workers are started one by one: %s", error)
        return None
