"""Nine methods that keep replicas in step, on more workers than there are cores: losses are computed, times are simulated.

    python -m benchmarks.training.replicas_at_scale
    python -m benchmarks.training.replicas_at_scale --workers 4,8,16 --seeds 3 --output out/scale.json
    python -m benchmarks.training.replicas_at_scale --check --seeds 3
    python -m benchmarks.training.replicas_at_scale --accordion --workers 4,16 --setting fast --epochs 8

The small CNN of examples/demo_train on scikit-learn's digits, SGD with momentum 0.9, batches of 16 on each worker, equal samples
for all methods. A method's learning rate is the best of `--lr` by its held-out loss with the first seed and setting. Three
settings: links of 0.1 × 10⁹ bytes a second and 20 µs; links of 0.002 and 100 µs; and the first with a worker whose steps take three
times as long. Each step takes 5 ms in all of them, so that the tables are the same on any machine.
`bricolage train replicas --simulate` does the same for any training.

`--check` trains by processes here, and simulates that: this machine's cores, which the processes share, with steps and links as
measured. It needs a quiet machine. `--accordion` compares compression of rank 2, of rank 1, and by turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev

from benchmarks.tools.output import keep
from benchmarks.training.replicas import task
from bricolage.device.host import host
from bricolage.train.replicas.replica_spec import KINDS, Method, Replicas
from bricolage.train.replicas.replicas import ReplicasResult, train_replicas
from bricolage.train.replicas.simulate_replicas import (
    ReplicaMachines,
    describe_machines,
    measure_machines,
    simulate_replicas,
)

STEP_MS = 5.0
TARGET = 0.2
"""Held-out loss, until which time is counted."""
COMPRESSION = (
    Method(),
    Method(compression="powersgd", rank=2),
    Method(compression="powersgd", accordion=1),
    Method(compression="powersgd", rank=1),
)


@dataclass(frozen=True)
class Setting:
    """Links, and how much longer the last worker's steps take."""

    name: str
    gbytes: float
    latency_us: float
    straggler_ms: float = 0.0

    def machines(self, workers: int) -> ReplicaMachines:
        """Workers with cores of their own."""
        return describe_machines(workers, self.gbytes, self.latency_us, STEP_MS)


SETTINGS = (Setting("fast", 0.1, 20.0), Setting("slow", 0.002, 100.0), Setting("uneven", 0.1, 20.0, 2 * STEP_MS))


@dataclass(frozen=True)
class Row:
    """One method on some workers in one setting."""

    setting: str
    workers: int
    method: str
    lr: float
    losses: tuple[float, ...]
    """By seed, at the end."""
    accuracies: tuple[float, ...]
    seconds: float
    """Median over seeds, of the whole training."""
    to_loss_s: float | None
    """Median over the seeds that came to `TARGET`."""
    to_loss_steps: float | None
    """Steps of all workers until then."""
    reached: int
    """Seeds that came to it."""
    sent_bytes: float
    staleness: float


def row(setting: str, method: Method, lr: float, runs: Sequence[ReplicasResult]) -> Row:
    """Of one method's runs."""
    points = [(run, at) for run in runs if (at := run.first_below(TARGET)) is not None]
    return Row(
        setting,
        runs[0].workers,
        method.label,
        lr,
        tuple(run.loss or 0.0 for run in runs),
        tuple(run.accuracy or 0.0 for run in runs),
        median(run.seconds for run in runs),
        median(at.seconds for _, at in points) if points else None,
        median(run.steps * at.samples / run.samples for run, at in points) if points else None,
        len(points),
        mean(run.sent_bytes for run in runs),
        mean(run.staleness for run in runs),
    )


def compare(
    given: Replicas, methods: Sequence[Method], lrs: Sequence[float], seeds: int, settings: Sequence[Setting]
) -> list[Row]:
    """Each method at its learning rate that is best in the first setting."""
    rows = []
    for method in methods:
        first = {lr: train(given, settings[0], method, lr, 0) for lr in lrs}
        lr = min(lrs, key=lambda lr, first=first: first[lr].loss or 0.0)  # type: ignore[misc]
        for setting in settings:
            runs = [
                first[lr] if setting is settings[0] and seed == 0 else train(given, setting, method, lr, seed)
                for seed in range(seeds)
            ]
            rows.append(row(setting.name, method, lr, runs))
            print(
                f"{setting.name}, {given.workers} workers, {method.label}: {rows[-1].losses}",
                file=sys.stderr,
                flush=True,
            )
    return rows


