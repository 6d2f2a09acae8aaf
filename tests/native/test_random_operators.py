"""Random regions of every operator with a rule, against float64, on every instruction set that runs here, and in bfloat16."""

from __future__ import annotations

import pytest

from bricolage.backends.native.engine import FORCED_ISA_VARIABLE
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.native.cpu.isa import available_isas
from bricolage.native.ir.lowerings import LOWERINGS
from bricolage.testing import SideBySide, grow_wide
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.exactness import check

WAYS = [(isa.name, regions.F32) for isa in available_isas()] + [
    (isa.name, KernelConfig("bf16")) for isa in available_isas()[:1] if isa.multiplies_bfloat16(host())
]
ELSEWHERE = {
    "CausalConvWithState",
    "CumProd",
    "LinearAttention",
    "MatMulNBits",
    "ReduceLogSumExp",
    "SwiGLU",
    "Upsample",
}
"""The ONNX backend suite or tests of their own have them."""
MAPPINGS = {
    "One-to-One": {"Relu", "Add", "Concat", "Cast", "Where"},
    "One-to-Many": {"Expand", "Tile", "Resize", "Gather"},
    "Many-to-Many": {"Conv", "MatMul", "ReduceSum", "Softmax", "MaxPool", "LSTM"},
    "Reorganize": {"Reshape", "Flatten", "Squeeze", "Unsqueeze"},
    "Shuffle": {"Transpose", "DepthToSpace", "SpaceToDepth"},
}
"""Operators of each of DNNFusion's types (PLDI 2021, Table 2); a broadcast input makes One-to-Many of the first."""


def test_every_rule_every_mapping_and_every_rank_occurs() -> None:
    operators, ranks, broadcasts = set[str](), set[int](), 0
    for seed in range(2500):
        region = grow_wide(seed)
        operators |= {node.op_type for node in region.nodes}
        ranks |= {len(info.type.tensor_type.shape.dim) for info in region.inputs}
        broadcasts += sum(
            len({region.shapes[name] for name in node.input if name in region.shapes}) > 1
            for node in region.nodes
            if node.op_type in ("Add", "Sub", "Mul", "Max", "Min", "Sum", "Where")
        )
    assert set(LOWERINGS) - operators == ELSEWHERE
    assert ranks == set(range(7))
    assert broadcasts > 100
    assert all(own <= operators for own in MAPPINGS.values())


@pytest.mark.parametrize(("isa", "config"), WAYS, ids=[f"{isa}-{config}" for isa, config in WAYS])
def test_random_operators(isa: str, config: KernelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
    check(SideBySide(range(6)), 0, config=config)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(60))
@pytest.mark.parametrize(("isa", "config"), WAYS, ids=[f"{isa}-{config}" for isa, config in WAYS])
def test_many_random_operators(isa: str, config: KernelConfig, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fours: 6,000 regions, each on one of the instruction sets or in bfloat16."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
    turn = WAYS.index((isa, config))
    for group in range(25 * block, 25 * block + 25):
        if group % len(WAYS) == turn:
            seed = 20_000 + 4 * group
            try:
                check(SideBySide(range(seed, seed + 4)), seed, 1 + seed // 4 % 3, config)
            except Refused as reason:
                assert config.name == "bf16" and "no products" in str(reason)
