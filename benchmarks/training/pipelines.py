"""What a pipeline's schedule takes and keeps, by the simulator: `python -m benchmarks.training.pipelines`.

    python -m benchmarks.training.pipelines --stages 4 --micro-batches 8 --schedule zb-v --json
    python -m benchmarks.training.pipelines --stages 8 --micro-batches 16
    python -m benchmarks.training.pipelines --stages 4 --micro-batches 8 --schedule zb-h1 --csv schedule.csv

`--stages` are devices in a row. Times are those of all the stages of a device together: `--times f,b,w` for the forward pass and
the gradients of input and weights of a micro-batch, 1 each by default; `--send` is what each transfer between two stages takes.
`makespan` is from the first start to the last end, `bubble` the part of the devices' time in which they wait. `peak_in_flight` is
by device, in activations of all its stages for one micro-batch. No hardware is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bricolage.errors import BricolageError
from bricolage.work.pipeline.csv import to_csv
from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.table import PipelineSchedule, StageTimes, run_times


@dataclass(frozen=True)
class Row:
    """One schedule."""

    schedule: str
    stages: int
    micro_batches: int
    makespan: float
    bubble: float
    peak_in_flight: tuple[float, ...]
    weight_copies: tuple[int, ...]
    synchronous: bool


def row(schedule: PipelineSchedule, times: Sequence[float], send: float) -> Row:
    """What a schedule takes when each device's stages take these times together."""
    devices = len(schedule.rows)
    # Wavelet's partitions rotate: its stages are as many as devices, and each device has several of them at a time.
    chunks = schedule.stages / devices
    each = StageTimes.equal(schedule.stages, *(one / chunks for one in times))
    sends = (send,) * (schedule.stages - 1) if send else ()
    found = run_times(schedule, StageTimes(each.forward, each.input_gradient, each.weight_gradient, sends))
    return Row(
        schedule.name,
        devices,
        schedule.micro_batches,
        found.makespan_ms,
        found.bubble,
        tuple(one / chunks for one in schedule.in_flight),
        schedule.weight_copies,
        schedule.synchronous,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, required=True, metavar="D")
    parser.add_argument("--micro-batches", type=int, required=True, metavar="N")
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), help="all of them, by default")
    parser.add_argument("--times", default="1,1,1", metavar="F,B,W")
    parser.add_argument("--send", type=float, default=0.0)
    parser.add_argument("--csv", type=Path, help="write the schedule for torch.distributed.pipelining")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        times = tuple(float(one) for one in given.times.split(","))
    except ValueError:
        times = ()
    if len(times) != 3 or min(times) < 0.0 or given.stages < 1 or given.micro_batches < 1 or given.send < 0.0:
        parser.error("give three times that are not negative, at least one stage and one micro-batch")
    rows = []
    for name in [given.schedule] if given.schedule else SCHEDULES:
        try:
            schedule = SCHEDULES[name](given.stages, given.micro_batches)
            if given.csv is not None and given.schedule:
                given.csv.write_text(to_csv(schedule), encoding="utf-8")
        except (ValueError, BricolageError) as error:
            if given.schedule:
                parser.error(str(error))
            print(f"left out: {error}", file=sys.stderr)
            continue
        rows.append(row(schedule, times, given.send))
    if given.json:
        print(json.dumps(asdict(rows[0]) if given.schedule else [asdict(one) for one in rows], indent=1))
        return 0
    for one in rows:
        print(f"{one.schedule:12} {one.makespan:10.3f} {100 * one.bubble:6.1f} % in flight {max(one.peak_in_flight):g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
