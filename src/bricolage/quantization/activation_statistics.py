"""What calibration keeps of activations: their ends, some of their values, and means and ends of their channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from bricolage.verify.reference import Evaluator

_KEPT = 1 << 15
"""Values of a sample that are kept, drawn at random from a larger one; its ends are kept too."""


@dataclass
class ActivationStatistics:
    """Of one activation over all samples."""

    axis: int
    """Of its channels."""
    uncounted: np.ndarray | None = None
    """Channels that the values and their ends leave out."""
    parts: list[np.ndarray] = field(default_factory=list)
    low: float = np.inf
    high: float = -np.inf
    largest: np.ndarray | None = None
    """Magnitude in each channel."""
    finite: bool = True

    def add(self, array: np.ndarray, rng: np.random.Generator) -> None:
        """One sample's values."""
        if not array.size:
            return
        if not np.isfinite(array).all():
            self.finite = False
            return
        counted = array if self.uncounted is None else np.delete(array, self.uncounted, axis=self.axis)
        flat = counted.reshape(-1)
        ends = np.array([flat.min(), flat.max()], np.float32)
        drawn = flat if flat.size <= _KEPT else flat[rng.integers(0, flat.size, _KEPT)]
        self.parts += [drawn.astype(np.float32), ends]
        self.low, self.high = min(self.low, float(ends[0])), max(self.high, float(ends[1]))
        if not array.ndim:
            return
        rows = np.moveaxis(array, self.axis if -array.ndim <= self.axis < array.ndim else -1, -1)
        rows = rows.reshape(-1, rows.shape[-1])
        largest = np.abs(rows).max(axis=0)
        previous = self.largest
        self.largest = largest if previous is None or previous.shape != largest.shape else np.maximum(previous, largest)

    @property
    def values(self) -> np.ndarray:
        """Those that were kept."""
        return np.concatenate(self.parts)


def collect_statistics(
    model: ir.Model,
    samples: Iterable[Mapping[str, np.ndarray]],
    channels: Mapping[str, int],
    seed: int,
    uncounted: Mapping[str, np.ndarray] | None = None,
) -> dict[str, ActivationStatistics]:
    """Statistics by name of a value.

    Args:
        channels: the axis of the channels of each value that is looked at.
        samples: inputs by name.
        uncounted: channels, by name of a value, that its range does not count.

    Raises:
        NoReference: the model cannot be evaluated.
    """
    value_statistics = {
        name: ActivationStatistics(axis, (uncounted or {}).get(name)) for name, axis in channels.items()
    }
    inputs = {value.name or "" for value in model.graph.inputs}
    inner = [name for name in channels if name not in inputs]
    evaluate = Evaluator(model, dtype=np.float32, keep=inner)
    rng = np.random.default_rng(seed)
    for sample in samples:
        values = evaluate(sample)
        for name, statistics in value_statistics.items():
            array = sample[name] if name in inputs else values[name]
            statistics.add(np.asarray(array), rng)
    return value_statistics
