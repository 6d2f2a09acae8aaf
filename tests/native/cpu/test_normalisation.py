"""Normalisations as single kernels, with their neighbours: over channels, groups, instances, and long rows, in both layouts."""

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
from bricolage.native.ir.tensors import Normalise
from bricolage.native.module import generate
from bricolage.verify.reference import evaluate
from tests.backends import regions
from tests.native.targets import FUSION, cpu_target, planned_region

BOUND = 3e-6


def kinds(model: RegionModel) -> list[str]:
    infer(model.model)
    return [kernel.kind for kernel in plan(*lower_region(model.model), FUSION).kernels]


def check(model: RegionModel, *values: np.ndarray, threads: int = 2) -> None:
    feeds = {info.name: value for info, value in zip(model.inputs, values, strict=True)}
    exact = evaluate(model.model, feeds, dtype=np.float64)
    found = regions.answer(Native(), model, *values, resources=Resources(threads=threads))
    assert regions.error(found, [exact[info.name] for info in model.outputs]) < BOUND


def images(
    folder: Path, norm: str, channels: int, sizes: tuple[int, ...], *, last: bool, opset: int = 22
) -> RegionModel:
    """Something added before and behind; channels lie last where a convolution makes them."""
    n = 4 if opset < 21 else channels
    shape = [2, channels, *sizes]
    before = "a = Conv (x, w)" if last else "a = Tanh (x)"
    body = f"{before} \n s = Add (a, z) \n t = {norm} (s, g, b) \n u = Relu (t) \n y = Add (u, z)"
    constants = (
        {"w": regions.noise(channels, channels, *(1 for _ in sizes)) / np.float32(channels) ** 0.5} if last else {}
    )
    return regions.region(
        folder,
        body,
        f"float{shape} x, float{shape} z",
        f"float{shape} y",
        opset=opset,
        known=f"float{shape} t",
        g=regions.noise(n, seed=1),
        b=regions.noise(n, seed=2),
        **constants,
    )


@pytest.mark.thinned("isa", "last")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(
    ("norm", "channels", "sizes"),
    [
        ("InstanceNormalization <epsilon = 0.01>", 48, (5, 7)),
        ("InstanceNormalization <epsilon = 0.01>", 6, (5, 3, 4)),
        ("GroupNormalization <num_groups = 8>", 32, (6, 5)),
        ("GroupNormalization <num_groups = 2>", 40, (9,)),
        ("GroupNormalization <num_groups = 10>", 30, (4, 4)),
        ("GroupNormalization <num_groups = 1>", 20, (3, 5)),
    ],
)
@pytest.mark.usefixtures("isa")
def test_groups_of_channels(
    norm: str,
    channels: int,
    sizes: tuple[int, ...],
    last: bool,
    tmp_path: Path,
) -> None:
    model = images(tmp_path, norm, channels, sizes, last=last)
    given = regions.noise(2, channels, *sizes, seed=3), regions.noise(2, channels, *sizes, seed=4)
    check(model, *given, threads=3)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("norm", ["InstanceNormalization", "GroupNormalization <num_groups = 4>"])
def test_they_are_one_kernel_with_their_neighbours(norm: str, last: bool, tmp_path: Path) -> None:
    """Without a convolution, what is added before is computed where the normalisation reads it, each time that it does."""
    assert kinds(images(tmp_path, norm, 32, (6, 6), last=last)) == (["conv", "normalise"] if last else ["normalise"])


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("spatial", [(8, 6), (9,), (4, 3, 2)])
@pytest.mark.usefixtures("isa")
def test_a_group_that_exporters_write_as_one_row(spatial: tuple[int, ...], tmp_path: Path) -> None:
    """The row is a reshape of channels and positions, and with channels last their order in memory is another one: one loop over it
    divided for each element, and a PoolFormer took twice as long."""
    channels, shape = 20, [1, 20, *spatial]
    body = (
        "c = Conv (x, w) \n r = Reshape (c, row) \n n = InstanceNormalization (r, unit, zero) \n t = Reshape (n, back)"
    )
    model = regions.region(
        tmp_path,
        f"{body} \n y = Add (t, c)",
        f"float{shape} x",
        f"float{shape} y",
        w=regions.noise(channels, channels, *(1 for _ in spatial)) / np.float32(channels) ** 0.5,
        row=np.array([1, 1, -1]),
        back=np.array(shape),
        unit=np.ones(1, np.float32),
        zero=np.zeros(1, np.float32),
    )
    check(model, regions.noise(*shape, seed=3))
    text = generate(planned_region(model), cpu_target()).text
    kernel = text[text.index("/* normalise") :]
    within = kernel[kernel.index("for (long o = begin") : kernel.index("\n}\n")]
    assert "squares" in within and "%" not in within and within.count("/") == 1, "but for the one root"


