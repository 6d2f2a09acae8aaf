"""Which tasks lie before and after which, as bit-sets."""

from __future__ import annotations

from functools import cached_property

from bricolage.work.region_algebra import Neighbours


class TransitiveClosure:
    """The transitive closure of a graph, given by the predecessors of its tasks, which have lower numbers."""

    def __init__(self, predecessors: Neighbours) -> None:
        self._predecessors = predecessors

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each task all that it depends on, directly or not."""
        ancestors: list[int] = []
        for sources in self._predecessors:
            bits = 0
            for source in sources:
                bits |= ancestors[source] | (1 << source)
            ancestors.append(bits)
        return tuple(ancestors)

    @cached_property
    def after(self) -> tuple[int, ...]:
        """For each task all that depend on it, directly or not."""
        descendants = [0] * len(self._predecessors)
        for task in reversed(range(len(descendants))):
            for source in self._predecessors[task]:
                descendants[source] |= descendants[task] | (1 << task)
        return tuple(descendants)

    def parallel(self, task: int) -> int:
        """All that is neither before nor after a task."""
        everything = (1 << len(self._predecessors)) - 1
        return everything & ~(self.before[task] | self.after[task] | (1 << task))
