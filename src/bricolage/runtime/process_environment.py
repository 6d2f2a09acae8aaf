"""What a process gets that runs programs for this one: its environment, and the import path by which it finds the plugins that
we find; and how it ends with us."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.base import telemetry

TRY_SIZES = "BRICOLAGE_TRY_SIZES"
"""Environment variable; "0": sizes that were never tried are run in this process at once, whatever comes of it."""


def environment(backends: Collection[str], resources: Resources) -> dict[str, str]:
    """Environment of a fresh worker: ours, the thread limits, what its backends ask for, and our own import path."""
    variables = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        variables[name] = str(resources.threads)
    variables.update(telemetry.VARIABLES)
    for name in backends:
        variables.update(registry.get(name).environment(resources))
    variables[TRY_SIZES] = "0"  # it may die, so it need not ask another one first
    variables["PYTHONPATH"] = os.pathsep.join(_import_path())
    return variables


def _import_path() -> list[str]:
    """Our import path without what every interpreter has by itself: a worker finds the plugins that we find."""
    default_folders = {
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    folders = [Path(path).resolve() for path in sys.path if Path(path).is_dir()]
    return [str(folder) for folder in folders if not default_folders & {folder, *folder.parents}]


def end_with_parent(parent: int | None) -> None:
    """Asks Linux to kill this process when its parent dies, however it dies and whatever this process is doing."""
    if not sys.platform.startswith("linux"):
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)  # it died before we asked
    try:
        Path("/proc/self/oom_score_adj").write_text(
            "1000", encoding="utf-8"
        )  # when memory ends, this process goes first
    except OSError as error:
        print(f"oom_score_adj stays: {error}", file=sys.stderr)
