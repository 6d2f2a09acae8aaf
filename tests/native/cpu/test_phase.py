"""The memory that a generated function is given: named in the order in which it is asked for, once each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bricolage.graph.inference import infer
from bricolage.native.cpu.phase import ConstantBlock, ConstantOperand, FunctionMemory, TensorOperand
from bricolage.native.fuse.fusion import plan
from bricolage.native.fuse.kernel_plan import Buffer
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.module import generate
from tests.backends import regions
from tests.native.targets import FUSION, cpu_target


def test_operands_in_the_order_asked_for() -> None:
    memory = FunctionMemory(ConstantBlock())
    x, y = Buffer(("input", 0), (4,), "float32", (1,)), Buffer(("arena", 2), (4,), "bfloat16", (1,), offset=8)
    asked = [memory.pointer(y), memory.constant(64), memory.pointer(x), memory.pointer(x, 2), memory.pointer(y)]
    assert asked == ["m0", "m1", "m2", "m3", "m0"]
    assert memory.operands == (
        TensorOperand(("arena", 2), "bfloat16", 8),
        ConstantOperand(64),
        TensorOperand(("input", 0), "float32", 0),
        TensorOperand(("input", 0), "float32", 2),
    )


def test_what_a_function_declares_itself_is_no_operand() -> None:
    memory = FunctionMemory(ConstantBlock())
    assert memory.pointer(Buffer(("rows", 0), (4,), "float32", (1,))) == "rows_0_float32_0"
    assert memory.operands == ()


def test_equal_constants_are_kept_once() -> None:
    weights = ConstantBlock()
    one, again, other = (weights.add(key, lambda k=key: np.full(20, k % 2, np.float32)) for key in (0, 2, 1))
    assert one == again == 0 and other == 128 and weights.size == 256


def test_kernels_that_do_the_same_share_a_function(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "a = MatMul (x, u) \n b = MatMul (a, v) \n y = MatMul (b, w)",
        "float[8, 16] x",
        "float[8, 16] y",
        **{name: regions.noise(16, 16, seed=seed) for seed, name in enumerate("uvw")},
    )
    infer(model.model)
    text = generate(plan(*lower_region(model.model), FUSION), cpu_target()).text
    assert text.count("void matmul_0(") == 1 and "void matmul_1(" not in text
    assert [text.count(f"/* kernel_{number} */") for number in range(4)] == [1, 1, 1, 0]
