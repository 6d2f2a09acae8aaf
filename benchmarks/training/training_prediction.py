"""How far off predictions of training steps are: six networks, changes that are then really made.

    python -m benchmarks.training.training_prediction --json
    python -m benchmarks.training.training_prediction --network resnet,lstm --seconds 8 --output out/prediction.json

The networks of benchmarks/training/training_networks.py, trained by Adam on all cores. The step as it is is measured, its changes
(mixed precision, a fused optimiser, half and twice the batch, recomputation, micro-batches, a frozen part, channels innermost for
images, one thread, two workers with one core each, two stages, two models as one) are predicted from it without being run, and
then run, in turns with the step as it is. `error` is predicted by measured time (the quicker quarter), minus one, both by those of
the step as it is: a machine that is slower than when the step was profiled does not count; in `time_error`, of medians, it does.
`peak_error` is of memory, by PyTorch's profiler. `median_error` and `worst_error` are of the sizes of errors of all changes of all
networks; "as it is" does not count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.tools.output import keep
from bricolage.base.options import available_cores
from bricolage.device.host import host
from bricolage.train.predict.predict import predict_step
from bricolage.train.predict.variant import parse_variant
from bricolage.train.step.spec import Optimiser, StepSpec

CODE = "benchmarks.training.training_networks"
BATCHES: Mapping[str, tuple[str, int]] = {
    "mlp": ("mlp_batch", 256),
    "resnet": ("image_batch", 32),
    "mobilenet": ("image_batch", 32),
    "encoder": ("token_batch", 16),
    "lstm": ("letter_batch", 32),
    "unet": ("mask_batch", 8),
}
"""By network: what makes its batch, and how large it is."""
FROZEN = {
    "mlp": "0+2",
    "resnet": "0+3+4+5",
    "mobilenet": "0+3+4",
    "encoder": "words+encoder.layers.0",
    "lstm": "words",
    "unet": "down.0",
}
IMAGES = ("resnet", "mobilenet", "unet")


@dataclass(frozen=True)
class Row:
    """A network's step as a change runs it: milliseconds, and bytes."""

    network: str
    change: str
    predicted_ms: float
    measured_ms: float
    low_ms: float
    high_ms: float
    error: float
    time_error: float
    gain: float
    """Samples a second by those of the step as it is, as predicted."""
    measured_gain: float
    predicted_peak: int
    measured_peak: int | None
    peak_error: float | None


def changes(network: str) -> list[str]:
    """What is asked about."""
    size = BATCHES[network][1]
    asked = [
        "amp",
        "fused",
        f"batch={size // 2}",
        f"batch={2 * size}",
        "recompute",
        "micro=2",
        f"freeze={FROZEN[network]}",
    ]
    if network in IMAGES:
        asked.append("channels-last")
    if available_cores() > 1:
        asked += ["threads=1", "workers=2", "workers=2,bucket=1", "stages=2,micro=4"]
    asked.append("fuse=2")
    return [*asked, "amp,fused,recompute"]


def run(network: str, asked: Sequence[str], seconds: float) -> list[Row]:
    """Predicts and measures."""
    batch, size = BATCHES[network]
    spec = StepSpec(
        f"{CODE}:{network}", f"{CODE}:{batch}", batch_size=size, optimiser=Optimiser("adam", 1e-3), folder="."
    )
    found = predict_step(spec, [parse_variant(one) for one in asked], seconds=seconds, measure=True)
    rows, base = [], found.predicted[0]
    for one in found.predicted:
        if one.measured is None or one.error is None or one.measured_base is None:
            continue
        ms, peak = one.measured.median_ms, one.measured_peak_bytes
        rows.append(
            Row(
                network,
                one.variant,
                one.ms,
                ms,
                one.measured.low_ms,
                one.measured.high_ms,
                one.error,
                one.time_error or 0.0,
                one.samples_s / base.samples_s,
                one.batch_size / base.batch_size / (one.measured_ratio or 1.0),
                one.peak_bytes,
                peak,
                None if peak is None else one.peak_bytes / peak - 1.0,
            )
        )
    return rows


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Over changes; fractions."""
    errors = [abs(one.error) for one in rows if one.change != "as it is"]
    peaks = [abs(one.peak_error) for one in rows if one.peak_error is not None]
    return {
        "median_error": median(errors),
        "worst_error": max(errors),
        "median_time_error": median(abs(one.time_error) for one in rows if one.change != "as it is"),
        "median_peak_error": median(peaks),
        "worst_peak_error": max(peaks),
        "changes": len(errors),
    }


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = [
        "| network | change | predicted, ms | measured, ms | error | gain | measured gain | peak, MB | measured peak | error |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in rows:
        cells = [
            one.network,
            one.change,
            f"{one.predicted_ms:.2f}",
            f"{one.measured_ms:.2f} [{one.low_ms:.2f}, {one.high_ms:.2f}]",
            f"{one.error:+.1%}",
            f"{one.gain:.2f}",
            f"{one.measured_gain:.2f}",
            f"{one.predicted_peak / 1e6:,.1f}",
            "–" if one.measured_peak is None else f"{one.measured_peak / 1e6:,.1f}",
            "–" if one.peak_error is None else f"{one.peak_error:+.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.training_prediction", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--network", default=",".join(BATCHES), help=f"of {', '.join(BATCHES)}, separated by commas")
    parser.add_argument(
        "--change", action="append", help="a change, as --what-if takes it; several times; by default those above"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="file for the JSON, written after each network")
    given = parser.parse_args(arguments)
    networks = given.network.split(",")
    if wrong := sorted(set(networks) - set(BATCHES)):
        parser.error(f"no network {wrong[0]}: there are {', '.join(BATCHES)}")
    rows: list[Row] = []
    found: dict[str, object] = {"hardware": str(host())}
    for network in networks:
        rows += run(network, given.change or changes(network), given.seconds)
        found |= {**summary(rows), "results": [asdict(row) for row in rows]}
        keep(found, given.output)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(table(rows))
    print("\n" + ", ".join(f"{name} {value:.3g}" for name, value in summary(rows).items()))


if __name__ == "__main__":
    main()
