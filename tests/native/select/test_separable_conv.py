"""Grouped convolutions with pointwise ones behind them: when they are one kernel, and that it is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.graph.inference import infer
from bricolage.native.fuse.fusion import Blocks, plan
from bricolage.native.fuse.fusion_target import Target
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.node_order import order_nodes
from bricolage.native.ir.tensors import Conv
from tests.backends import regions
from tests.native.targets import FUSION
from tests.native.ways import BOUNDS, ISAS, configs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small is joined, too."""
    monkeypatch.setattr(Target, "resident_bytes", 0)


def separable(
    folder: Path,
    channels: int,
    group: int,
    outputs: int,
    sizes: tuple[int, ...] = (9, 30),
    kernel: tuple[int, ...] = (3, 3),
    stride: int = 1,
    *,
    images: int = 1,
    body: str = "y = Relu (p)",
    more: str = "",
) -> RegionModel:
    """A convolution, a grouped one with its bias and ReLU, and a pointwise one (`p`). All pads but the last are full."""
    ones, rank = [1] * len(kernel), len(kernel)
    pads = [extent // 2 for extent in kernel] + [extent // 2 for extent in kernel[:-1]] + [0]
    out = [
        (size + pads[i] + pads[i + rank] - extent) // stride + 1
        for i, (size, extent) in enumerate(zip(sizes, kernel, strict=True))
    ]
    text = f"group = {channels // group}, pads = {pads}, strides = {[stride] * rank}"
    return regions.region(
        folder,
        f"""
        a = Conv (x, u)
        b = Conv <{text}> (a, v, bias)
        c = Relu (b)
        p = Conv (c, w)
        {body}
        """,
        f"float{[images, 5, *sizes]} x",
        f"float{[images, outputs, *out]} y{more}",
        u=regions.noise(channels, 5, *ones) / np.float32(2),
        v=regions.noise(channels, group, *kernel, seed=1) / np.sqrt(np.float32(group * np.prod(kernel))),
        bias=regions.noise(channels, seed=2),
        w=regions.noise(outputs, channels, *ones, seed=3) / np.sqrt(np.float32(channels)),
    )


def planned(model: RegionModel) -> FusionPlan:
    infer(model.model)
    return plan(*lower_region(model.model), FUSION)


def kinds(model: RegionModel) -> list[str]:
    return [kernel.kind for kernel in planned(model).kernels]


@st.composite
def models(draw: st.DrawFn, folder: Path) -> RegionModel:
    group = draw(st.sampled_from([1, 1, 2, 4, 16]))
    channels = group * draw(st.integers(max(2, -(-16 // group)), -(-40 // group)))
    kernel, sizes = draw(
        st.sampled_from(
            [((3, 3), (9, 30)), ((5, 5), (21, 16)), ((3, 2), (30, 17)), ((4,), (90,)), ((1, 3, 3), (2, 21, 17))]
        )
    )
    images, stride = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    body = draw(st.sampled_from(["y = Relu (p)", "y = Add (p, p)", "s = Sigmoid (p) \n y = Mul (s, p)"]))
    return separable(folder, channels, group, draw(st.integers(1, 40)), sizes, kernel, stride, images=images, body=body)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name, indirect=True)
@pytest.mark.usefixtures("isa")
@given(data=st.data())
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_is_one_kernel_and_right(data: st.DataObject, tmp_path: Path) -> None:
    config = data.draw(st.sampled_from(configs()))
    model = data.draw(models(tmp_path))
    rows = int(np.prod(model.outputs[0].sizes)) // model.outputs[0].sizes[1]
    one = rows >= model.outputs[0].sizes[1]
    assert ("separable" in kinds(model)) == one
    x = regions.noise(*model.inputs[0].sizes, seed=4)
    threads = data.draw(st.integers(1, 3))
    found = regions.answer(Native(), model, x, config=config, resources=Resources(threads=threads))
    assert regions.error(found, regions.reference(model, x)) < BOUNDS[config]


@pytest.mark.usefixtures("small")
def test_what_lies_between_is_stored_nowhere(tmp_path: Path) -> None:
    found = planned(separable(tmp_path, 32, 1, 16))
    (kernel,) = [kernel for kernel in found.kernels if kernel.kind == "separable"]
    assert kernel.fused_producer is not None
    first, between = kernel.fused_producer
    assert isinstance(first, Conv) and first.depthwise
    assert between not in found.buffers and between is not first


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("y = Relu (p)", ", float[1, 32, 9, 29] c"),
        ("d = Conv (c, w) \n y = Add (p, d)", ""),
        ("m = ReduceMax (c) \n y = Mul (p, m)", ""),
    ],
    ids=["an output", "read twice", "read by another root"],
)
def test_what_others_need_is_stored(body: str, more: str, tmp_path: Path) -> None:
    model = separable(tmp_path, 32, 1, 16, body=body, more=more)
    assert "separable" not in kinds(model)


@pytest.mark.parametrize(("sizes", "one"), [((64, 64), False), ((65, 66), True)])
def test_small_tensors_are_stored(sizes: tuple[int, ...], one: bool, tmp_path: Path) -> None:
    """32 channels of 64 x 63 floats stay in a cache of half a megabyte."""
    assert ("separable" in kinds(separable(tmp_path, 32, 1, 16, sizes))) == one


@pytest.mark.usefixtures("small")
def test_borders_between_blocks_hold(tmp_path: Path) -> None:
    model = separable(tmp_path, 32, 1, 16)
    infer(model.model)
    inputs, outputs = lower_region(model.model)
    last = [node for node in order_nodes(outputs) if isinstance(node, Conv)][-1]
    blocks = {node: int(node in (last, *outputs)) for node in order_nodes(outputs)}
    assert "separable" not in [kernel.kind for kernel in plan(inputs, outputs, FUSION, strategy=Blocks(blocks)).kernels]


@pytest.mark.usefixtures("small")
def test_its_work_is_that_of_both(tmp_path: Path) -> None:
    model = separable(tmp_path, 32, 1, 16)
    made = Native().kernel_report(model, regions.F32, Resources(threads=1))
    (kernel,) = [kernel for kernel in made.kernels if kernel.kind == "separable"]
    places = 9 * 29
    assert kernel.flops == places * (2 * 32 * 9 + 2 * 32 + 2 * 16 * 32 + 16)
    assert kernel.bytes == 4 * (9 * 30 * 32 + 32 * 9 + 32 + 16 * 32 + places * 16)
