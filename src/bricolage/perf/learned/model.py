"""Costs as a learnt model predicts them, with intervals; a file of JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from bricolage.codec import DecodeError, Length, Within, decode, encode, parse
from bricolage.errors import BadCostModel, MissingFile
from bricolage.perf.learned.features import NAMES, Setting, features
from bricolage.perf.learned.forest import Forest
from bricolage.work.workload import Workload

FORMAT = 1
_MOST_BYTES = 64 << 20
_LONGEST = 700.0
"""Of a logarithm of milliseconds."""
_PRIOR = 3.0
"""Times the roofline that a region typically takes ..."""
_UNSURE = 10.0
"""... give or take this factor."""


@dataclass(frozen=True)
class LearnedPrediction:
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

    @property
    def title(self) -> str:
        """What it was learnt from, in a few words."""
        told = {name: self.provenance.get(name, "?") for name in ("measurements", "networks", "machines", "made")}
        return "{measurements} measurements of {networks} networks on {machines}, {made}".format(**told)

    @cached_property
    def digest(self) -> str:
        """Short hash of all that predictions depend on."""
        facts = (encode(self.forest), self.implementations, dict(self.spread))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def predict(
        self, workloads: Sequence[Workload], setting: Setting, implementations: Sequence[str]
    ) -> list[list[LearnedPrediction | None]]:
        """What each region takes on each implementation, by name ("openvino f32"); None for those that it does not know."""
        known = {name: number for number, name in enumerate(self.implementations)}
        asked = [name for name in dict.fromkeys(implementations) if name in known]
        if not workloads or not asked:
            return [[None] * len(implementations) for _ in workloads]
        seen = np.array([features(one, setting) for one in workloads])
        rows = np.concatenate([encoded(seen, known[name], len(known)) for name in asked])
        found = np.clip(self.forest(rows), -_LONGEST, _LONGEST).reshape(len(asked), len(workloads)).T
        predictions: list[list[LearnedPrediction | None]] = []
        for workload, logs in zip(workloads, found, strict=True):
            floor = setting.roofline_ms(workload)
            ms = {name: floor * math.exp(log) for name, log in zip(asked, logs, strict=True)}
            predictions.append([_prediction(ms.get(name), self.spread.get(name, 1.0)) for name in implementations])
        return predictions


def encoded(seen: npt.NDArray[np.float64], implementation: int, count: int) -> npt.NDArray[np.float64]:
    """Rows of features, [rows, features + count]: `seen` of regions on devices, then of which of `count` implementations it is."""
    chosen = np.zeros((len(seen), count))
    chosen[:, implementation] = 1.0
    return np.concatenate([seen, chosen], axis=1)


def by_roofline(workload: Workload, setting: Setting) -> LearnedPrediction:
    """What stands for a cost where no model knows the implementation: a few times the roofline, and hardly sure."""
    ms = _PRIOR * setting.roofline_ms(workload)
    return LearnedPrediction(ms, ms / _UNSURE, ms * _UNSURE)


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


def _prediction(ms: float | None, spread: float) -> LearnedPrediction | None:
    return None if ms is None else LearnedPrediction(ms, ms / spread, ms * spread)
