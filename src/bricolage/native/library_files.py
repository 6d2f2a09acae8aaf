"""The files of a compiled region, and what stands before its weights. What opens a library needs no more of the engine."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np

TITLE = "bricolage native"
LIBRARY, WEIGHTS = "region.so", "weights.bin"
ABI_VERSION = 1
"""Of `c/model.h`."""
HEADER_BYTES = 64
"""Of a file of weights: magic, version and these bytes, the size of what follows, and its digest."""
_MAGIC = b"BRICOLAG"
_HEADER = struct.Struct("<8sIIQ32s8x")


def shared_weights(library: Path, digest: str) -> Path:
    """The folder of weights that lie next to the folder of a library, for all libraries that read the same bytes. Such a library's
    own file of weights is the header alone."""
    return library.parent / f"weights-{digest[:32]}"


def weights_header(weights: np.ndarray) -> bytes:
    """What stands before weights in a file, or in memory."""
    digest = hashlib.sha256(np.ascontiguousarray(weights).data).digest()
    return _HEADER.pack(_MAGIC, ABI_VERSION, HEADER_BYTES, weights.nbytes, digest)


def weights_digest(header: bytes) -> str:
    """The digest in a header of weights."""
    return _HEADER.unpack(header)[4].hex()  # type: ignore[no-any-return]
