"""Samples that are held back: what may ship answers them as well, and is judged on all of them together by the accuracy asked
for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bricolage.graph.graph import Graph
from bricolage.graph.store import Store
from bricolage.graph.work import flops
from bricolage.verify.accuracy_measures import AccuracyDemand, Reached
from bricolage.verify.named_arrays import digest, save_expected, save_tensors
from bricolage.verify.reference import Evaluate
from bricolage.verify.variations import Allowance, Variation

Sample = Mapping[str, np.ndarray]
_MOST = 256
_WORK = 6e10
"""Floating-point operations that the references of all samples take at most, as many as some seconds compute ..."""
_LEAST = 4
"""... but this number of samples in any case."""


@dataclass(frozen=True)
class HeldBackData:
    """Samples that nothing was calibrated on, and the accuracy that is asked for on them."""

    demand: AccuracyDemand
    samples: tuple[Sample, ...]
    """Inputs by name, and what else the user's function reads."""
    origin: str
    """Where they come from, for people."""

    @property
    def digest(self) -> str:
        """Of samples and demand."""
        return digest(
            self.demand.digest,
            {f"{n} {name}": a for n, sample in enumerate(self.samples) for name, a in sample.items()},
        )[:24]


@dataclass(frozen=True)
class GivenSamples:
    """Data of one graph: what scales are found with, and what accuracy is judged on."""

    calibration: tuple[Sample, ...]
    """Inputs by name, and what else the user's function reads: a part of them says what stays float for it."""
    held_back: HeldBackData

    @property
    def digest(self) -> str:
        """Of all of it."""
        numbered = {f"{n} {name}": a for n, sample in enumerate(self.calibration) for name, a in sample.items()}
        return digest(self.held_back.digest, numbered)[:24]


@dataclass(frozen=True)
class HeldBackSample(Variation):
    """One of them, as files."""

    group: HeldBack | None = None


@dataclass(eq=False)
class HeldBack:
    """Samples with their references, and what every program reached that answered them."""

    data: HeldBackData
    bound: float
    """Relative error that is accepted in any case."""
    names: tuple[str, ...]
    """Of the model's outputs."""
    reference: tuple[Mapping[str, np.ndarray], ...]
    files: tuple[HeldBackSample, ...] = ()
    reached: dict[object, Reached] = field(default_factory=dict)
    """By what was judged."""

    def judged(self, outputs: Sequence[Mapping[str, np.ndarray]]) -> Reached:
        """Measures answers, one for each sample.

        Raises:
            MetricFails, UnusableSamples
        """
        return self.data.demand.judged(outputs, self.reference, self.data.samples)

    def at(self, bound: float) -> HeldBack:
        """The same samples, where errors up to `bound` are accepted."""
        group = HeldBack(replace(self.data, demand=self.data.demand.within(bound)), bound, self.names, self.reference)
        group.files = tuple(replace(file, group=group) for file in self.files)
        return group

    def excess(self, reached: Reached) -> float:
        """See `AccuracyDemand.excess`."""
        return self.data.demand.excess(reached, self.bound)


def most_samples(graph: Graph) -> int:
    """As many as are evaluated of a model of that size."""
    return min(_MOST, max(_LEAST, int(_WORK / max(1.0, float(sum(map(flops, graph.operators)))))))


def spread_evenly(samples: Sequence[Sample], most: int) -> tuple[Sample, ...]:
    """At most that many, spread evenly over all."""
    if len(samples) <= most:
        return tuple(samples)
    return tuple(samples[number * len(samples) // most] for number in range(most))


def held_back(graph: Graph, data: HeldBackData, bound: float, store: Store, evaluate: Evaluate) -> HeldBack:
    """The references of samples, as files in the folder of `store`. The user's function is called once here, with answers that are
    right: what is wrong with it is told before anything is measured.

    Raises:
        NoReference, InvalidGraph, ReferenceLimit: a sample cannot be evaluated.
        MetricFails, UnusableSamples: the accuracy asked for cannot be measured.
    """
    inputs = {value.name or "" for value in graph.model.graph.inputs}
    names = tuple(info.name for info in graph.outputs)
    references: list[Mapping[str, np.ndarray]] = []
    for sample in data.samples:
        answer = evaluate(graph.model, {name: sample[name] for name in sample if name in inputs}, dtype=np.float64)
        references.append({name: np.asarray(answer[name]) for name in names})
    group = HeldBack(replace(data, demand=data.demand.within(bound)), bound, names, tuple(references))
    group.judged(group.reference)
    for number, (sample, wanted) in enumerate(zip(data.samples, references, strict=True)):
        given, expected = (store.directory / f"held-{number}-{what}.npz" for what in ("inputs", "expected"))
        save_tensors(given, {name: sample[name] for name in sample if name in inputs})
        save_expected(expected, wanted, dict.fromkeys(names, 0.0))
        group.files += (HeldBackSample(f"held-{number}", given, expected, _asked_together, group=group),)
    return group


def _asked_together() -> Mapping[str, Allowance]:
    raise AssertionError("held-back samples are judged together")
