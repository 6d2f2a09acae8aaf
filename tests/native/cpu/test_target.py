"""What fusion and code generation take from a processor's description."""

from __future__ import annotations

from pathlib import Path

from bricolage.device.caches import Cache, Caches
from bricolage.graph.inference import infer
from bricolage.native.cpu.isa import ISAS
from bricolage.native.cpu.target import CpuTarget, fusion_target
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.module import generate
from tests.backends import regions

AVX2 = next(isa for isa in ISAS if isa.name == "avx2")


def described(l2_bytes: int) -> CpuTarget:
    return CpuTarget(AVX2, 2, Caches((Cache(2, l2_bytes),)))


def test_limits_that_fusion_goes_by() -> None:
    found = fusion_target(Caches((Cache(2, 1 << 20),)))
    assert (found.resident_bytes, found.score_columns) == (512 << 10, 4096)
    assert (found.vector_lanes, found.tile_rows) == ((4, 16), 32)
    assert described(1 << 20).fusion == found


def test_blocks_are_parts_of_the_second_level_cache(tmp_path: Path) -> None:
    """Of a product whose rows are packed: a larger cache holds more of them."""
    model = regions.region(
        tmp_path,
        "t = Transpose <perm = [1, 0]> (x) \n y = MatMul (t, w)",
        "float[512, 4096] x",
        "float[4096, 64] y",
        w=regions.noise(512, 64),
    )
    infer(model.model)
    texts = []
    for l2_bytes in (512 << 10, 1 << 20, 2 << 20):
        target = described(l2_bytes)
        texts.append(generate(plan(*lower_region(model.model), target.fusion), target).text)
    assert len(set(texts)) == 3
