"""Resize in all its modes, against the reference implementation of the onnx package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.errors import Refused
from bricolage.graph.inference import infer
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from tests.backends import regions
from tests.native.targets import FUSION


def resized(folder: Path, attributes: str, out: tuple[int, ...], *, by: str = "sizes") -> RegionModel:
    sizes = np.int64([1, 6, *out])
    scales = np.float32([1, 1, out[0] / 5, out[1] / 7])
    given = {"s": sizes} if by == "sizes" else {"s": scales}
    inputs = 'x, "", "", s' if by == "sizes" else 'x, "", s'
    return regions.region(
        folder,
        f"r = Relu (x) \n y = Resize <{attributes}> ({inputs})",
        "float[1, 6, 5, 7] x",
        f"float[1, 6, {out[0]}, {out[1]}] y",
        **given,
    )


def check(model: RegionModel) -> None:
    x = regions.noise(1, 6, 5, 7)
    (found,) = regions.answer(Native(), model, x, resources=Resources(threads=2))
    (expected,) = regions.reference(model, x)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thinned("out")
@pytest.mark.parametrize("out", [(10, 14), (8, 9), (3, 4), (1, 21)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("where", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_modes(mode: str, where: str, out: tuple[int, int], tmp_path: Path) -> None:
    check(resized(tmp_path, f'mode = "{mode}", coordinate_transformation_mode = "{where}"', out))


@pytest.mark.parametrize(
    "attributes",
    [
        'mode = "nearest", nearest_mode = "ceil"',
        'mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"',
        'mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1',
        'mode = "linear", antialias = 1',
    ],
)
def test_further_attributes(attributes: str, tmp_path: Path) -> None:
    check(resized(tmp_path, attributes, (10, 14), by="scales"))


def test_nearest_neighbours_by_whole_factors_move_nothing(tmp_path: Path) -> None:
    model = resized(
        tmp_path, 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"', (10, 21)
    )
    infer(model.model)
    assert len(plan(*lower_region(model.model), FUSION).kernels) == 1


def test_what_it_refuses(tmp_path: Path) -> None:
    computed = regions.region(tmp_path, "y = Resize (x, , s)", "float[1, 1, 4, 4] x, float[4] s", "float[1, 1, 8, 8] y")
    with pytest.raises(Refused, match="Resize"):
        Native().compile(computed, regions.F32, Resources(threads=1))
