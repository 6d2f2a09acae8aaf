"""`Kernel`: a region that one backend has compiled and that can be bound to buffers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bricolage.device.buffers import allocate_aligned
from bricolage.device.tensor_form import TensorForm
from bricolage.errors import Refused

if TYPE_CHECKING:
    from bricolage.graph.region_model import Resources

Array = np.ndarray
Call = Callable[[], None]
Answer = Callable[[], list[object]]
"""A call that returns fresh outputs."""


class Kernel(ABC):
    """A compiled region. Inputs and outputs are in the order of the region's model.

    A kernel owns its backend's resources; dropping the last reference frees them. It need not be thread-safe: the
    executable that holds it runs one call at a time, unless it `takes_turns`.
    """

    takes_turns: bool = False
    """Whether calls that are bound to arrays of their own may be made from several threads at a time, and run one after
    another all the same: then callers need not be kept apart, and the next one's work begins before its caller wakes up."""

    direct_bytes: float = math.inf
    """From this size on, of inputs and outputs together, `run` takes less time than copies into bound arrays and out of them: it
    reads C-contiguous arrays where they lie."""

    kept: str = ""
    """Name of the folder of `Resources.cache` with its code, which `Backend.reopen` opens without the region's model; empty
    where there is none."""

    def replica(self, resources: Resources) -> Kernel | None:
        """A kernel of the same code and weights for as many threads, to be run on other cores at the same time as this one;
        None where the region has to be compiled again for that."""
        del resources
        return None

    @abstractmethod
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A call without arguments that reads `inputs` and writes `outputs` in place each time it is made.

        The arrays are C-contiguous, aligned to 64 bytes, of the exact types and shapes of the region, and stay alive and
        in place as long as the call does. Everything that can be decided is decided here; calling it only runs. A call
        returns when it is done: its outputs are written and its threads are at rest, also where the backend enqueues work.
        """

    def bind_inputs(self, inputs: Sequence[Array]) -> Answer | None:
        """As `bind`, of a call that returns its outputs as `run` does. None where to write into bound arrays and to copy them takes
        no more time than the tool's own fresh results."""
        del inputs
        return None

    def own_call(self, inputs: Sequence[object]) -> Callable[[], object]:
        """The call that a user of the tool makes on these inputs, with nothing of ours in it. A file as it comes is timed by it."""
        return partial(self.run, inputs)

    @abstractmethod
    def run(self, inputs: Sequence[object]) -> list[object]:
        """One run on arrays of any shape that the region accepts, into fresh outputs: the caller may write to them and keep
        them, and no later run does. For models whose shapes are known only at run time, for types that have no buffers (strings,
        sequences), and for large tensors (`direct_bytes`). What does not follow from the values is decided before."""


class StaticKernel(Kernel):
    """A kernel for one set of shapes: a run binds buffers of its own."""

    def __init__(self, title: str, inputs: Sequence[TensorForm], outputs: Sequence[TensorForm]) -> None:
        """`title` is the backend's, for messages."""
        self.title = title
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._forms = [(info.sizes, info.numpy) for info in self.inputs]

    def run(self, inputs: Sequence[object]) -> list[object]:
        """See `Kernel.run`.

        Raises:
            Refused: a shape or a type is not the one compiled for.
        """
        given = []
        for info, array in zip(self.inputs, self.checked(inputs), strict=True):
            given.append(allocate_aligned(info.sizes, info.numpy))
            given[-1][...] = array
        results = [allocate_aligned(info.sizes, info.numpy) for info in self.outputs]
        self.bind(given, results)()
        return list(results)

    def checked(self, inputs: Sequence[object]) -> list[Array]:
        """Inputs as arrays.

        Raises:
            Refused: a shape or a type is not the one compiled for.
        """
        arrays = [np.asarray(value) for value in inputs]
        for info, (sizes, dtype), array in zip(self.inputs, self._forms, arrays, strict=True):
            if array.shape != sizes:
                raise Refused(backend=self.title, reason=f"compiled for the shape {sizes}, got {array.shape}")
            if array.dtype != dtype:
                raise Refused(backend=self.title, reason=f"'{info.name}' is {dtype}, got {array.dtype}")
        return arrays
