"""`Kernel`: a region that one backend has compiled and that can be bound to buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray
Call = Callable[[], None]


class Kernel(ABC):
    """A compiled region. Inputs and outputs are in the order of the region's model.

    A kernel owns its backend's resources; dropping the last reference frees them. It need not be thread-safe: the
    executable that holds it runs one call at a time.
    """

    @abstractmethod
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A call without arguments that reads `inputs` and writes `outputs` in place each time it is made.

        The arrays are C-contiguous, aligned to 64 bytes, of the exact types and shapes of the region, and stay alive and
        in place as long as the call does. Everything that can be decided is decided here; calling it only runs.
        """

    @abstractmethod
    def run(self, inputs: Sequence[object]) -> list[object]:
        """One run on arrays of any shape that the region accepts, into fresh outputs. For models whose shapes are known
        only at run time, and for types that have no buffers (strings, sequences)."""
