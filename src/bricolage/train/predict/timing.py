"""Times the operators of a step that runs, each in its place."""

from __future__ import annotations

import time

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


class Timing(TorchDispatchMode):
    """A dispatch mode that takes the time of each operator, in nanoseconds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.times: list[int] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        begun = time.perf_counter_ns()
        out = func(*args, **kwargs)
        if func.namespace != "prim":
            self.times.append(time.perf_counter_ns() - begun)
        return out