def train(given: Replicas, setting: Setting, method: Method, lr: float, seed: int) -> ReplicasResult:
    """Simulated."""
    uneven, named = replace(given, straggler_ms=setting.straggler_ms), replace(method, lr=lr, name=method.label)
    return simulate_replicas(uneven, setting.machines(given.workers), named, seed=seed).report


def check(given: Replicas, lr: float, seeds: int) -> list[tuple[Row, Row]]:
    """Each method by processes, and as it is simulated for this machine."""
    machines = measure_machines(given, 1)
    pairs = []
    for kind in KINDS:
        method = Method(kind, lr=lr, name=kind)
        real = [train_replicas(given, method, threads=1, seed=seed).report for seed in range(seeds)]
        predicted = [simulate_replicas(given, machines, method, seed=seed).report for seed in range(seeds)]
        pairs.append((row("processes", method, lr, real), row("simulated", method, lr, predicted)))
    return pairs


def spread(values: Sequence[float], form: str) -> str:
    """Mean and standard deviation."""
    return f"{mean(values):{form}} ± {stdev(values) if len(values) > 1 else 0.0:{form}}"


def table(rows: Sequence[Row], seeds: int) -> str:
    """As Markdown."""
    lines = [
        f"| setting | workers | method | lr | loss | accuracy | steps to {TARGET:g} | seconds to {TARGET:g} | seconds "
        "| sent | stale |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for line in rows:
        part = "" if line.reached in (0, seeds) else f" ({line.reached} of {seeds})"
        cells = [
            line.setting,
            str(line.workers),
            line.method,
            f"{line.lr:g}",
            spread(line.losses, ".3f"),
            spread(line.accuracies, ".1%"),
            "–" if line.to_loss_steps is None else f"{line.to_loss_steps:,.0f}{part}",
            "–" if line.to_loss_s is None else f"{line.to_loss_s:.2f}",
            f"{line.seconds:.2f}",
            f"{line.sent_bytes / 1e6:.2f} MB",
            f"{line.staleness:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def check_table(pairs: Sequence[tuple[Row, Row]]) -> str:
    """As Markdown."""
    lines = [
        "| method | seconds by processes | simulated | error | loss by processes | simulated |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for real, predicted in pairs:
        error = predicted.seconds / real.seconds - 1.0
        losses = f"{spread(real.losses, '.3f')} | {spread(predicted.losses, '.3f')}"
        lines.append(f"| {real.method} | {real.seconds:.2f} | {predicted.seconds:.2f} | {error:+.0%} | {losses} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.replicas_at_scale", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--network", default="cnn", help="of examples/demo_train/digits.py")
    parser.add_argument("--workers", default="4,8,16", help="separated by commas")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", default="0.0125,0.05", help="learning rates, separated by commas")
    parser.add_argument("--setting", default="fast,slow,uneven", help="separated by commas")
    parser.add_argument(
        "--check", action="store_true", help="four processes against their simulation, at the first rate"
    )
    parser.add_argument("--accordion", action="store_true", help="compression by turns instead of the nine methods")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="file for the JSON")
    given = parser.parse_args(arguments)
    counts, lrs = [int(word) for word in given.workers.split(",")], [float(word) for word in given.lr.split(",")]
    document: dict[str, object] = {"hardware": str(host()), "network": given.network, "epochs": given.epochs}
    if given.check:
        pairs = check(task(given.network, counts[0], given.epochs), lrs[0], given.seeds)
        document["pairs"] = [[asdict(line) for line in pair] for pair in pairs]
        shown = check_table(pairs)
    else:
        methods = COMPRESSION if given.accordion else [Method(kind) for kind in KINDS]
        settings = [setting for setting in SETTINGS if setting.name in given.setting.split(",")]
        rows = [
            line
            for count in counts
            for line in compare(task(given.network, count, given.epochs), methods, lrs, given.seeds, settings)
        ]
        document["results"] = [asdict(line) for line in rows]
        shown = table(sorted(rows, key=lambda line: line.setting), given.seeds)
    keep(document, given.output)
    print(json.dumps(document, indent=1) if given.json else shown)


if __name__ == "__main__":
    main()
