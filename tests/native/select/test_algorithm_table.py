"""Which algorithm computes a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.isa import ISAS
from bricolage.native.cpu.kernel_choice import DEFAULT, KernelChoice
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.select.algorithm import KernelRequest
from bricolage.native.select.algorithm_table import ALGORITHMS, choose_algorithm, list_parameters, used_tile
from tests.backends import regions

CHANNELS = ISAS[-1].lanes * 2
IMAGE = f"float[1, {CHANNELS}, 24, 24]"


def request(
    folder: Path, body: str, x: str, y: str, choice: KernelChoice = DEFAULT, **weights: object
) -> KernelRequest:
    """The last kernel of a region."""
    target = CpuTarget(ISAS[-1], 2)
    plan = plan_fused_kernels(regions.region(folder, body, f"{x} x", f"{y} y", **weights), target, Arithmetic(), {})  # type: ignore[arg-type]
    return KernelRequest(plan.kernels[-1], plan, target, Arithmetic(tile=4), choice)


@pytest.mark.parametrize(
    ("body", "x", "y", "algorithm"),
    [
        ("y = Exp (x)", "float[64]", "float[64]", "element-wise"),
        ("y = ReduceMax <keepdims = 1> (x)", "float[64, 8]", "float[1, 1]", "reduction"),
        ("y = Softmax (x)", "float[64, 8]", "float[64, 8]", "rows"),
        ("y = MatMul (x, w)", "float[64, 64]", "float[64, 64]", "contraction"),
        (f"y = Conv <group = {CHANNELS}, pads = [1,1,1,1]> (x, d)", IMAGE, IMAGE, "grouped convolution"),
        ("y = Conv (x, p)", IMAGE, IMAGE, "contraction"),
    ],
)
def test_one_algorithm_computes_a_kernel(tmp_path: Path, body: str, x: str, y: str, algorithm: str) -> None:
    weights = {
        "w": regions.noise(64, 64),
        "d": regions.noise(CHANNELS, 1, 3, 3),
        "p": regions.noise(CHANNELS, CHANNELS, 1, 1),
    }
    used = {name: value for name, value in weights.items() if f", {name})" in body}
    assert choose_algorithm(request(tmp_path, body, x, y, **used)).name == algorithm


def test_a_convolution_is_transformed_where_that_is_cheaper_or_was_chosen(tmp_path: Path) -> None:
    body, w = "a = Relu (x) \n y = Conv <pads = [1,1,1,1]> (a, w)", regions.noise(CHANNELS, CHANNELS, 3, 3)
    found = {tile: request(tmp_path, body, IMAGE, IMAGE, KernelChoice(tile=tile), w=w) for tile in (None, 0, 2, 4)}
    assert [used_tile(found[tile]) for tile in (0, 2, 4)] == [0, 2, 4]
    contraction, winograd = (
        next(one for one in ALGORITHMS if one.name == name) for name in ("contraction", "Winograd")
    )
    assert contraction.cost is not None and winograd.cost is not None
    cheaper = winograd.cost(found[None]) < contraction.cost(found[None])
    assert (choose_algorithm(found[None]) is winograd) == cheaper
    assert {"tile", "pieces", "mc_bytes"} <= list_parameters(found[None]).keys()


def test_names_are_unique() -> None:
    assert len({one.name for one in ALGORITHMS}) == len(ALGORITHMS)
