"""Matrix products, and convolutions as products of windows and weights: cut into panels and tiles (`cpu.gemm`)."""

from __future__ import annotations

from bricolage.native.cpu.gemm import GemmCodegen
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.tile_plan import plan_tile
from bricolage.native.ir.tensors import Conv, MatMul
from bricolage.native.select.algorithm import Algorithm, KernelRequest, product_parameters


def _applies(request: KernelRequest) -> bool:
    """To all products: those that nothing else suits."""
    return isinstance(request.root, (MatMul, Conv))


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """The phases of a product with its epilogue: rows are packed together first where threads share columns."""
    tiling = plan_tile(request.kernel, request.plan, request.target, request.operand, request.choice.gemm)
    return GemmCodegen(tiling, FunctionMemory(weights)).phases()


CONTRACTION = Algorithm("contraction", _applies, _generate, lambda _: 1.0, product_parameters)
