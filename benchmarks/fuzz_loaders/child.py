"""One process that tries inputs. A loader that ends it has a finding; `benchmarks.fuzz_loaders` starts the next."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import resource
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fuzz_loaders.record import Record

if TYPE_CHECKING:
    from benchmarks.fuzz_loaders.targets import Loaders

_LONGEST = 512
"""Bytes of decisions."""
_HANG_S = 300
"""After that libFuzzer ends a process that does not answer: its input is a finding."""
_MEMORY_MB = 4096
_INSTRUMENTED = [
    "bricolage.plan",
    "bricolage.base.codec",
    "bricolage.frontends",
    "bricolage.base.sealed",
    "bricolage.graph",
    "bricolage.language.tokenizer",
    "bricolage.api.array_files",
    "onnx_ir.serde",
    "onnx_ir.external_data",
    "zipfile",
]


def main() -> None:
    """Tries inputs until the figure is reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("atheris", "random"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--only")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MB << 20, _MEMORY_MB << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # sizes are small; several processes may run side by side
    logging.disable()  # warnings about made-up models
    warnings.simplefilter("ignore")  # zipfile's, of two members of one name: that is meant
    record = Record(given.folder)
    goal = _Goal(record, given.inputs, given.minutes)
    (_guided if given.engine == "atheris" else _random)(record, goal, given.folder, given.only)


class _Goal:
    """When to stop."""

    def __init__(self, record: Record, inputs: int | None, minutes: float | None) -> None:
        self._record, self._inputs = record, inputs
        self._end = None if minutes is None else time.monotonic() + minutes * 60

    @property
    def reached(self) -> bool:
        enough = self._inputs is not None and self._record.tried >= self._inputs
        return enough or (self._end is not None and time.monotonic() >= self._end)


def _attempt(made: Loaders, record: Record, data: bytes) -> None:
    record.trying(data)
    finding = made.attempt(data)
    record.count()
    if finding is not None:
        record.keep(finding)


def _random(record: Record, goal: _Goal, folder: Path, only: str | None) -> None:
    """Another folder has other inputs, so that several processes add up."""
    from benchmarks.fuzz_loaders.targets import loaders

    draw = random.Random(f"{folder.name} {record.tried}")
    with loaders(only) as made:
        gc.collect()
        gc.freeze()  # else what was imported is looked through again and again
        while not goal.reached:
            _attempt(made, record, draw.randbytes(draw.randrange(1, _LONGEST)))
    record.note()


def _guided(record: Record, goal: _Goal, folder: Path, only: str | None) -> None:
    """By libFuzzer, which keeps what reaches new code, of the loaders' own modules. It leaves the process without coming back."""
    import atheris

    with atheris.instrument_imports(include=_INSTRUMENTED, enable_loader_override=False):
        from benchmarks.fuzz_loaders.targets import loaders
    with loaders(only) as made:

        def one(data: bytes) -> None:
            _attempt(made, record, data)
            if goal.reached:
                record.note()
                made.remove()
                os._exit(0)

        words = [f"-max_len={_LONGEST}", f"-timeout={_HANG_S}", f"-artifact_prefix={folder}/findings/ended-"]
        words += [
            "-rss_limit_mb=0",
            "-report_slow_units=1000000",
            "-len_control=0",
            "-detect_leaks=0",
            "-verbosity=0",
            str(folder / "corpus"),
        ]
        atheris.Setup(["fuzz_loaders", *words], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
