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

from bricolage.base.codec import DecodeError, Length, Within, decode, encode, parse
from bricolage.costs.models.learned.features import NAMES, features
from bricolage.costs.models.learned.forest import Forest
from bricolage.costs.models.roofline import least_ms
from bricolage.errors import BadCostModel, MissingFile
from bricolage.work.cost import Estimate, Setting, Work
from bricolage.work.implementation import Implementation
from bricolage.work.workload import Workload

FORMAT = 1
_MOST_BYTES = 64 << 20
_LONGEST = 700.0
"""Of a logarithm of milliseconds."""


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
        facts = {name: self.provenance.get(name, "?") for name in ("measurements", "networks", "machines", "made")}
        return "{measurements} measurements of {networks} networks on {machines}, {made}".format(**facts)

    @cached_property
    def digest(self) -> str:
        """Short hash of all that predictions depend on."""
        facts = (encode(self.forest), self.implementations, dict(self.spread))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """What regions take on implementations; None for an implementation that it does not know, whatever its parameters."""
        numbers = {name: number for number, name in enumerate(self.implementations)}
        places: list[tuple[int, Workload, str]] = []
        for place, work in enumerate(works):
            name = "" if work.implementation is None else implementation_name(work.implementation)
            if work.workload is not None and name in numbers:
                places.append((place, work.workload, name))
        estimates: list[Estimate | None] = [None] * len(works)
        if not places:
            return estimates
        # One region is asked about on several implementations.
        distinct = {id(workload): workload for _, workload, _ in places}
        seen = {identity: features(workload, on)[None] for identity, workload in distinct.items()}
        floors = {identity: least_ms(workload, on) for identity, workload in distinct.items()}
        rows = [encode_features(seen[id(workload)], numbers[name], len(numbers)) for _, workload, name in places]
        logs = np.clip(self.forest(np.concatenate(rows)), -_LONGEST, _LONGEST)
        for (place, workload, name), log in zip(places, logs, strict=True):
            ms, spread = floors[id(workload)] * math.exp(log), self.spread[name]
            estimates[place] = Estimate(ms, ms / spread, ms * spread, "learned")
        return estimates


def implementation_name(one: Implementation) -> str:
    """What a model calls an implementation: parameters of kernels are left out."""
    return f"{one.backend} {one.config.name}"


def encode_features(seen: npt.NDArray[np.float64], implementation: int, count: int) -> npt.NDArray[np.float64]:
    """Rows of features, [rows, features + count]: `seen` of regions on devices, then of which of `count` implementations it is."""
    chosen = np.zeros((len(seen), count))
    chosen[:, implementation] = 1.0
    return np.concatenate([seen, chosen], axis=1)


def load_costs(path: Path) -> LearnedCosts:
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
