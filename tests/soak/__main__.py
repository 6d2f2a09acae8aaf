"""`make soak`: many inferences of one artifact, and the other lives of a process. The last line is the figure.

python -m tests.soak [--inferences 1000000] [--threads 4] [--cores 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import bricolage
from bricolage.backends import registry
from tests.soak import soak


def main() -> int:
    """Runs everything and prints the figure in the last line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inferences", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=4, help="that call the executable")
    parser.add_argument("--cores", type=int, default=min(2, os.cpu_count() or 1), help="that one call uses")
    chosen = parser.parse_args()
    installed = [backend.name for backend in registry.available()]
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        paths = {
            one: soak.artifact(folder, one, chosen.cores)
            for one in ("native", "onnxruntime", "openvino")
            if one in installed
        }
        executables = {one: bricolage.load(path) for one, path in paths.items()}
        native = executables["native"]
        counts = {"native": chosen.inferences, "onnxruntime": chosen.inferences // 10}
        soaked = []
        for one, count in counts.items():
            if one in executables:
                soaked.append(soak.soak(executables[one], one, count, chosen.threads))
                print(soaked[-1], flush=True)
        calls = max(100, chosen.inferences // 1000)
        endings = min(3, 1 + chosen.inferences // 100_000)
        lives: dict[str, Callable[[], bool]] = {
            "several runtimes in one process": lambda: soak.together(executables, calls),
            "signals": lambda: soak.signals(native, 10 * calls),
            "forks while a thread runs": lambda: soak.forked(native, 5),
            "spawned processes": lambda: soak.spawned(paths["native"], folder),
            "interpreter exit in the middle of runs": lambda: soak.ends_in_the_middle(paths["native"], folder, endings),
        }
        failed = []
        for life, run in lives.items():
            right = run()
            print(f"{life}: {'fine' if right else 'NOT RIGHT'}", flush=True)
            failed += [] if right else [life]
    fine = all(one.fine for one in soaked) and not failed
    figures = "; ".join(map(str, soaked))
    print(f"soak: {figures}; {len(lives) - len(failed)} of {len(lives)} other lives of a process fine")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
