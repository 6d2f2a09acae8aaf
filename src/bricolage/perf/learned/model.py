"""Costs as a learnt model predicts them, with intervals; a file of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from bricolage.codec import DecodeError, Length, Within, decode, parse
from bricolage.errors import BadCostModel, MissingFile
from bricolage.perf.learned.features import NAMES, Setting, features
from bricolage.perf.learned.forest import Forest
from bricolage.work.workload import Workload

FORMAT = 1
_MOST_BYTES = 64 << 20
_LONGEST = 700.0
"""Of a logarithm of milliseconds."""


@dataclass(frozen=True)
class Prediction:
    """A time in ms, and the interval that holds nine in ten of them."""

    ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class LearnedCosts:
    """A model of costs. What it predicts is the logarithm of how many times longer than its roofline a region takes."""

    names: tuple[str, ...]
    """Features that it was trained with."""
    implementations: Annotated[tuple[str, ...], Length(1, 1000)]
    """Backend and configuration of each that it knows; features of their own, behind the others."""
    forest: Forest
    spread: Mapping[str, Annotated[float, Within(1.0, 1e6)]]
    """By implementation: the factor between a prediction and either end of its interval."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """What it was trained from, for people."""
    format: Annotated[int, Within(FORMAT, FORMAT)] = FORMAT

    def __post_init__(self) -> None:
        if self.names != NAMES:
            raise ValueError("it knows other features than this version of bricolage does")
        if self.forest.width > len(self.names) + len(self.implementations):
            raise ValueError("it asks for features that there are not")
        if set(self.spread) != set(self.implementations):
            raise ValueError("intervals and implementations differ")

    def predict(
        self, workloads: Sequence[Workload], setting: Setting, implementations: Sequence[str]
    ) -> list[list[Prediction | None]]:
        """What each region takes on each implementation, by name ("openvino f32"); None for those that it does not know."""
        known = {name: number for number, name in enumerate(self.implementations)}
        asked = [name for name in dict.fromkeys(implementations) if name in known]
        if not workloads or not asked:
            return [[None] * len(implementations) for _ in workloads]
        rows = [encoded(one, setting, known[name], len(known)) for one in workloads for name in asked]
        found = np.clip(self.forest(np.array(rows)), -_LONGEST, _LONGEST).reshape(len(workloads), len(asked))
        predictions: list[list[Prediction | None]] = []
        for workload, logs in zip(workloads, found, strict=True):
            floor = setting.roofline_ms(workload)
            ms = {name: floor * math.exp(log) for name, log in zip(asked, logs, strict=True)}
            predictions.append([_prediction(ms.get(name), self.spread.get(name, 1.0)) for name in implementations])
        return predictions


def encoded(workload: Workload, setting: Setting, implementation: int, count: int) -> np.ndarray:
    """A row of features: of region and device, then of which of `count` implementations it is."""
    chosen = np.zeros(count)
    chosen[implementation] = 1.0
    return np.concatenate([features(workload, setting), chosen])


def load(path: Path) -> LearnedCosts:
    """Reads a model. It may come from anybody: it is numbers, and looked at before it is used.

    Raises:
        MissingFile: there is no such file.
        BadCostModel: it is no model, or one of another version.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadCostModel(path=path, reason="it is larger than any model")
        return decode(LearnedCosts, parse(path.read_bytes()), "model")
    except FileNotFoundError as error:
        raise MissingFile(path=path) from error
    except (OSError, DecodeError) as error:
        raise BadCostModel(path=path, reason=error) from error


def _prediction(ms: float | None, spread: float) -> Prediction | None:
    return None if ms is None else Prediction(ms, ms / spread, ms * spread)
