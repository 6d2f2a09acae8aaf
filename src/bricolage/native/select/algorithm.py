"""Algorithms of kernels as values: when one applies, what it costs against others, what may be chosen of it, and what generates it.

Floating-point operations and bytes are facts of what is computed (`ir.tensors.Node.operations`, `fuse.memory_cost`), the same for
every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.gemm_blocks import block_sizes
from bricolage.native.cpu.kernel_choice import DEFAULT, TILES, UNROLLED, KernelChoice
from bricolage.native.cpu.matrix_unit import Tiles
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.cpu.phase import ConstantBlock, Phase
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.tensors import Conv, Node
from bricolage.work.implementation import Scalar

Parameters = Mapping[str, tuple[Scalar, ...]]
"""Values that a tuner may choose from, by parameter (`cpu.kernel_choice`)."""


@dataclass(frozen=True)
class KernelRequest:
    """One kernel of a plan, what it is generated for, and what was chosen of it."""

    kernel: PlannedKernel
    plan: FusionPlan
    target: CpuTarget
    arithmetic: Arithmetic
    choice: KernelChoice = DEFAULT

    @property
    def root(self) -> Node | None:
        """What the kernel is built around; None where all of it is element-wise."""
        return self.kernel.root

    @cached_property
    def operand(self) -> ProductOperand:
        """How the operands of its product are stored and multiplied."""
        return self.arithmetic.operand_of(self.target.isa, self.root)


def no_cost(_request: KernelRequest) -> float:
    """Of what is better than the contraction wherever it applies."""
    return 0.0


def no_parameters(_request: KernelRequest) -> Parameters:
    """Of kernels of which nothing is chosen."""
    return {}


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a kernel. `select.algorithm_table` lists all of them."""

    name: str
    applies: Callable[[KernelRequest], bool]
    """Whether it can compute a kernel."""
    generate: Callable[[KernelRequest, ConstantBlock], list[Phase]]
    """The loops that threads share, one after another; what they read of constants is put into the block."""
    cost: Callable[[KernelRequest], float] = no_cost
    """The time that it should take, in multiples of what the contraction does."""
    parameters: Callable[[KernelRequest], Parameters] = no_parameters
    """What may be chosen of it. A value may lead to another algorithm, as a tile of Winograd's does."""


def product_parameters(request: KernelRequest) -> Parameters:
    """Of products of panels: how they are cut, and whether a convolution is transformed."""
    target, arithmetic, kernel = request.target, request.arithmetic, request.kernel
    unit = isinstance(request.operand, Tiles)
    mc_bytes, kc_bytes = block_sizes(target.l2_bytes, matrix_unit=unit)
    rows = target.isa.rows
    parameters: dict[str, tuple[Scalar, ...]] = {"parallel": ("n", "m"), "prefetch": (True, False)}
    parameters |= {"mc_bytes": mc_bytes, "pack": (True,)}
    if unit:
        parameters["kc_bytes"] = kc_bytes
    else:
        parameters["rows"] = tuple(sorted({max(1, rows // 2), *(range(max(1, rows * 2 // 3), rows))}))
        parameters["unroll"] = UNROLLED
    if isinstance(request.root, Conv) and (arithmetic.tile or kernel.of_bytes):
        parameters["tile"] = tuple(tile for tile in TILES if tile <= arithmetic.tile or kernel.of_bytes)
    return {**parameters, **look_up_parameters(request)}


def look_up_parameters(request: KernelRequest) -> Parameters:
    """Of products of bytes: whether what follows is looked up in a table."""
    return {"look_up": (True, False)} if request.kernel.of_bytes else {}
