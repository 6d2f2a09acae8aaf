"""How a worker process is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.runtime.process import environment


def launch(
    backends: Sequence[str], resources: Resources, log: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A fresh worker, which reads commands and writes answers through pipes.

    Args:
        backends: names of those that it hosts.
        resources: what they may take.
        log: file to which its standard error is added.
        variables: environment variables beside those of `environment`.
    """
    arguments = [sys.executable, "-P", "-m", "bricolage.measure", "--parent", str(os.getpid())]
    arguments += ["--cores", ",".join(map(str, resources.device.cores))]
    for name, reference in registry.added().items():
        arguments += ["--register", f"{name}={reference}"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env={**environment(backends, resources), **variables},
            start_new_session=True,  # Ctrl-C in the terminal is for us; it must not kill a worker half-way
            bufsize=0,
        )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process
