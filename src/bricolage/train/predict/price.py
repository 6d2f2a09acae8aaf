"""The time of a step from its graph: operators by what they were seen to take, others by what they take alone.

An operator of the step that was profiled costs what it cost there. One that is new, since its shapes or types are others, is
measured alone on made-up tensors, where its operands are in caches that they are not in within a step; so it is given what its
counterpart in the profiled step took there beyond its time alone, by the bytes that both move. Between operators there is the
time of Python and of autograd: what the phases took beyond their operators, for each operator alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from bricolage.frontends.torch_training import Phase, StepGraph
from bricolage.train.predict.operators import Alone, Profile

_CORRECTION = (0.4, 2.5)
"""Times its time alone beyond which an operator's time is a disturbance."""
_CACHED = 1 << 16
"""Bytes of operators that are in some cache anyway: what they take more in a step does not grow with bytes."""
_DISPATCH_MS = 0.05
"""That an operator may take more than alone, however short it is: PyTorch's dispatch."""
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


@dataclass(frozen=True)
class PriceList:
    """What the profiled step tells about others."""

    graph: StepGraph
    profile: Profile
    alone: Alone
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

    def price(self, graph: StepGraph) -> Priced:
        """The operators of another step."""
        self.alone.measure(graph.calls, graph.signatures)
        seen: dict[tuple[str, Phase], list[float]] = {}
        for ms, signature, phase in zip(self.profile.operators, self.graph.signatures, self.graph.phases, strict=True):
            seen.setdefault((signature, phase), []).append(ms)
        extras, work = self._extras(), self._work()
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
                found = next((extras[key] for key in keys if key in extras), None) or self._alike(operator.bytes)
                more = median(extra * _growth(size, operator.bytes) for extra, size in found)
                low, high = (known * factor for factor in _CORRECTION)
                ms, single = min(max(known + more, low), max(high, known + _DISPATCH_MS)), single + 1
            else:
                base = next((work[key] for key in keys if key in work), None)
                ms = 0.0 if base is None else base[0] * max(operator.flops, 1.0) / max(base[1], 1.0)
            prices.append(max(0.0, ms + overhead[phase]))
        return Priced(tuple(prices), measured, single)

    def _extras(self) -> dict[tuple[str, str, Phase | None], list[tuple[float, int]]]:
        """Time in its place beyond time alone, and bytes: by operator type, layer and phase, by less, and by type alone."""
        found: dict[tuple[str, str, Phase | None], list[tuple[float, int]]] = {}
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
                    found.setdefault(key, []).append((ms - known, operator.bytes))
        return found

    def _alike(self, size: int) -> list[tuple[float, int]]:
        """The same of operators that move about as many bytes: caches help them alike."""
        sizes: list[tuple[float, float, int]] = []
        for ms, operator, signature in zip(
            self.profile.operators, self.graph.work.operators, self.graph.signatures, strict=True
        ):
            known = self.alone.known[signature]
            if known is not None:
                off = abs(math.log2(max(size, 1) / max(operator.bytes, 1)))
                sizes.append((off, ms - known, operator.bytes))
        return [(extra, own) for _, extra, own in sorted(sizes)[:_ALIKE]] or [(0.0, size)]

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


def _growth(size: int, other: int) -> float:
    """How much more caches miss for so many other bytes."""
    return other / size if size > _CACHED else 1.0
