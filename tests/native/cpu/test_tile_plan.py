"""How products are cut up: what a configuration says, and what it leaves open."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from bricolage.native.cpu.isa import ISAS
from bricolage.native.cpu.kernel_choice import GemmConfig
from bricolage.native.cpu.panels import SINGLES
from bricolage.native.cpu.tile_plan import TilePlan, plan_tile
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
