"""How a worker process is started: its command, its environment, and the import path by which it finds the plugins that we find."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from bricolage import telemetry
from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.options import ISA_VARIABLE


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


def environment(backends: Sequence[str], resources: Resources) -> dict[str, str]:
    """Environment of a fresh worker: ours, the thread limits, what its backends ask for, and our own import path."""
    variables = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        variables[name] = str(resources.threads)
    variables.update(telemetry.VARIABLES)
    for name in backends:
        variables.update(registry.get(name).environment(resources))
    variables[ISA_VARIABLE] = resources.device.isa  # so that the worker sees the same device
    variables["PYTHONPATH"] = os.pathsep.join(_import_path())
    return variables


def _import_path() -> list[str]:
    """Our import path without what every interpreter has by itself: a worker finds the plugins that we find."""
    own = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders = [Path(path).resolve() for path in sys.path if Path(path).is_dir()]
    return [str(folder) for folder in folders if not own & {folder, *folder.parents}]
