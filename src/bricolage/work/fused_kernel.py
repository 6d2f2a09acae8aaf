"""One of the kernels that a backend makes of a region: what it computes, reads, writes and takes; and what all of them move."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FusedKernel:
    """One of the kernels that a backend makes of a region."""

    name: str
    """The source has it as a comment where the kernel is called."""
    kind: str
    operators: tuple[str, ...]
    """Names of the operators that it computes, or computes parts of."""
    shape: tuple[int, ...]
    """Of what it stores."""
    flops: int
    bytes: int
    """Read and written, with weights as the model holds them, whatever precision they are packed in."""
    ms: float | None = None
    """Measured on this machine."""


@dataclass(frozen=True)
class KernelTraffic:
    """Bytes of a kernel, each tensor once."""

    name: str
    kind: str
    operators: tuple[str, ...]
    weights: int
    """Constants that it reads."""
    inputs: int
    """Stored tensors that it reads."""
    outputs: int
    """What it stores."""
    kept: int
    """Results of operators that it hands on without storing them."""
    unfused: int
    """What its operators read and write if each of them is a kernel. Views count nothing, as they do here."""

    @property
    def moved(self) -> int:
        """To and from the memory, caches left out."""
        return self.weights + self.inputs + self.outputs


@dataclass(frozen=True)
class GroupedTraffic:
    """A division of a region's layers into groups, by a model of what passes a buffer."""

    plan: str
    """Who divided them."""
    groups: int
    memory_bytes: float
    """To and from the memory behind the buffer."""
    ms: float
    """What moving takes by the model, one thread."""
    proven: bool
    """Whether no division costs less in the model."""


@dataclass(frozen=True)
class RegionTraffic:
    """What the kernels of a region move, and what other groups of its layers would."""

    kernels: tuple[KernelTraffic, ...]
    buffer_bytes: int
    """Of the model's buffer: a core's second-level cache."""
    layers: int
    """Of the model."""
    groupings: tuple[GroupedTraffic, ...]
    """Every layer alone first, then these kernels, then what the searches find. One that did not end in time is left out."""
