"""How batch sizes grow during a job in Shockwave's traces: Accordion's rule and measured gradient noise scales.

Both tables are facts of `uw-mad-dash/shockwave` @8a44f4a (`scheduler/utils.py`, `scheduler/scheduler.py`, MIT). Epochs count from
0. Accordion trains at the first batch size in critical regimes, else at the largest that fits. Gradient noise doubles the batch
size at given epochs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from bricolage.cluster.history.rates import RateTable
from bricolage.cluster.jobs import WorkPhase

SAMPLES = {
    "ResNet-18": 50000,
    "ResNet-50": 100000,
    "Transformer": 10000,
    "LM": 59675,
    "Recommendation": 117907,
    "CycleGAN": 6287,
}
"""Of the data set: an epoch has as many steps as batches cover it."""
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
_TYPE = re.compile(r"(.*) \(batch size (\d+)\)")
_NOISE: Mapping[tuple[str, int], Mapping[int, Sequence[int]]] = {
    ("ResNet-18", 1): {16: (31, 41, 51, 71), 32: (21, 31, 51), 64: (11, 31), 128: (11,)},
    ("ResNet-18", 2): {16: (21, 31, 91, 111), 32: (11, 21, 41), 64: (21, 41), 128: (41,)},
    ("ResNet-18", 4): {16: (11, 21, 81, 91), 32: (21, 31, 61), 64: (11, 61), 128: (11,)},
    ("ResNet-50", 1): {64: (101,)},
    ("ResNet-50", 2): {32: (101, 111), 64: (81,)},
    ("ResNet-50", 4): {32: (131, 221), 64: (191,)},
    ("LM", 1): {5: (31, 41, 61, 71), 10: (11, 21, 41), 20: (11, 41), 40: (11,)},
    ("LM", 2): {5: (31, 51, 61, 71), 10: (11, 31, 41), 20: (31, 41), 40: (11,)},
    ("LM", 4): {5: (11, 31, 71, 91), 10: (11, 31, 61), 20: (11, 61), 40: (61,)},
    ("Recommendation", 1): {512: (21, 41, 71, 91), 1024: (21, 51, 91), 2048: (21, 41), 4096: (41,)},
}
"""Epochs at which the batch size doubles: by model and devices, then by the first batch size."""


def batch_size(mode: str, model: str, first: int, devices: int, epoch: int) -> int:
    """At an epoch."""
    if mode == "gns":
        return first << sum(epoch >= at for at in _NOISE.get((model, devices), {}).get(first, ()))
    largest = LARGEST.get(model, first)
    return first if largest == first or _critical(model, first, epoch) else largest


def _critical(model: str, first: int, epoch: int) -> bool:
    """Whether Accordion keeps the first batch size."""
    if model == "LM":
        return epoch < 10
    if model == "Recommendation":
        return epoch < {512: 30, 1024: 30, 2048: 40}.get(first, 10)
    if model == "ResNet-50":
        return epoch % 30 < 10
    return epoch < (20 if first == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260


def grown_phases(
    mode: str, kind: str, devices: int, steps: float, rates: RateTable, kinds: Iterable[str]
) -> tuple[WorkPhase, ...]:
    """Phases of a job in epochs; empty where its batch size never changes. A batch size without rates is not taken.

    Args:
        mode: "accordion" or "gns".
        kind: "MODEL (batch size N)".
        devices: of the gang.
        steps: at the first batch size.
        rates: for every batch size.
        kinds: of devices of the cluster.
    """
    match = _TYPE.fullmatch(kind)
    if match is None or match[1] not in SAMPLES:
        return ()
    model, first = match[1], int(match[2])
    samples = SAMPLES[model]
    epochs = steps / math.ceil(samples / first)

    def speeds(size: int) -> dict[str, float]:
        kind_rates = rates.of(f"{model} (batch size {size})", devices)
        return {device: kind_rates[device] / math.ceil(samples / size) for device in kinds if device in kind_rates}

    sizes = [batch_size(mode, model, first, devices, epoch) for epoch in range(math.ceil(epochs))]
    runs = [(size if speeds(size) else first, len(list(same))) for size, same in groupby(sizes)]
    if all(size == first for size, _ in runs):
        return ()
    return tuple(
        WorkPhase(float(count), speeds(size), float(math.ceil(samples / size))) for size, count in runs
    )  # whole epochs: that is when sizes change
