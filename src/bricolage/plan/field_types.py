"""Types of the fields of a plan, with the values that they may have."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from bricolage.base.codec import Matching, Within

MOST_OPERATORS = 10_000_000
"""Of a graph that is planned."""
Count: TypeAlias = Annotated[int, Within(0, MOST_OPERATORS)]
"""Of operators, measurements or applications of rules."""
Amount: TypeAlias = Annotated[int, Within(0, 10**30)]
"""Operations or bytes."""
Size: TypeAlias = Annotated[int, Within(0, 2**48)]
"""Of a dimension, in elements."""
Duration: TypeAlias = Annotated[float, Within(0.0, 1e18)]
"""Measured or predicted, in the unit that its name says; finite."""
Interval: TypeAlias = tuple[Duration, Duration]
ErrorNumber: TypeAlias = Annotated[float, Within(0.0, math.inf)]
"""A relative error; infinite where nothing right came out."""
Ratio: TypeAlias = Annotated[float, Within(-math.inf, math.inf)]
"""Any number but NaN."""
Share: TypeAlias = Annotated[float, Within(0.0, 1.0)]
"""A part of a whole."""
GraphFile: TypeAlias = Annotated[str, Matching(r"graph-[0-9a-f]{1,64}\.onnx", "name of a graph's file")]
Hash: TypeAlias = Annotated[str, Matching(r"[0-9a-f]{1,64}", "hash in hexadecimal")]
OperatorRanges: TypeAlias = Annotated[
    str, Matching(r"([0-9]{1,8}(-[0-9]{1,8})?(,[0-9]{1,8}(-[0-9]{1,8})?)*)?", 'list of ranges such as "0-12,15"')
]
DecidedBy: TypeAlias = Literal["race", "race and prior evidence", "prior evidence", "learnt costs", "predicted costs"]
"""Which evidence decided."""
ProvisionalReason: TypeAlias = Literal["no time", "load"]
"""Why a decision is provisional: there was no time for what could have gained, or other processes disturbed it."""
Core: TypeAlias = Annotated[int, Within(0, 1_000_000)]
"""Number of a logical processor."""
