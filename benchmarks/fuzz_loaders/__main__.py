"""Feeds the loaders with inputs until a number of them or of minutes is reached.

    python -m benchmarks.fuzz_loaders --inputs 100000      a number of inputs, over all runs with this folder
    python -m benchmarks.fuzz_loaders --minutes 30         a time, of this run

Guided by coverage where the package `atheris` is installed, else at random. Inputs that reached something new are kept in the
folder, together with how many were tried, so the next run goes on from there. An input that makes a loader raise an exception of
a foreign type, read a file that it must not, take more than 5 seconds, or end the process is kept under `findings`, with the
trace. The last line prints the figure; exit code 1 where there are findings.

`--only gguf` tries one loader alone; give it a folder of its own. `--replay FILE` runs one input again and prints what happens.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.fuzz_loaders.record import Record

LOADERS = (
    "plan",
    "json",
    "artifact_of_plan",
    "artifact",
    "artifact_of_model",
    "onnx",
    "arrays",
    "gguf",
    "hugging_face",
    "onnx_decoder",
)


def main() -> int:
    """Runs until the figure is reached; processes that end on an input are started again."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_loaders", description="fuzzing of all loaders")
    parser.add_argument("--inputs", type=int, help="inputs, over all runs with this folder (default 1,000,000)")
    parser.add_argument("--minutes", type=float, help="of this run, instead of a number of inputs")
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz-loaders"), help="corpus, findings, counts")
    parser.add_argument("--engine", choices=("atheris", "random"), help="default: atheris where it is installed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input again")
    parser.add_argument("--only", choices=LOADERS, help="try this loader alone")
    given = parser.parse_args()
    if given.replay is not None:
        from benchmarks.fuzz_loaders.targets import loaders

        with loaders(given.only) as made:
            print(made.attempt(given.replay.read_bytes()))
        return 0
    engine = given.engine or ("atheris" if importlib.util.find_spec("atheris") else "random")
    inputs = given.inputs if given.inputs is not None or given.minutes is not None else 1_000_000
    folder = given.folder.resolve()
    start, ended = time.monotonic(), Counter[int]()
    before = Record(folder).tried
    while True:
        left = None if given.minutes is None else given.minutes - (time.monotonic() - start) / 60
        if (left is not None and left <= 0) or (inputs is not None and Record(folder).tried >= inputs):
            break
        words = [sys.executable, "-m", "benchmarks.fuzz_loaders.child", "--engine", engine, "--folder", str(folder)]
        words += ["--minutes", f"{left:.3f}"] if left is not None else []
        words += ["--inputs", str(inputs)] if inputs is not None else []
        words += ["--only", given.only] if given.only is not None else []
        code = subprocess.run(words, check=False).returncode
        if code == 0:
            break
        ended[code] += 1
        Record(folder).ended(f"exit code {code}")
        if sum(ended.values()) > 100:
            break
    record = Record(folder)
    found = record.findings()
    took = (time.monotonic() - start) / 60
    print(
        f"loaders: {record.tried} inputs ({record.tried - before} in this run of {took:.1f} min, engine {engine}), "
        f"{len(found)} findings, {sum(ended.values())} processes ended"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
