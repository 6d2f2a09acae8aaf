"""What benchmarks of rewriting share: a workload's exports one after another, and the original at the sizes of its inputs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from benchmarks.latency import select
from bricolage.base.codec import decode
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.frontends import to_model
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare, symbolic_dimensions

ALL = ("six", "minilm-l6", "rewriting")
Export = Literal["exported", "unoptimised"]
R = TypeVar("R")


def at_sizes(path: Path, inputs: Mapping[str, Any]) -> Graph:
    """The graph of a model, with its symbolic dimensions as the inputs have them."""
    model = to_model(path)
    shapes = {value.name: value.shape for value in model.graph.inputs}
    sizes = {
        name: inputs[readers[0]].shape[list(map(str, shapes[readers[0]] or ())).index(name)]
        for name, readers in symbolic_dimensions(model).items()
    }
    return prepare(model, sizes)


def add_arguments(parser: argparse.ArgumentParser, exports: str) -> None:
    """The options that `collect` reads; `exports` are those by default."""
    parser.add_argument("--workload", default=",".join(ALL), help="names or families, separated by commas")
    parser.add_argument("--exports", default=exports, help="exported, unoptimised or both")
    parser.add_argument("--output", type=Path, help="write all figures there as JSON, after each row")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of such a file")


def collect(
    given: argparse.Namespace, kind: type[R], run: Callable[[str, Export], R], table: Callable[[Sequence[R]], str]
) -> int:
    """Runs every workload in every export, or shows what was kept; the exit code. `kind` is a dataclass of one row."""
    if given.show:
        print(
            table(
                [
                    decode(kind, row, str(given.show))
                    for row in json.loads(given.show.read_text(encoding="utf-8"))["rows"]
                ]
            )
        )
        return 0
    rows: list[R] = []
    failures: list[str] = []
    for name in select(given.workload.split(",")):
        for exported in given.exports.split(","):
            try:
                rows.append(run(name, exported))
                print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
            except BricolageError as error:
                failures.append(f"{name} {exported}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
            if given.output:
                given.output.parent.mkdir(parents=True, exist_ok=True)
                kept = {"hardware": str(host()), "rows": [asdict(r) for r in rows], "failures": failures}  # type: ignore[call-overload]
                given.output.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    if rows:
        print(f"{host()}\n\n{table(rows)}")
    print(*failures, sep="\n")
    return 1 if failures else 0
