"""What rewriting gains one backend alone, fed with files; `python -m benchmarks.rewrites.rewriting_alone`.

    python -m benchmarks.rewrites.rewriting_alone --exports unoptimised --output out/alone.json
    python -m benchmarks.rewrites.rewriting_alone --backend openvino --workload six --budget 120
    python -m benchmarks.rewrites.rewriting_alone --show out/alone.json

Three files race in the same rounds, each in five processes of its own, checked against float64 of the original: the model as
exported, what `bricolage rewrite` makes of it, and what `bricolage rewrite --for BACKEND` makes of it. Symbolic dimensions
stay open in all of them. The backend runs at its own best settings and optimises each file as it would for anyone. A file that
holds the model as it was does not race again: its ratio is 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.rewrites.exports import Export, add_arguments, at_sizes, collect
from benchmarks.workloads import export, workloads
from bricolage.api.rewrite import rewrite
from bricolage.api.tailor import tailor
from bricolage.backends import registry
from bricolage.base.options import Options
from bricolage.costs.database import Database
from bricolage.device.host import host
from bricolage.driver.context import open_pool
from bricolage.errors import BricolageError
from bricolage.graph.extract import write_whole
from bricolage.graph.store import Store
from bricolage.measure.measurer import Measurer
from bricolage.measure.race import race
from bricolage.measure.race_record import Race
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.program_step import Step
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.verify.named_arrays import save_tensors
from bricolage.verify.oracle import Oracle
from bricolage.work.implementation import Implementation

COMMANDS = ("rewrite", "rewrite --for")
_PROCESSES = 5
"""In which each file races: one process runs the same file up to a few percent faster than another."""


@dataclass(frozen=True)
class Time:
    """One of our files against the original; the ratio is above 1 where ours is faster."""

    operators: int
    ms: float
    ratio: float
    ratio_ci: tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One model on one backend, in milliseconds."""

    workload: str
    export: Export
    backend: str
    operators: int
    ms: float
    rewritten: Time
    tailored: Time
    rewrite_config: str


def run(name: str, exported: Export, backend: str, options: Options, rounds: int) -> Row:
    """Makes the files of one workload, and races them.

    Raises:
        BricolageError: a file cannot be made, or did not finish the race.
    """
    workload = workloads()[name]
    source, inputs = export(workload, unoptimised=exported == "unoptimised"), workload.example_inputs(options.seed)
    plain, made = rewrite(source), tailor(source, backend, options, inputs=inputs)
    assert made.tailored is not None
    with tempfile.TemporaryDirectory() as folder:
        files = {ORIGINAL: source}
        for command, result in zip(COMMANDS, (plain, made), strict=True):
            if result.applications or result.after.operators != result.before.operators:
                files[command] = Path(folder) / f"{len(files)}.onnx"
                write_whole(result.model, files[command])
        who, limits = made.tailored.implementation, RaceLimits(rounds)
        found = race_files(files, [who], inputs, options, limits, Path(folder))[who]
    rewritten, tailored = (
        Time(result.after.operators, *found.get(command, found[ORIGINAL]))
        for command, result in zip(COMMANDS, (plain, made), strict=True)
    )
    title = f"{backend} {registry.version(backend)} {made.tailored.implementation.config}"
    rewrite_config = "as it was" if made.tailored.rewrite_config is None else str(made.tailored.rewrite_config)
    return Row(name, exported, title, plain.before.operators, found[ORIGINAL][0], rewritten, tailored, rewrite_config)


@dataclass(frozen=True)
class RaceLimits:
    """Rounds, in how many processes, and seconds after which the race is over."""

    rounds: int = 60
    seconds: float = 120.0
    processes: int = _PROCESSES


RacedFiles = dict[str, tuple[float, float, tuple[float, float]]]
"""Median, ratio and its interval of each file."""


def race_files(
    files: Mapping[str, Path],
    implementations: Sequence[Implementation],
    inputs: Mapping[str, np.ndarray],
    options: Options,
    limits: RaceLimits,
    folder: Path,
) -> dict[Implementation, RacedFiles]:
    """Times of the files by who runs them, each race on its own, all against one reference; ratios are to the original.

    Raises:
        BricolageError: a file did not finish its race.
    """
    oracle = Oracle(at_sizes(files[ORIGINAL], inputs), inputs, Store(folder), options.bound, str(files[ORIGINAL]))
    given, expected, bound = oracle.files(oracle.graph.everything)
    save_tensors(given, dict(inputs))
    outputs = tuple(info.name for info in oracle.graph.outputs)
    with Database(folder / "costs.sqlite") as database, open_pool(options) as pool:
        measurer = Measurer(database, pool, folder, cores=options.threads)
        raced: dict[Implementation, RacedFiles] = {}
        for who in implementations:
            specs = {
                name: CandidateSpec(name, (Step(who, path),), outputs, options.threads, alone=True, device=host())
                for name, path in files.items()
            }
            ran = race(
                measurer,
                specs,
                given,
                expected,
                bound,
                rounds=limits.rounds,
                seconds=limits.seconds,
                incumbent=ORIGINAL,
                processes=limits.processes,
            )
            raced[who] = {name: _read_race(ran, name) for name in files}
    return raced


def _read_race(ran: Race, name: str) -> tuple[float, float, tuple[float, float]]:
    """Raises BricolageError: the file did not finish."""
    cost, ratio = ran.costs.get(name), ran.ratio(name, ORIGINAL)
    if cost is None or cost.ms is None or ratio is None:
        raise BricolageError(message=f"{name} did not finish the race: {cost}")
    return cost.ms, ratio.value, (ratio.low, ratio.high)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, with geometric means."""
    lines = [
        "| model | export | backend | operators | ms | rewrite: operators | ms | ratio [95 % CI] "
        "| rewrite --for: operators | ms | ratio [95 % CI] | rewrite configuration |",
        "|---|---|---|---:|---:|---:|---:|---|---:|---:|---|---|",
    ]
    for r in rows:
        cells = [r.workload, r.export, r.backend, str(r.operators), f"{r.ms:.3g}"]
        for t in (r.rewritten, r.tailored):
            cells += [str(t.operators), f"{t.ms:.3g}", f"**{t.ratio:.3f}** [{t.ratio_ci[0]:.3f}, {t.ratio_ci[1]:.3f}]"]
        lines.append(f"| {' | '.join([*cells, r.rewrite_config])} |")
    for kind in dict.fromkeys(r.export for r in rows):
        own = [r for r in rows if r.export == kind]
        plain = statistics.geometric_mean(r.rewritten.ratio for r in own)
        made = statistics.geometric_mean(r.tailored.ratio for r in own)
        lines.append(f"| geometric mean of {len(own)} | {kind} | | | | | | **{plain:.3f}** | | | **{made:.3f}** | |")
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rewrites.rewriting_alone", description=__doc__.partition("\n")[0]
    )
    add_arguments(parser, "unoptimised")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--budget", type=float, help="seconds for looking for the best variant of a model")
    parser.add_argument("--rounds", type=int, default=60, help="of the race")
    given = parser.parse_args()
    options = Options(budget_s=given.budget)
    return collect(given, Row, lambda name, exported: run(name, exported, given.backend, options, given.rounds), table)


if __name__ == "__main__":
    sys.exit(main())