def test_scale_and_bias_of_groups_before_operator_set_21(tmp_path: Path) -> None:
    model = images(tmp_path, "GroupNormalization <num_groups = 4>", 12, (5, 5), last=False, opset=18)
    check(model, regions.noise(2, 12, 5, 5, seed=3), regions.noise(2, 12, 5, 5, seed=4))


@pytest.mark.thinned("isa")
@pytest.mark.usefixtures("isa")
def test_root_mean_squares(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "s = Add (x, z) \n t = RMSNormalization <axis = -2> (s, g) \n y = Mul (t, z)",
        "float[5, 4, 33] x, float[5, 4, 33] z",
        "float[5, 4, 33] y",
        opset=23,
        g=regions.noise(4, 33),
    )
    assert kinds(model) == ["normalise"]
    check(model, regions.noise(5, 4, 33, seed=1), regions.noise(5, 4, 33, seed=2))


@pytest.mark.thinned("isa")
@pytest.mark.usefixtures("isa")
def test_rows_longer_than_a_thread_keeps(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "y = LayerNormalization (x, g, b) \n z = RMSNormalization (x, g)",
        "float[3, 20000] x",
        "float[3, 20000] y, float[3, 20000] z",
        opset=23,
        g=regions.noise(20000),
        b=regions.noise(20000, seed=1),
    )
    assert kinds(model) == ["normalise", "normalise"]
    check(model, regions.noise(3, 20000, seed=2))


def test_a_residual_sum_before_and_a_scale_behind_are_one_kernel(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "s = Add (x, z) \n t = LayerNormalization (s, g, b) \n y = Mul (t, h)",
        "float[5, 4, 32] x, float[5, 4, 32] z",
        "float[5, 4, 32] y",
        g=regions.noise(32),
        b=regions.noise(32, seed=1),
        h=regions.noise(32, seed=2),
    )
    assert kinds(model) == ["normalise"]
    check(model, regions.noise(5, 4, 32, seed=3), regions.noise(5, 4, 32, seed=4))


@pytest.mark.parametrize("given", [False, True], ids=["constant", "input"])
@pytest.mark.parametrize(
    ("axis", "scale", "bias"),
    [(-1, (1,), (5,)), (-1, (2, 1, 5), (1, 3, 1)), (1, (5,), (3, 1)), (1, (), (2, 1, 5)), (0, (3, 5), (2, 1, 1))],
    ids=str,
)
def test_scales_and_biases_broadcast(
    axis: int, scale: tuple[int, ...], bias: tuple[int, ...], given: bool, tmp_path: Path
) -> None:
    values = {"g": regions.noise(*scale, seed=1), "b": regions.noise(*bias, seed=2)}
    model = regions.region(
        tmp_path,
        f"y = LayerNormalization <axis = {axis}> (x, g, b) \n z = RMSNormalization <axis = {axis}> (x, g)",
        "float[2, 3, 5] x" + "".join(f", float{list(v.shape) or ''} {name}" for name, v in values.items() if given),
        "float[2, 3, 5] y, float[2, 3, 5] z",
        opset=23,
        **({} if given else values),
    )
    check(model, regions.noise(2, 3, 5), *(values.values() if given else ()))


def test_scales_that_do_not_broadcast_are_refused(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path, "y = LayerNormalization (x, g)", "float[2, 3, 5] x, float[4] g", "float[2, 3, 5] y"
    )
    with pytest.raises(Refused, match=r"a scale or bias of the shape \[4\] for \[2, 3, 5\]"):
        Native().compile(model, regions.F32, regions.ONE_THREAD)


@pytest.mark.parametrize("norm", ["InstanceNormalization (s, g, b)", "LayerNormalization <axis = 2> (s, g3, b3)"])
def test_a_single_element_is_its_own_mean(tmp_path: Path, norm: str) -> None:
    """Exactly: a kernel that computes the element anew, rounded otherwise, would see 1 / sqrt(epsilon) times the difference."""
    known = {"g": regions.noise(4, seed=1), "b": regions.noise(4, seed=2), "w": regions.noise(1, 4, 1, seed=3)}
    known |= {"g3": known["g"][:1], "b3": known["b"][:1], "v": regions.noise(1, 4, 1, seed=4)}
    body = f"m = Mul (x, w) \n s = Add (m, v) \n y = {norm}"
    model = regions.region(tmp_path, body, "float[2, 4, 1] x", "float[2, 4, 1] y", opset=18, **known)
    x = (regions.noise(2, 4, 1, seed=5) * 100).astype(np.float32)
    bias = known["b"].reshape(1, 4, 1) if "Instance" in norm else known["b3"].reshape(1, 1, 1)
    (found,) = regions.answer(Native(), model, x, resources=Resources(threads=1))
    assert np.array_equal(found, np.broadcast_to(bias, found.shape))
    infer(model.model)
    todo, seen = list(lower_region(model.model)[1]), []
    while todo:
        seen.append(todo.pop())
        todo.extend(seen[-1].sources)
    assert not any(isinstance(node, Normalise) for node in seen), "a kernel would compute the element twice"
