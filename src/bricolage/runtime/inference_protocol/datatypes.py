"""Types and shapes of tensors as the Open Inference Protocol names them."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from bricolage.errors import NotServable
from bricolage.plan.plan import TensorSpec
from bricolage.runtime.signature import is_tensor

UNKNOWN_SIZE = -1
BYTES = "BYTES"
_NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "object": BYTES,
    "str": BYTES,
}
"""By numpy's name. BF16 is Triton's addition to the protocol."""
BINARY_ONLY = frozenset({"FP16", "BF16"})
"""JSON has no spelling of these, and gRPC no field."""
_NUMPY = {name: np.dtype(numpy) for numpy, name in _NAMES.items() if name not in ("BF16", BYTES)}
_NUMPY |= {"BF16": np.dtype(ml_dtypes.bfloat16), BYTES: np.dtype(object)}


def datatype(spec: TensorSpec) -> str:
    """The protocol's name of a tensor's type.

    Raises:
        KeyError: it has none.
    """
    return _NAMES[spec.dtype]


def dtype_of(name: str) -> np.dtype:
    """Of one of the protocol's names; `object` for BYTES.

    Raises:
        KeyError: there is no such name.
    """
    return _NUMPY[name]


def protocol_shape(spec: TensorSpec) -> list[int]:
    """With `UNKNOWN_SIZE` for each dimension without a fixed size, and alone for a tensor of any number of dimensions."""
    if spec.shape is None:
        return [UNKNOWN_SIZE]
    return [size if isinstance(size, int) else UNKNOWN_SIZE for size in spec.shape]


def check_servable(model: str, specs: Sequence[TensorSpec]) -> None:
    """Whether the protocol has a type for all of these.

    Raises:
        NotServable: it has not.
    """
    for spec in specs:
        if not is_tensor(spec) or spec.dtype not in _NAMES:
            reason = f"'{spec.name}' is of type {spec.dtype}, which the Open Inference Protocol does not have"
            raise NotServable(model=model, reason=reason)
        if spec.keys:
            raise NotServable(model=model, reason=f"'{spec.name}' is a map, and the protocol has tensors only")
