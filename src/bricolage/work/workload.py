"""What a region computes, in words and numbers that outlive its graph: what models of cost learn from.

A cost in the database is known by the region's hash, from which nothing can be computed; the workload under the same hash says what
was measured. It is Lorien's "workload" (Yu et al., SoCC 2021), one operator at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from bricolage.base.codec import Length, Matching, Within
from bricolage.work.work_graph import WorkOperator

Amount: TypeAlias = Annotated[int, Within(0, 10**30)]
"""Operations or bytes."""
Size: TypeAlias = Annotated[int, Within(0, 2**48)]
Sizes: TypeAlias = Annotated[tuple[Size, ...], Length(0, 64)]
Kind: TypeAlias = Annotated[str, Matching(r"[A-Za-z][A-Za-z0-9_]{0,99}", "type of an operator")]
ElementType: TypeAlias = Annotated[str, Matching(r"[a-z0-9_]{0,40}", "type of an element")]


@dataclass(frozen=True)
class OperatorWork:
    """One operator. Bytes are those of its tensors, whether or not they stay in a cache or are fused away."""

    kind: Kind
    """Type of ONNX."""
    dtype: ElementType
    """Of the elements of its first output; empty where unknown."""
    shape: Sizes
    """Of its first output; empty where it is not known before it runs."""
    flops: Amount
    read: Amount
    """Bytes of inputs that are no constants."""
    constant: Amount
    """Bytes of inputs that are."""
    written: Amount
    kernel: Sizes = ()
    """Of a convolution or pool."""
    strides: Sizes = ()
    groups: Size = 1

    @property
    def bytes(self) -> int:
        """Of all its tensors."""
        return self.read + self.constant + self.written


@dataclass(frozen=True)
class Workload:
    """A region: its operators in order, and the bytes that enter and leave it."""

    operators: Annotated[tuple[OperatorWork, ...], Length(0, 1_000_000)]
    read: Amount
    """Bytes of inputs that are no constants."""
    constant: Amount
    written: Amount
    network: Annotated[str, Matching(r"[0-9a-f]{0,64}", "hash in hexadecimal")] = ""
    """Hash of the model that it was first measured in."""

    @property
    def flops(self) -> int:
        """Of all its operators."""
        return sum(operator.flops for operator in self.operators)

    @property
    def bytes(self) -> int:
        """That enter and leave it."""
        return self.read + self.constant + self.written


def workload_of(operators: Iterable[WorkOperator]) -> Workload:
    """Of operators of which types and amounts are known: all their bytes count as read."""
    works = tuple(
        OperatorWork(operator.op_type, "", (), int(operator.flops), operator.bytes, 0, 0) for operator in operators
    )
    return Workload(works, sum(work.read for work in works), 0, 0)
