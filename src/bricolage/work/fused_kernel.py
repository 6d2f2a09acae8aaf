"""One of the kernels that a backend makes of a region: what it computes, reads, writes and takes."""

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
