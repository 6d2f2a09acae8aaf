"""Modules of `torch.nn` trained as one, beside the same trained alone.

    python -m benchmarks.training.fused_equal --json
    python -m benchmarks.training.fused_equal --only BatchNorm,LSTM

Each network of `benchmarks/tools/drawn_modules.py` (one module, attributes at their defaults or one of them changed) is trained by
two lanes for six steps, as one and alone. It is `equal` where it was trained as one and every tensor of every lane is within 1e-5
of its largest element (whole numbers: the same); where rounding alone takes more, within 1e-9 in float64. It is `refused` where it
was trained one by one, with the reason; `wrong` where a tensor differs; `internal` where training as one ends in an error that
training alone does not; `untrainable` where it fails alone. `guard_s` is what comparing the first steps takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.tools.drawn_modules import DRAWN
from benchmarks.tools.output import keep
from bricolage.device.host import host
from bricolage.errors import BadTrainingCode, NotFusible
from bricolage.train.fuse.fuse import FusedSweep, How, train_sweep
from bricolage.train.fuse.lane_check import compare_lanes
from bricolage.train.fuse.lane_groups import group
from bricolage.train.fuse.sweep import HyperParameters, Sweep, make_lanes
from bricolage.train.fuse.sweep_data import load_data
from bricolage.train.step.spec import Optimiser, StepSpec

STEPS = 6
TOLERANCE, WIDE_TOLERANCE = 1e-5, 1e-9
HOWS: tuple[How, How] = ("fused", "serial")
OUTCOMES = ("equal", "refused", "wrong", "internal", "untrainable")


@dataclass(frozen=True)
class Row:
    """What became of one network."""

    name: str
    outcome: str
    reason: str
    off: float | None
    """The largest difference, beside the largest element of its tensor."""
    guard_s: float | None


def sweep(number: int, wide: bool = False) -> Sweep:
    """Two lanes of a drawn network, with learning rates, decays and seeds of their own; in float64 if `wide`."""
    step = StepSpec(
        module="benchmarks.tools.drawn_modules:network",
        batch="benchmarks.tools.drawn_modules:batch",
        batch_size=8,
        optimiser=Optimiser(lr=0.05, momentum=0.9),
        arguments={"number": number, "wide": wide},
        folder=str(Path(__file__).parents[2]),
    )
    lanes = [HyperParameters(seed=1), HyperParameters(seed=2, lr=0.02, weight_decay=0.01)]
    return Sweep(step, make_lanes(step, lanes, steps=STEPS), "benchmarks.tools.drawn_modules:data")


def apart(found: FusedSweep, wanted: FusedSweep) -> float:
    """The largest difference of any tensor, beside its largest element; infinite where whole numbers differ."""
    worst = 0.0
    for name, state in wanted.states.items():
        for key, tensor in state.items():
            other = found.states[name][key]
            if not tensor.is_floating_point():
                worst = max(worst, 0.0 if torch.equal(tensor, other) else float("inf"))
            else:
                worst = max(worst, float((other - tensor).abs().max() / tensor.abs().max().clamp(min=1e-3)))
    return worst


def run(number: int, timed: bool = True) -> Row:
    """One network, as one and alone; `timed`: with what the guard takes."""
    name, given = DRAWN[number].name, sweep(number)
    try:
        wanted = train_sweep(given, "serial", threads=1)
    except BadTrainingCode as error:
        return Row(name, "untrainable", str(error.facts["reason"]), None, None)
    try:
        found = train_sweep(given, "fused", threads=1)
    except Exception as error:  # what is counted here
        return Row(name, "internal", f"{type(error).__name__}: {error}", None, None)
    off = apart(found, wanted)
    groups = found.report.groups
    if off > TOLERANCE and apart(*(train_sweep(sweep(number, True), how, threads=1) for how in HOWS)) > WIDE_TOLERANCE:
        return Row(name, "wrong", "; ".join(one.reason for one in groups), off, None)
    if any(one.how != "fused" for one in groups):
        return Row(name, "refused", "; ".join(dict.fromkeys(one.reason for one in groups)), off, None)
    return Row(name, "equal", "", off, guard_seconds(given) if timed else None)


def guard_seconds(given: Sweep) -> float | None:
    """What comparing the first steps takes."""
    data = load_data(given)
    groups = group(data, given.lanes)
    began = time.perf_counter()
    try:
        for one in groups:
            compare_lanes(data, one)
    except NotFusible:
        return None
    return time.perf_counter() - began


def summary(rows: Sequence[Row]) -> dict[str, object]:
    """Counts by outcome, and the guard's seconds."""
    counts = Counter(row.outcome for row in rows)
    seconds = [row.guard_s for row in rows if row.guard_s is not None]
    return {
        "tried": len(rows),
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "guard_s": {"median": statistics.median(seconds), "most": max(seconds)} if seconds else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.fused_equal", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="file for the JSON, written after each row")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    starts = tuple(filter(None, given.only.split(",")))
    chosen = [number for number, one in enumerate(DRAWN) if not starts or one.name.startswith(starts)]
    if not chosen:
        parser.error(f"no module's name starts with {given.only}")
    rows: list[Row] = []
    found: dict[str, object] = {"hardware": str(host())}
    for number in chosen:
        rows.append(run(number))
        found |= {"summary": summary(rows), "results": [asdict(row) for row in rows]}
        keep(found, given.output)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for row in rows:
        if row.outcome != "equal":
            print(f"{row.name}: {row.outcome}: {row.reason}")
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main()
