"""How products are cut up: what a configuration says, and what it leaves open."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from bricolage.device.caches import Cache, Caches
from bricolage.native.cpu.isa import ISAS
from bricolage.native.cpu.kernel_choice import GemmConfig
from bricolage.native.cpu.panels import SINGLES
from bricolage.native.cpu.tile_plan import TilePlan, plan_tile
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.ir.tensors import MatMul
from tests.backends import regions
from tests.native.targets import cpu_target, planned_region


def planned_tile(folder: Path, config: GemmConfig) -> TilePlan:
    """50 rows of 96 by 96 columns."""
    folder.mkdir(exist_ok=True)
    region = regions.region(folder, "y = MatMul (x, w)", "float[50,96] x", "float[50,96] y", w=regions.noise(96, 96))
    plan = planned_region(region)
    isa = next(isa for isa in ISAS if isa.name == "avx2")
    return plan_tile(plan.kernels[0], plan, cpu_target(isa), SINGLES, config)


def test_a_configuration_decides_and_leaves_the_rest_to_rules_of_thumb(tmp_path: Path) -> None:
    usual = planned_tile(tmp_path / "usual", GemmConfig())
    assert usual.m == 50 and usual.tiles == -(-50 // usual.mr) and usual.tile_rows == -(-50 // usual.tiles)
    cut = planned_tile(tmp_path / "cut", GemmConfig(rows=2, parallel="n", prefetch=True, unroll=4, mc_bytes=1 << 14))
    assert (cut.mr, cut.tiles, cut.by_columns, cut.prefetch, cut.unroll, cut.mc_bytes) == (
        2,
        25,
        True,
        True,
        4,
        1 << 14,
    )


def test_a_plan_stays_as_it_was_made(tmp_path: Path) -> None:
    with pytest.raises(FrozenInstanceError):
        planned_tile(tmp_path, GemmConfig()).prefetch = True  # type: ignore[misc]


def fetches(plan: FusionPlan, l3_bytes: int, units: int) -> list[bool]:
    """Whether each product of one row and `4 * units` columns fetches its next panel."""
    target = cpu_target(next(isa for isa in ISAS if isa.name == "avx2"))
    target = replace(target, caches=Caches((Cache(2, 512 << 10), Cache(3, l3_bytes))))
    products = [k for k in plan.kernels if isinstance(k.root, MatMul) and k.root.shape[-2:] == (1, 4 * units)]
    return [plan_tile(kernel, plan, target, SINGLES, GemmConfig()).prefetch for kernel in products]


def test_steps_of_a_recurrence_leave_fetching_to_the_processor(tmp_path: Path) -> None:
    """Weights that the step before has left in the last-level cache are one stream; what comes from memory is fetched ahead."""
    units = 256
    recurrent = regions.region(
        tmp_path,
        f"y, h, c = LSTM <hidden_size = {units}> (x, w, r)",
        "float[4, 1, 8] x",
        f"float[4, 1, 1, {units}] y",
        w=regions.noise(1, 4 * units, 8),
        r=regions.noise(1, 4 * units, units, seed=1),
    )
    plan = planned_region(recurrent)
    assert fetches(plan, 32 << 20, units) == [False] * 3
    assert fetches(plan, 2 << 20, units) == [True] * 3
    (folder := tmp_path / "once").mkdir()
    once = regions.region(
        folder, "y = MatMul (x, w)", "float[1, 256] x", "float[1, 1024] y", w=regions.noise(256, 1024)
    )
    assert fetches(planned_region(once), 32 << 20, units) == [True]
