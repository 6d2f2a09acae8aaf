"""Matrix products, and convolutions as products of windows and weights: cut into panels and tiles (`cpu.gemm`)."""

from __future__ import annotations

from bricolage.native.cpu.gemm import GemmCodegen
from bricolage.native.cpu.implicit_gemm import product
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.ir.tensors import Conv, MatMul
from bricolage.native.select.algorithm import Algorithm, KernelRequest, product_parameters


def _applies(request: KernelRequest) -> bool:
    """To all products: those that nothing else suits."""
    return isinstance(request.root, (MatMul, Conv))


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """The phases of a product with its epilogue: rows are packed together first where threads share columns."""
    root, target = request.root, request.target
    assert isinstance(root, (MatMul, Conv))
    memory, p = FunctionMemory(weights), product(root, target.lanes)
    return GemmCodegen(
        request.kernel, request.plan, memory, target, p=p, operand=request.operand, config=request.choice.gemm
    ).phases()


CONTRACTION = Algorithm("contraction", _applies, _generate, lambda _: 1.0, product_parameters)
