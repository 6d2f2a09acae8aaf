"""The native engine's representation: tensors defined by what their elements are.

Every node is a tensor of a fixed shape. Views, element-wise functions and gathers say how one element is found, so that any
kernel can compute it where it is needed; reductions, contractions and row operations are what kernels are built around.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import ml_dtypes
import numpy as np

from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.native.ir.index_expressions import Index, Var, flatten, variable

Shape = tuple[int, ...]
Coords = tuple[Index, ...]
"""One index expression for each dimension."""

HALVES = frozenset(["float16", "bfloat16"])
"""Element types that are converted to float32 where they are read, and back where they are stored; nothing is computed in them."""

INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
"""Element types of whole numbers. Their functions wrap around."""

FLOATS = frozenset(["float32", "float64"])
"""Element types of the functions of floats."""

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
    **{name: f"{name}_t" for name in sorted(INTEGERS)},
    **dict.fromkeys(sorted(HALVES), "float"),
}
"""Element types, and what holds an element while it is computed."""

STORED_TYPES = {**C_TYPES, **dict.fromkeys(sorted(HALVES), "uint16_t")}
"""Element types of buffers; float32, too, is stored as bfloat16 where products read nothing else."""

STORED_BYTES = {
    "float32": 4,
    "float64": 8,
    "bool": 1,
    **{name: int(name.removeprefix("u").removeprefix("int")) // 8 for name in sorted(INTEGERS)},
    **dict.fromkeys(sorted(HALVES), 2),
}
"""Bytes of an element in a buffer."""


def numpy_type(name: str) -> np.dtype:
    """The numpy type of an element type."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


_LINE = 64
"""Bytes of a cache line."""
_ROW_OPERATIONS = 5
"""Of softmax and normalisation on an element, as in `graph.work`."""
LONGEST_ROW = 16384
"""Elements of a row that a thread may keep on its stack."""


@dataclass(frozen=True, eq=False)
class Node:
    """A tensor. Nodes are equal only to themselves."""

    shape: Shape
    dtype: str
    starts_kernel: ClassVar[bool] = False
    """Whether it is what a kernel is built around: contractions, reductions and row operations."""

    @property
    def operations(self) -> int:
        """Floating-point operations that compute all of it from its sources."""
        return 0

    @property
    def sources(self) -> tuple[Node, ...]:
        """The tensors that it is computed from."""
        return ()

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Input(Node):
    """An input of the region, row-major."""

    position: int


@dataclass(frozen=True, eq=False)
class Constant(Node):
    """A tensor known when the region is compiled."""

    array: np.ndarray = field(repr=False)

    @property
    def identity(self) -> int:
        """Equal for constants that hold the same array."""
        return id(self.array)

    @property
    def nbytes(self) -> int:
        """Bytes that its elements take where they lie."""
        return self.array.nbytes


