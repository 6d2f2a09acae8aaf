"""What became of the graphs that `torch.compile` hands over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphReport:
    """What became of a graph."""

    number: int
    operators: int
    """Calls of functions, methods and modules, as Dynamo recorded them."""
    left: str = ""
    """Why PyTorch's eager runs it; empty where bricolage does."""
    shipped: str = ""
    """What bricolage decided on: an implementation, or a plan; empty before the first call."""
    eager_ms: float | None = None
    bricolage_ms: float | None = None
    """Medians of the race in this process, calls as Dynamo makes them."""
    error: float | None = None
    """Against eager, relative."""
    decide_s: float | None = None
    """What the first call took, without eager's answer."""
    least_ms: float | None = None
    """What learnt costs expect a call to take at least; None where they were not asked."""

    @property
    def gain_ms(self) -> float | None:
        """What bricolage saves of each call, or would have saved: as raced, below zero where eager is faster; where nothing was
        raced, at most. None where eager was not timed."""
        if self.eager_ms is None:
            return None
        if self.bricolage_ms is not None:
            return self.eager_ms - self.bricolage_ms
        return max(0.0, self.eager_ms - (self.least_ms or 0.0))

    def __str__(self) -> str:
        times = "" if self.eager_ms is None else f", eager {self.eager_ms:.3g} ms"
        times += "" if self.bricolage_ms is None else f", bricolage {self.bricolage_ms:.3g} ms"
        became = f"left to PyTorch: {self.left}" if self.left else self.shipped or "not called yet"
        return f"graph {self.number} ({self.operators} operators{times}): {became}{self._gain}"

    @property
    def _gain(self) -> str:
        gain = self.gain_ms
        if gain is None:
            return "; what it would save is not known" if self.left else ""
        if self.bricolage_ms is None:
            return f"; it would save {gain:.2g} ms a call at most" if self.left else ""
        if self.left:
            return f"; it would {'save' if gain > 0 else 'cost'} {abs(gain):.2g} ms a call"
        return f", which saves {gain:.2g} ms a call"
