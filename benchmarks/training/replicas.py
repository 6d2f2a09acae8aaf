"""What methods that keep replicas in step are worth: accuracy, time, bytes, how much they mind the learning rate, and a straggler.

    python -m benchmarks.training.replicas --json
    python -m benchmarks.training.replicas --network mlp --workers 4 --seeds 5 --lr 0.01,0.03,0.1,0.3 --output out/replicas.json

A network of examples/demo_train on scikit-learn's digits, SGD with momentum 0.9, batches of 16 on each worker, lr a tenth from
three quarters on. Every method sees equally many samples, with each learning rate and seed, and then once more at its own best
learning rate with a straggler, whose steps are longer by `straggler_ms`. Accordion looks at each epoch, so that it compares
gradients before lr falls and after; the two between which it switches, PowerSGD of rank 2 and of rank 1, have rows of their
own. Each run has a process for each worker and each server, one thread each; here they share cores, so seconds are of this
machine. `accuracy` is on the 397 images held out, after equal samples; `accuracy_in_time` that of its last weights by the time
at which the fastest method was done. `worst_lr` is its accuracy at the learning rate that suits it least: how much it minds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev

from benchmarks.tools.output import keep
from bricolage.device.host import host
from bricolage.train.replicas.replica_spec import Method, Replicas, explain_refusal
from bricolage.train.replicas.replicas import ReplicasResult, train_replicas
from bricolage.train.step.spec import Optimiser, StepSpec

CODE = Path(__file__).parents[2] / "examples" / "demo_train" / "digits.py"
METHODS = (
    Method(),
    Method("bsp"),
    Method("bsp", servers=2),
    Method("asp"),
    Method("ssp"),
    Method("easgd"),
    Method("adpsgd"),
    Method("gosgd"),
    Method("local"),
    Method("postlocal"),
    Method(compression="topk"),
    Method(compression="powersgd"),
    Method(compression="powersgd", rank=1),
    Method(compression="powersgd", accordion=1),
    Method(similarity=0.5),
)


@dataclass(frozen=True)
class Row:
    """One method: means over seeds at its best learning rate, with standard deviations of accuracy."""

    method: str
    lr: float
    accuracy: float
    deviation: float
    accuracy_in_time: float | None
    worst_lr: float
    """The accuracy at the learning rate that suits it least."""
    seconds: float
    samples_s: float
    sent_bytes: float
    staleness: float
    straggler_seconds: float
    straggler_samples_s: float
    straggler_accuracy: float
    straggler_ahead: int


def task(network: str, workers: int, epochs: int) -> Replicas:
    """What is trained."""
    step = StepSpec(f"{CODE}:{network}", f"{CODE}:batch", batch_size=16, optimiser=Optimiser("sgd", 0.1, momentum=0.9))
    return Replicas(step, f"{CODE}:data", METHODS, workers, epochs, decay_at=(0.75,))


def accuracy(some: Sequence[ReplicasResult]) -> float:
    """Their mean."""
    return mean(one.accuracy or 0.0 for one in some)


def run(given: Replicas, methods: Sequence[Method], lrs: Sequence[float], seeds: int, straggler_ms: float) -> list[Row]:
    """All methods in turns, seed by seed and learning rate by learning rate."""
    found: dict[tuple[str, float], list[ReplicasResult]] = {}
    for seed in range(seeds):
        for lr in lrs:
            for method in methods:
                report = train_replicas(given, replace(method, lr=lr, name=method.label), threads=1, seed=seed).report
                found.setdefault((method.label, lr), []).append(report)
    best = {one.label: max(lrs, key=lambda lr, one=one: accuracy(found[one.label, lr])) for one in methods}  # type: ignore[misc]
    within = min(median(r.seconds for r in found[one.label, best[one.label]]) for one in methods)
    late = replace(given, straggler_ms=straggler_ms)
    rows = []
    for method in methods:
        label, lr = method.label, best[method.label]
        some = found[label, lr]
        early = [at.accuracy for one in some if (at := one.at(within)) is not None and at.accuracy is not None]
        slow = train_replicas(late, replace(method, lr=lr, name=label), threads=1).report
        rows.append(
            Row(
                label,
                lr,
                accuracy(some),
                stdev([one.accuracy or 0.0 for one in some]) if len(some) > 1 else 0.0,
                mean(early) if early else None,
                min(accuracy(found[label, other]) for other in lrs),
                median(one.seconds for one in some),
                median(one.samples_s for one in some),
                mean(one.sent_bytes for one in some),
                mean(one.staleness for one in some),
                slow.seconds,
                slow.samples_s,
                slow.accuracy or 0.0,
                slow.ahead,
            )
        )
    return rows


def table(rows: Sequence[Row], straggler_ms: float) -> str:
    """As Markdown."""
    lines = [
        "| method | lr | accuracy | in equal time | worst lr | seconds | samples/s | sent | stale | "
        f"with a straggler of {straggler_ms:g} ms: samples/s | accuracy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in rows:
        early = "–" if one.accuracy_in_time is None else f"{one.accuracy_in_time:.1%}"
        cells = [
            one.method,
            f"{one.lr:g}",
            f"{one.accuracy:.1%} ± {one.deviation:.1%}",
            early,
            f"{one.worst_lr:.1%}",
            f"{one.seconds:.2f}",
            f"{one.samples_s:,.0f}",
            f"{one.sent_bytes / 1e6:,.2f} MB",
            f"{one.staleness:.1f}",
            f"{one.straggler_samples_s:,.0f}",
            f"{one.straggler_accuracy:.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.replicas", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--network", default="cnn", help="of examples/demo_train/digits.py: mlp, cnn, transformer, lstm"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", default="0.01,0.05,0.2", help="learning rates, separated by commas")
    parser.add_argument("--straggler", type=float, default=10.0, help="milliseconds")
    parser.add_argument("--method", action="append", help="a kind; several times; by default all methods")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="file for the JSON")
    given = parser.parse_args(arguments)
    work = task(given.network, given.workers, given.epochs)
    methods = [one for one in METHODS if not explain_refusal(one, given.workers, work.step)]
    if given.method:
        if wrong := sorted(set(given.method) - {one.kind for one in methods}):
            parser.error(f"no method {wrong[0]}")
        methods = [one for one in methods if one.kind in given.method]
    rows = run(work, methods, [float(one) for one in given.lr.split(",")], given.seeds, given.straggler)
    found = {
        "hardware": str(host()),
        "network": given.network,
        "workers": given.workers,
        "epochs": given.epochs,
        "seeds": given.seeds,
        "straggler_ms": given.straggler,
        "results": [asdict(row) for row in rows],
    }
    keep(found, given.output)
    print(json.dumps(found, indent=1) if given.json else table(rows, given.straggler))


if __name__ == "__main__":
    main()
