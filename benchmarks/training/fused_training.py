"""Samples a second of small models trained as one, one after another, and in processes.

    python -m benchmarks.training.fused_training --models 8 --network cnn --json
    python -m benchmarks.training.fused_training --models 1,2,4,8,16,32 --network cnn,transformer,mlp,lstm --output out/fused.json

The networks of examples/demo_train on scikit-learn's digits, in batches of 32, plain SGD with momentum, each model with a
learning rate of its own. All ways train for real, in turns: one after another with all threads and with one; as one with all
threads, with one, and in as many processes as there are cores, each with its part of the models; and one process a number from 2
on, one thread each, whose models take turns. `serial`, `fused` and `processes` are the best of each kind (samples/s of all models
together, the median over the rounds with its 95 % interval), `over_serial` and `over_processes` are ratios within the rounds.
`deviation` is the largest relative difference of a held-out loss between models trained as one and alone, after 100 steps, in the
same run.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.tools.output import keep
from bricolage.base.options import available_cores
from bricolage.device.host import host
from bricolage.errors import NotFusible
from bricolage.measure.statistics import Ratio
from bricolage.measure.turns import time_in_turns
from bricolage.train.fuse.contestants import GroupTrainer, Here, Serial
from bricolage.train.fuse.fuse import Speed, train_sweep
from bricolage.train.fuse.lane_groups import group
from bricolage.train.fuse.processes import InProcesses
from bricolage.train.fuse.sweep import Sweep, read_sweep
from bricolage.train.fuse.sweep_data import load_data

CODE = Path(__file__).parents[2] / "examples" / "demo_train" / "digits.py"
NETWORKS = ("cnn", "transformer", "mlp", "lstm")
_FOREVER = 10**9


@dataclass(frozen=True)
class Row:
    """One network, so many times."""

    network: str
    models: int
    serial: Speed
    fused: Speed
    processes: Speed | None
    best: tuple[str, str, str]
    """Names of the best of each kind."""
    over_serial: Ratio
    over_processes: Ratio | None
    deviation: float
    speeds: dict[str, Speed]


def sweep(network: str, models: int, steps: int) -> Sweep:
    """Learning rates from 0.003 to 0.1."""
    lanes = [{"lr": 0.003 * (100 / 3) ** (n / max(models - 1, 1)), "seed": n} for n in range(models)]
    step = {
        "module": f"{CODE}:{network}",
        "batch": f"{CODE}:batch",
        "batch_size": 32,
        "loss": "cross_entropy",
        "optimiser": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.json"
        path.write_text(
            json.dumps({"step": step, "data": f"{CODE}:data", "steps": steps, "lane": lanes}), encoding="utf-8"
        )
        return read_sweep(path)


def deviation(network: str, models: int) -> float:
    """Of held-out losses, after 100 steps."""
    given = sweep(network, models, 100)
    found, wanted = (train_sweep(given, how, threads=1).report.lanes for how in ("fused", "serial"))
    off = 0.0
    for one, other in zip(found, wanted, strict=True):
        assert one.held_out_loss is not None and other.held_out_loss is not None
        off = max(off, abs(one.held_out_loss / other.held_out_loss - 1.0))
    return off


def run(network: str, models: int, rounds: int, turn_s: float) -> Row:
    """All contestants in turns.

    Raises:
        NotFusible: the network does not fuse.
    """
    off = deviation(network, models)
    given = sweep(network, models, _FOREVER)
    data, cores = load_data(given), available_cores()
    (one,) = group(data, given.lanes)
    if one.reason:
        raise NotFusible(reason=one.reason)
    names = [lane.name for lane in given.lanes]
    racers: dict[str, list[GroupTrainer]] = {"serial": [], "fused": [], "processes": []}
    for threads in sorted({1, cores}):
        racers["serial"].append(Serial(data, one, threads, f"serial, {threads} threads"))
        racers["fused"].append(Here(data, one, threads, f"fused, {threads} threads", ahead=cores > 1))
    if models >= 2 * cores > 2:
        racers["fused"].append(InProcesses(given, names, cores, "fused"))
    for count in range(2, min(models, 2 * cores) + 1):
        several = InProcesses(given, names, count, "serial")
        several.how = f"{count} processes"
        racers["processes"].append(several)
    everyone = [racer for kind in racers.values() for racer in kind]

    def turn(racer: GroupTrainer) -> Sequence[float]:
        samples, seconds = racer.run(turn_s)
        return (seconds * 1e3 / samples,)

    try:
        for racer in everyone:
            turn(racer)
        found = time_in_turns({racer.how: partial(turn, racer) for racer in everyone}, rounds)
    finally:
        for racer in everyone:
            racer.close()
    speeds = {racer.how: Speed.of(found.latency(racer.how)) for racer in everyone}
    best = [
        max((racer.how for racer in kind), key=lambda name: speeds[name].median, default="") for kind in racers.values()
    ]
    serial, fused, processes = best

    def over(name: str) -> Ratio:
        ratio = found.ratio(fused, name)
        assert ratio is not None, "both take part in every round"
        return ratio

    return Row(
        network,
        models,
        speeds[serial],
        speeds[fused],
        speeds[processes] if processes else None,
        (serial, fused, processes),
        over(serial),
        over(processes) if processes else None,
        off,
        speeds,
    )


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = [
        "| network | models | one after another | as one | processes | over one after another | over processes | deviation |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        serial, fused, processes = (
            f"{one.median:,.0f} ({name})" if one is not None else "–"
            for one, name in zip((row.serial, row.fused, row.processes), row.best, strict=True)
        )
        lines.append(
            f"| {row.network} | {row.models} | {serial} | {fused} | {processes} | **{row.over_serial}** | "
            f"{row.over_processes or '–'} | {row.deviation:.0e} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.fused_training", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--models", default="8", help="how many, separated by commas")
    parser.add_argument("--network", default="cnn", help=f"of {', '.join(NETWORKS)}, separated by commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn", type=float, default=0.3, help="seconds of one turn")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="file for the JSON, written after each row")
    given = parser.parse_args(arguments)
    networks, counts = given.network.split(","), [int(count) for count in given.models.split(",")]
    if wrong := sorted(set(networks) - set(NETWORKS)):
        parser.error(f"no network {wrong[0]}: there are {', '.join(NETWORKS)}")
    if min(counts) < 1:
        parser.error("--models counts models")
    rows: list[Row] = []
    found: dict[str, object] = {"hardware": str(host())}
    for network in networks:
        for count in counts:
            rows.append(run(network, count, given.rounds, given.turn))
            found["results"] = [asdict(row) for row in rows]
            keep(found, given.output)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(table(rows))
    if len(rows) > 1:
        mean = math.exp(sum(math.log(row.over_serial.value) for row in rows) / len(rows))
        print(f"\ngeometric mean over one after another: {mean:.2f}")


if __name__ == "__main__":
    main()
