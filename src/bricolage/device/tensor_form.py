"""What is known of a tensor without its values: name, type and shape. Programs and kernels need no more of a tensor than this, so
what runs them imports no graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeAlias

import numpy as np

from bricolage.base.codec import Matching, Within
from bricolage.base.late_imports import require_dependency

Dimension = int | str
Shape = tuple[Dimension, ...] | None
"""None when even the rank is unknown."""
NamedShape = tuple[str, Shape]
TypeName: TypeAlias = Annotated[str, Matching(r"[a-z][a-z0-9_]{0,31}", "name of a type")]


class TensorForm(Protocol):
    """A tensor as programs see it; `bricolage.graph.graph.TensorInfo` where a graph was read, `SizedTensor` where none was."""

    @property
    def name(self) -> str:
        """Of the tensor in its program."""
        ...

    @property
    def static(self) -> bool:
        """Whether a buffer can be allocated before running."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a static tensor."""
        ...

    @property
    def elements(self) -> int:
        """Number of elements of a static tensor."""
        ...

    @property
    def bytes(self) -> int:
        """Size of a static tensor; 0 when unknown."""
        ...

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type of the elements."""
        ...


@dataclass(frozen=True)
class SizedTensor:
    """A static tensor of numbers."""

    name: str
    dtype: TypeName
    """As numpy, or ml_dtypes, names it."""
    sizes: tuple[Annotated[int, Within(0, 2**40)], ...]

    @staticmethod
    def of(form: TensorForm) -> SizedTensor:
        """The same as a static tensor's form."""
        return SizedTensor(form.name, form.numpy.name, form.sizes)

    @property
    def static(self) -> bool:
        """It is."""
        return True

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Of its buffer."""
        return self.elements * self.numpy.itemsize

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type of the elements.

        Raises:
            MissingDependency: the type is not numpy's own, and ml_dtypes is not installed.
        """
        try:
            return np.dtype(self.dtype)
        except TypeError:
            with require_dependency(f"for tensors of {self.dtype}"):
                import ml_dtypes
            extended: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, self.dtype))
            return extended