@dataclass(frozen=True, eq=False, init=False)
class BlockConstant(Constant):
    """A float32 matrix whose elements are integers of 4 or 8 bits in blocks, each block with a scale of its own. Products read the
    integers (`cpu.block_products`); whatever else reads it makes float32 of them."""

    blocks: QuantisedBlocks = field(repr=False)
    turned: bool
    """Whether blocks lie along the last dimension: [n, k] instead of [k, n]."""
    in_bytes: bool
    """Whether the model lets what it multiplies become bytes."""

    def __init__(self, blocks: QuantisedBlocks, *, turned: bool = False, in_bytes: bool = False) -> None:
        shape = (blocks.n, blocks.k) if turned else (blocks.k, blocks.n)
        fields = {"shape": shape, "dtype": "float32", "blocks": blocks, "turned": turned, "in_bytes": in_bytes}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @cached_property  # type: ignore[misc]  # the field of `Constant`, made later
    def array(self) -> np.ndarray:
        """Its elements as float32, made when they are asked for."""
        return self.blocks.numbers() if self.turned else np.ascontiguousarray(self.blocks.numbers().T)

    @property
    def identity(self) -> int:
        """Equal for constants that hold the same integers."""
        return id(self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of the integers and of the numbers that they represent."""
        return self.blocks.nbytes

    def transposed(self) -> BlockConstant:
        """The same blocks, with rows for columns."""
        return BlockConstant(self.blocks, turned=not self.turned, in_bytes=self.in_bytes)


@dataclass(frozen=True, eq=False)
class DequantisedConstant(Constant):
    """A constant that a file gives as bytes: `array` is (integers - zeros) · scales, which broadcast to its shape."""

    integers: np.ndarray = field(repr=False)
    """int8 or uint8."""
    scales: np.ndarray = field(repr=False)
    """float32, of the same rank."""
    zeros: np.ndarray = field(repr=False)
    """int32, of the same rank."""


@dataclass(frozen=True, eq=False)
class Pointwise(Node):
    """An element-wise function; inputs broadcast as in numpy. `function` names an entry of `ir.elementwise_functions.FUNCTIONS`."""

    function: str
    inputs: tuple[Node, ...]
    parameters: tuple[float, ...] = ()

    @property
    def operations(self) -> int:
        """One for each element."""
        return self.elements

    @property
    def sources(self) -> tuple[Node, ...]:
        """Its inputs."""
        return self.inputs


@dataclass(frozen=True, eq=False)
class View(Node):
    """Elements of another tensor at other indices. Where a guard does not hold, the element is `fill`.

    `guard` gives index expressions with the extents that they must lie within.
    """

    source: Node
    mapping: Callable[[Coords], Coords]
    guard: Callable[[Coords], Sequence[tuple[Index, int]]] | None = None
    fill: float = 0.0
    inverse: Callable[[Coords], Coords] | None = None
    """Where each element of the source comes to lie, for views that hold all of them once."""

    @property
    def sources(self) -> tuple[Node, ...]:
        """The tensor that it is a view of."""
        return (self.source,)

    def locate(self, coords: Coords) -> Coords:
        """Where elements lie in the source. Those outside of the view are asked for under a condition that keeps them out. Their
        coordinates go on from those inside: a division for what they would be beyond an edge would be one for all."""
        if all(index.range[0] >= 0 and index.range[1] < size for index, size in zip(coords, self.shape, strict=True)):
            return self.mapping(coords)
        inside = [Var(f"inside {axis}", size) for axis, size in enumerate(self.shape)]
        given = dict(zip(inside, coords, strict=True))
        mapped = self.mapping(tuple(variable(loop_var.name, loop_var.extent) for loop_var in inside))
        return tuple(index.substitute(given) for index in mapped)

    @cached_property
    def strided(self) -> bool:
        """Whether neighbours along the last dimension lie in different cache lines of the source, both row-major."""
        coords = tuple(variable(f"d{axis}", extent) for axis, extent in enumerate(self.shape))
        last = next((index for index in reversed(coords) if index.terms), None)
        if last is None:
            return False
        step = flatten(self.mapping(coords), self.source.shape).stride(*last.variables)
        return step is None or abs(step) * STORED_BYTES[self.dtype] >= _LINE


@dataclass(frozen=True, eq=False)
class Gather(Node):
    """Slices of `source` along `axis` that `indices` names; negative ones count from the end."""

    source: Node
    indices: Node
    axis: int

    @property
    def sources(self) -> tuple[Node, ...]:
        """What is gathered from, and the indices."""
        return self.source, self.indices


@dataclass(frozen=True, eq=False)
class ConcatBuffer(Node):
    """Parts put together without overlap: part i lies at `starts[i]`, its elements `steps` apart in each dimension.

    `split` says that the parts come from one operator, so that what follows is done to each part.
    """

    parts: tuple[Node, ...]
    starts: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]
    split: bool = False

    @property
    def sources(self) -> tuple[Node, ...]:
        """The parts."""
        return self.parts


Reduction: TypeAlias = Literal["sum", "mean", "max", "min", "product"]


@dataclass(frozen=True, eq=False)
class Reduce(Node):
    """Elements along `axes` put together; these dimensions stay, with the extent 1. A "mean" divides by `divisor`."""

    kind: Reduction
    source: Node
    axes: tuple[int, ...]
    divisor: float = 1.0
    starts_kernel = True

    @property
    def operations(self) -> int:
        """One for each element that is reduced."""
        return self.source.elements

    @property
    def sources(self) -> tuple[Node, ...]:
        """What is reduced."""
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Softmax(Node):
    """Along the last dimension."""

    source: Node
    starts_kernel = True

    @property
    def operations(self) -> int:
        """As `graph.work` counts them."""
        return _ROW_OPERATIONS * self.elements

    @property
    def sources(self) -> tuple[Node, ...]:
        """The logits."""
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Normalise(Node):
    """(x - mean) / sqrt(mean of squares of that + epsilon) over all dimensions from `axis` on; without mean if not `centred`."""

    source: Node
    epsilon: float
    axis: int
    centred: bool = True
    starts_kernel = True

    @property
    def operations(self) -> int:
        """As `graph.work` counts them."""
        return _ROW_OPERATIONS * self.elements

    @property
    def in_rows(self) -> bool:
        """Whether it goes over rows that a thread can keep."""
        return self.axis == len(self.shape) - 1 and self.shape[-1] <= LONGEST_ROW

    @property
    def sources(self) -> tuple[Node, ...]:
        """What is normalised."""
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Contraction(Node):
    """Sums of products."""

    starts_kernel = True

    @property
    @abstractmethod
    def depth(self) -> int:
        """Products that are summed up for an element."""

    @property
    def operations(self) -> int:
        """A multiplication and an addition for each product."""
        return 2 * self.elements * self.depth


@dataclass(frozen=True, eq=False)
class MatMul(Contraction):
    """Matrix products over leading batch dimensions, all of the same rank; batch dimensions broadcast.

    Of float32; or, into int32, of a uint8 `left` and a constant int8 `right`, exactly.
    """

    left: Node
    right: Node

    @property
    def depth(self) -> int:
        """Products that are summed up for an element."""
        return self.left.shape[-1]

    @property
    def sources(self) -> tuple[Node, ...]:
        """Both sides."""
        return self.left, self.right


@dataclass(frozen=True, eq=False)
class Conv(Contraction):
    """A convolution of any number of spatial dimensions, without bias. `pads` are those before each dimension; the output
    shape says what is read behind. Of float32; or, into int32, of a uint8 `source` and int8 weights, exactly."""

    source: Node
    weight: Node
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    fill: int = 0
    """What lies around a uint8 source: the byte that means zero."""

    @property
    def depth(self) -> int:
        """Products that are summed up for an element."""
        return math.prod(self.weight.shape[1:])

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        return self.groups > 1 and self.groups == self.shape[1] == self.source.shape[1]

    @property
    def sources(self) -> tuple[Node, ...]:
        """The images and the weights."""
        return self.source, self.weight
