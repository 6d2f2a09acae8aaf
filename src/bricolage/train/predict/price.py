"""The time of a step from its graph: operators by what they were seen to take, others by what they take alone.

An operator of the step that was profiled costs what it cost there. One that is new, since its shapes or types are others, is
measured alone on made-up tensors, with warm caches and with cold ones; within a step it lies between the two, as far as its
counterpart in the profiled step did there. Between operators there is the time of Python and of autograd: what the phases took
beyond their operators, for each operator alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from bricolage.frontends.traced_step import TracedStep
from bricolage.train.predict.operators import AloneTime, OperatorProfile, OperatorTimings
from bricolage.work.step import Phase

_OFF = (0.6, 1.8)
"""Times what caches explain beyond which an operator's time is a disturbance."""
_LEAST_MS = 0.002
"""Between warm and cold, below which an operator says nothing of caches."""
_ALIKE = 9


@dataclass(frozen=True)
class Priced:
    """Milliseconds of each operator, with what lies between it and the next one."""

    operators: tuple[float, ...]
    measured: int
    """Operators whose time is from the profiled step."""
    alone: int
    """Operators that were measured alone; the rest is scaled by work."""

    @property
    def ms(self) -> float:
        """Of the whole step, on one worker."""
        return sum(self.operators)


@dataclass(frozen=True, order=True)
class _Place:
    """An operator's time in its place in the step, and alone."""

    share: float
    """Of what caches hold for it when it is alone, as much is lost: from 0 to 1."""
    off: float
    """What it takes by what that explains."""

    @staticmethod
    def of(ms: float, alone: AloneTime) -> _Place:
        span = alone.cold - alone.warm
        share = min(max((ms - alone.warm) / span, 0.0), 1.0) if span > _LEAST_MS else 0.5
        low, high = _OFF
        return _Place(share, min(max(ms / max(alone.at(share), 1e-6), low), high))


@dataclass(frozen=True)
class PriceList:
    """What the profiled step tells about others."""

    graph: TracedStep
    profile: OperatorProfile
    alone: OperatorTimings
    """At the threads of the profile."""

    def __post_init__(self) -> None:
        self.alone.measure(self.graph.calls, self.graph.signatures)

    def overhead(self) -> Mapping[Phase, float]:
        """Milliseconds between operators, by phase; below zero where watching made operators longer."""
        found: dict[Phase, float] = {}
        for phase, whole in self.profile.phases.items():
            inside = [ms for ms, one in zip(self.profile.operators, self.graph.phases, strict=True) if one == phase]
            found[phase] = (whole - sum(inside)) / max(1, len(inside))
        found.setdefault("recompute", found.get("forward", 0.0))
        return found

    def price(self, graph: TracedStep) -> Priced:
        """The operators of another step."""
        self.alone.measure(graph.calls, graph.signatures)
        seen: dict[tuple[str, Phase], list[float]] = {}
        for ms, signature, phase in zip(self.profile.operators, self.graph.signatures, self.graph.phases, strict=True):
            seen.setdefault((signature, phase), []).append(ms)
        places, work = self._places(), self._work()
        overhead = self.overhead()
        prices, measured, single = [], 0, 0
        for operator, signature, phase, layer in zip(
            graph.work.operators, graph.signatures, graph.phases, graph.layers, strict=True
        ):
            like: Phase = "forward" if phase == "recompute" else phase
            keys = [(operator.op_type, layer, like), (operator.op_type, "", like), (operator.op_type, "", None)]
            known = self.alone.known[signature]
            if (signature, like) in seen:
                ms, measured = median(seen[signature, like]), measured + 1
            elif known is not None:
                found = next((places[key] for key in keys if key in places), None) or self._alike(operator.bytes)
                share = median(one.share for one in found)
                ms, single = known.at(share) * median(one.off for one in found), single + 1
            else:
                base = next((work[key] for key in keys if key in work), None)
                ms = 0.0 if base is None else base[0] * max(operator.flops, 1.0) / max(base[1], 1.0)
            prices.append(max(0.0, ms + overhead[phase]))
        return Priced(tuple(prices), measured, single)

    def _places(self) -> dict[tuple[str, str, Phase | None], list[_Place]]:
        """What operators took in their places: by operator type, layer and phase, by less, and by type alone."""
        found: dict[tuple[str, str, Phase | None], list[_Place]] = {}
        for ms, operator, signature, phase, layer in zip(
            self.profile.operators,
            self.graph.work.operators,
            self.graph.signatures,
            self.graph.phases,
            self.graph.layers,
            strict=True,
        ):
            known = self.alone.known[signature]
            if known is not None:
                kind = operator.op_type
                for key in ((kind, layer, phase), (kind, "", phase), (kind, "", None)):
                    found.setdefault(key, []).append(_Place.of(ms, known))
        return found

    def _alike(self, size: int) -> list[_Place]:
        """The same of operators that move about as many bytes: caches help them alike."""
        sizes: list[tuple[float, int, _Place]] = []
        for number, (ms, operator, signature) in enumerate(
            zip(self.profile.operators, self.graph.work.operators, self.graph.signatures, strict=True)
        ):
            known = self.alone.known[signature]
            if known is not None:
                off = abs(math.log2(max(size, 1) / max(operator.bytes, 1)))
                sizes.append((off, number, _Place.of(ms, known)))
        return [place for _, _, place in sorted(sizes)[:_ALIKE]] or [_Place(0.5, 1.0)]

    def _work(self) -> dict[tuple[str, str, Phase | None], tuple[float, float]]:
        """Milliseconds and FLOPs of operators, by the same keys."""
        found: dict[tuple[str, str, Phase | None], tuple[float, float]] = {}
        for ms, operator, phase, layer in zip(
            self.profile.operators, self.graph.work.operators, self.graph.phases, self.graph.layers, strict=True
        ):
            kind = operator.op_type
            for key in ((kind, layer, phase), (kind, "", phase), (kind, "", None)):
                found.setdefault(key, (ms, operator.flops))
        return found
