"""Latency of what bricolage ships against every single backend, each at its own best settings.

    python -m benchmarks.latency --workload resnet-50 --precision highest
    python -m benchmarks.latency --workload six,collage --precision all --output out/latency.json
    python -m benchmarks.latency --workload six --isa avx2
    python -m benchmarks.latency --workload collage,nasnet-a-large --without native

For each workload and precision: `optimize` decides (its time is recorded), the artifact is written, and an *independent*
race follows in which the artifact's plan and every configuration of every backend have their turn, however long it compiles
(compiled code is kept between runs), each in processes of its own, all checked against float64 in the same run; who comes near the
best runs interleaved with the plan. The figures are those of this second race.

With `--isa` all backends are kept to an instruction set as far as they can be (see `benchmarks.tools.isa`). bricolage then chooses
among those that keep to it on the workload at hand; the others race too, but are not counted among "other tools".
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.tools.isa import keeps, limit, restart_under
from benchmarks.tools.machine import measure
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.api.bench import CHALLENGER, bench
from bricolage.api.optimize import optimize
from bricolage.backends import registry
from bricolage.base.codec import decode
from bricolage.base.options import ISAS, PRECISIONS, Options, Precision
from bricolage.device.device import Peaks
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.graph.work import workload as work_of
from bricolage.plan.race_outcome import Contestant
from bricolage.work.implementation import OWN_ENGINE

_TURNS_S = 1800.0
"""What the second race may take for measuring everybody alone; no compilation may take more than half of it."""


@dataclass(frozen=True)
class Result:
    """One row: times in milliseconds, ratios above 1 mean that bricolage is faster."""

    workload: str
    precision: str
    shipped: str
    regions: int
    bricolage_ms: float
    best_baseline: str
    best_baseline_ms: float
    ratio: float
    ratio_ci: tuple[float, float]
    decided_ratio: float
    """What `optimize` itself measured."""
    significant: bool
    error: float
    bound: float
    floor_ms: float
    """Operations over float32 peak or bytes over bandwidth, whichever is larger."""
    optimize_s: float
    baselines: tuple[Contestant, ...]
    isa: str = ""
    """What all were kept to; empty for everything that the processor has."""
    unkept: Mapping[str, str] = field(default_factory=dict)
    """Backends that did not keep to it, and why."""
    raced_other: str = ""
    """The best other tool of the second race; empty in files of before it was asked for."""
    over_other: float | None = None
    """bricolage over it, from rounds that both had ..."""
    over_other_ci: tuple[float, float] | None = None

    @property
    def regime(self) -> str:
        """Precision, and what all were kept to."""
        return f"{self.precision}, {self.isa}" if self.isa else self.precision

    @property
    def best_other(self) -> Contestant | None:
        """The fastest single backend that is not our own engine and keeps to the instruction set, in the race or, where the first
        measurement put it out of reach, there: whatever makes it look faster. None where no such backend has a time."""
        others = [c for c in self.baselines if c.name.split()[0] not in (OWN_ENGINE, *self.unkept)]
        return min((c for c in others if c.median_ms is not None), key=lambda c: c.median_ms or 0.0, default=None)

    @property
    def _ours(self) -> Contestant | None:
        timed = [c for c in self.baselines if c.name.split()[0] == OWN_ENGINE and c.median_ms is not None]
        raced = [c for c in timed if c.speedup is not None]
        return min(raced or timed, key=lambda c: c.median_ms or 0.0, default=None)

    @property
    def alone(self) -> float | None:
        """Our own engine alone over the best other tool; None where one of them has no time."""
        ours, other = self._ours, self.best_other
        if ours is None or other is None:
            return None
        if ours.speedup is not None and other.speedup is not None:
            return ours.speedup / other.speedup
        assert ours.median_ms is not None and other.median_ms is not None
        return other.median_ms / ours.median_ms

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """bricolage over the best other tool with its 95 % interval, from rounds that both had. In files of before and under an
        instruction set, where the best single backend is our own engine, the intervals of both ratios to it are put
        together, which makes them wider than they are."""
        other = self.best_other
        if other is None:
            return None
        if other.name == self.raced_other and self.over_other is not None and self.over_other_ci is not None:
            return self.over_other, *self.over_other_ci
        if other.name == self.best_baseline:
            return self.ratio, *self.ratio_ci
        if other.speedup is None or other.speedup_ci is None:  # out of reach, so not in the race: as `optimize` saw it
            assert other.median_ms is not None and other.ci_ms is not None
            low, high = (ms / self.bricolage_ms for ms in other.ci_ms)
            return other.median_ms / self.bricolage_ms, low, high
        low, high = other.speedup_ci
        return self.ratio / other.speedup, self.ratio_ci[0] / high, self.ratio_ci[1] / low


def run(name: str, precision: Precision, options: Options, machine: Peaks, isa: str = "") -> Result:
    """Optimises one workload and races the outcome; with `isa`, this process runs under it already.

    Raises:
        BricolageError: the workload cannot be optimised.
    """
    workload = workloads()[name]
    path, inputs = export(workload), workload.example_inputs(options.seed)
    unkept: dict[str, str] = {}
    if isa:
        found = [backend.name for backend in registry.available(options.backends)]
        looks = {b: keeps(b, name, options.threads, options.profile.compile_limit_s) for b in found}
        unkept = {backend: words for backend, (kept, words) in looks.items() if not kept}
        options = dataclasses.replace(options, backends=tuple(b for b in found if b not in unkept))
    start = time.monotonic()
    fast = optimize(path, options, inputs=inputs)
    seconds = time.monotonic() - start
    bucket = fast.plan.buckets[0]
    amount = work_of(fast.graph().everything)
    everybody = (*(b.name for b in registry.available(options.backends)), *unkept)
    again = dataclasses.replace(options, backends=everybody, budget_s=_TURNS_S)
    with tempfile.TemporaryDirectory() as folder:
        raced = bench(fast.save(Path(folder) / f"{name}.bricolage"), again, inputs=inputs).buckets[0]
    ours = next(c for c in raced.race.contestants if c.name == CHALLENGER)
    baselines = [c for c in raced.race.contestants if c.kind == "baseline"]
    best = next(c for c in baselines if c.name == raced.race.best_baseline)
    if ours.median_ms is None or best.median_ms is None or ours.speedup is None or ours.speedup_ci is None:
        raise BricolageError(message=f"the plan did not finish the race: {ours.reason}")
    return Result(
        workload=name,
        precision=precision,
        shipped=bucket.race.chosen if not bucket.race.significant else "+".join(bucket.program.backends),
        regions=len(bucket.program.regions),
        bricolage_ms=ours.median_ms,
        best_baseline=best.name,
        best_baseline_ms=best.median_ms,
        ratio=ours.speedup,
        ratio_ci=ours.speedup_ci,
        decided_ratio=bucket.race.speedup_vs_baseline,
        significant=bucket.race.significant,
        error=ours.error if ours.error is not None else float("nan"),
        bound=raced.verification.bound,
        floor_ms=machine.floor_ms(amount.flops, amount.bytes),
        optimize_s=seconds,
        baselines=tuple(baselines),
        isa=isa,
        unkept=unkept,
        raced_other=raced.race.best_other,
        over_other=ours.over_other,
        over_other_ci=ours.over_other_ci,
    )


def without(names: Sequence[str]) -> tuple[str, ...] | None:
    """All backends but these, as an option; without any name nothing is chosen.

    Raises:
        SystemExit: there is no such backend.
    """
    there = [backend.name for backend in registry.available(None)]
    if unknown := sorted(set(names) - set(there)):
        raise SystemExit(f"there is no backend '{unknown[0]}' to leave out; there are: {', '.join(there)}")
    return tuple(name for name in there if name not in names) if names else None


def select(words: Sequence[str]) -> list[str]:
    """Workload names from names and families ("six", "collage", "light", "wide" ...; "all" for the eleven).

    Raises:
        SystemExit: a word is neither.
    """
    known = workloads()
    names: list[str] = []
    for word in words:
        families = ("six", "collage") if word == "all" else (word,)
        found = [n for n, w in known.items() if w.family in families] or ([word] if word in known else [])
        if not found:
            there = [*known, *dict.fromkeys(w.family for w in known.values()), "all"]
            raise SystemExit(f"there is no workload '{word}'; there are: {', '.join(there)}")
        names.extend(n for n in found if n not in names)
    return names


def table(results: Sequence[Result]) -> str:
    """The results as a Markdown table. The first ratio is to the best single backend, our own engine among them; the second
    to the best of the other tools; the third is that of our own engine alone. Under an instruction set, the last two are to
    tools that keep to it."""
    lines = [
        "| workload | precision | bricolage ships | ms | best single | ratio [95 % CI] | best other tool | ms | ratio [95 % CI] "
        "| native alone | error | floor ms | optimize s |",
        "|---|---|---|---:|---|---|---|---:|---|---:|---:|---:|---:|",
    ]
    for r in results:
        other, gain = "| | | ", r.gain
        if r.best_other is not None and gain is not None:
            other = f"| {r.best_other.name} | {r.best_other.median_ms:.3g} | **{gain[0]:.3f}** [{gain[1]:.3f}, {gain[2]:.3f}] "
        lines.append(
            f"| {r.workload} | {r.regime} | {r.shipped}{f' ({r.regions} regions)' if r.regions > 1 else ''} "
            f"| {r.bricolage_ms:.3g} | {r.best_baseline} | {r.ratio:.3f} [{r.ratio_ci[0]:.3f}, {r.ratio_ci[1]:.3f}] "
            f"{other}| {'' if r.alone is None else f'{r.alone:.3f}'} | {r.error:.1e} | {r.floor_ms:.3g} | {r.optimize_s:.0f} |"
        )
    return "\n".join(lines)


def baselines_table(results: Sequence[Result]) -> str:
    """All baselines of all rows as a Markdown table of milliseconds. Who did not keep to the instruction set has a
    dagger, and the reason stands below."""
    names = list(dict.fromkeys(c.name for r in results for c in sorted(r.baselines, key=lambda c: c.name)))
    lines = ["| workload | precision | " + " | ".join(names) + " |", "|---|---|" + "---:|" * len(names)]
    for r in results:
        by_name = {c.name: c for c in r.baselines}
        cells = [
            "" if n not in by_name else f"{ms:.3g}{'†' * (n.split()[0] in r.unkept)}"
            if (ms := by_name[n].median_ms) is not None else
            by_name[n].reason.partition(":")[0].replace("refused", "–")
            for n in names
        ]  # fmt: skip
        lines.append(f"| {r.workload} | {r.regime} | " + " | ".join(cells) + " |")
    notes = [
        f"† {r.workload}: {b} did not keep to {r.isa.removeprefix('as ')} ({why})"
        for r in results
        for b, why in r.unkept.items()
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def averages(results: Sequence[Result]) -> str:
    """Geometric means of the gain over the best other tool as a Markdown table, a row for each precision: of what bricolage
    ships, and of our own engine alone."""
    lines = [
        "| precision | over the best other tool: the six | all | native alone: the six | all |",
        "|---|---:|---:|---:|---:|",
    ]
    for rows in _by_regime(results):
        six = [r for r in rows if workloads()[r.workload].family == "six"]
        shipped = [[r.gain[0] for r in group if r.gain is not None] for group in (six, rows)]
        alone = [[r.alone for r in group if r.alone is not None] for group in (six, rows)]
        cells = [f"{statistics.geometric_mean(g):.2f} ({len(g)})" if g else "" for g in (*shipped, *alone)]
        lines.append(f"| {rows[0].regime} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_regime(results: Sequence[Result]) -> list[list[Result]]:
    return [[r for r in results if r.regime == regime] for regime in dict.fromkeys(r.regime for r in results)]


def stored(paths: Sequence[Path]) -> list[Result]:
    """Rows of files that `--output` wrote, the latest of each workload, precision and instruction set.

    Raises:
        DecodeError: a file is from another version.
    """
    found: dict[tuple[str, str], Result] = {}
    for path in paths:
        for row in json.loads(path.read_text(encoding="utf-8"))["results"]:
            result = decode(Result, row, str(path))
            found[result.workload, result.regime] = result
    order = list(workloads())
    return sorted(found.values(), key=lambda r: (r.isa, PRECISIONS.index(r.precision), order.index(r.workload)))


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="all", help="names or families, separated by commas (all = the eleven)")
    parser.add_argument("--precision", default="highest", help=f"{', '.join(PRECISIONS)} or all")
    parser.add_argument("--effort", default="quick", choices=["quick", "full"])
    parser.add_argument("--budget", type=float, help="seconds for each decision")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--without", action="append", default=[], help="leave this backend out; repeatable")
    parser.add_argument("--isa", default="", choices=ISAS, help="keep all backends to it, as far as they can be kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each row")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="only print what --output wrote before")
    given = parser.parse_args()
    if given.show:
        shown = stored(given.show)
        print(
            averages(shown),
            *("\n" + text(rows) for rows in _by_regime(shown) for text in (table, baselines_table)),
            sep="\n",
        )
        return 0
    if given.isa:
        restart_under(given.isa)
    kept_to = limit()
    precisions = PRECISIONS if given.precision == "all" else tuple(given.precision.split(","))
    machine = measure()
    results: list[Result] = []
    failures: list[str] = []
    for name in select(given.workload.split(",")):
        for precision in precisions:
            extra = {"threads": given.threads} if given.threads else {}
            backends = without(given.without)
            options = Options(precision, effort=given.effort, budget_s=given.budget, backends=backends, **extra)
            try:
                results.append(run(name, precision, options, machine, kept_to))
                print(table(results[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            except BricolageError as error:
                failures.append(f"{name} {precision}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
            document = {
                "hardware": str(host()),
                "machine": dataclasses.asdict(machine),
                "results": [dataclasses.asdict(r) for r in results],
                "failures": failures,
            }
            keep(document, given.output)
    if given.json:
        print(json.dumps(document, indent=1))
    else:
        print(f"{host()}; float32 peak {machine.gflops:.0f} GFLOP/s, memory {machine.gbytes:.0f} GB/s\n")
        print(table(results), "", baselines_table(results), *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
