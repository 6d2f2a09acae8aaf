"""DNNFusion's 25 pairs of mapping types (PLDI 2021, table 3) walked through the planner: how many kernels each pair takes here, and
that all of them together compute the right numbers; images in other layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fusion.cells import decisions
from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.backends.native.structural_parameters import LAYOUT
from bricolage.conformance.regions import answers
from bricolage.errors import Refused
from bricolage.graph.inference import infer
from bricolage.native.fuse.channels_last import Layout
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.verify.reference import evaluate
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.targets import FUSION

SIZE = 64
FIRST = {
    "One-to-One": "{t} = Relu(x)",
    "One-to-Many": "{t} = Add(x, column)",
    "Many-to-Many": "{t} = MatMul(x, w)",
    "Reorganize": "{t} = Reshape(x, turned)",
    "Shuffle": "{t} = Transpose<perm=[1,0]>(x)",
}
SECOND = {
    "One-to-One": "{y} = Tanh({t})",
    "One-to-Many": "{y} = Mul({t}, column)",
    "Many-to-Many": "{y} = MatMul({t}, w)",
    "Reorganize": "{y} = Reshape({t}, turned)",
    "Shuffle": "{y} = Transpose<perm=[1,0]>({t})",
}
PAIRS = [(first, second) for first in FIRST for second in SECOND]
RED = {("Many-to-Many", "Many-to-Many")}
"""Of the two that the paper never fuses, the one that takes two kernels here too. The other, One-to-Many before Many-to-Many, is
computed where the product packs its rows, if the model of memory says so."""
CONSTANTS = {
    "w": np.linspace(-1.0, 1.0, SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE),
    "column": np.linspace(0.5, 1.5, SIZE, dtype=np.float32).reshape(SIZE, 1),
    "turned": np.array([SIZE, SIZE], np.int64),
}


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}, {b}" for a, b in PAIRS])
def test_each_pair_is_one_kernel_but_two_products(first: str, second: str, tmp_path: Path) -> None:
    body = f"{FIRST[first].format(t='t')} \n {SECOND[second].format(t='t', y='y')}"
    used = {name: value for name, value in CONSTANTS.items() if name in body}
    end = f"float[{SIZE}, {SIZE}]"
    region = regions.region(tmp_path, body, f"{end} x", f"{end} y", **used)
    (decided,) = decisions(region)
    infer(region.model)
    found = plan(*lower_region(region.model), FUSION)
    assert len(found.kernels) == (2 if (first, second) in RED else 1)
    assert decided.cell == (first.lower(), second.lower()) and decided.joined == ((first, second) not in RED)


@pytest.mark.slow
def test_all_pairs_compute_what_they_should(tmp_path: Path) -> None:
    names = [f"y{number}" for number in range(len(PAIRS))]
    body = " \n ".join(
        f"{FIRST[first].format(t=f't{n}')} \n {SECOND[second].format(t=f't{n}', y=f'y{n}')}"
        for n, (first, second) in enumerate(PAIRS)
    )
    end = f"float[{SIZE}, {SIZE}]"
    model = regions.region(tmp_path, body, f"{end} x", ", ".join(f"{end} {name}" for name in names), **CONSTANTS).model
    infer(model)
    feeds = {"x": np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)}
    expected = evaluate(model, feeds)
    for found in answers(Native(), model, feeds, regions.F32, Resources(threads=2)):
        for name in names:
            wanted = np.asarray(expected[name])
            assert np.linalg.norm(np.asarray(found[name]) - wanted) <= 1e-5 * np.linalg.norm(wanted), name


@pytest.mark.parametrize(
    ("layout", "last"), [("channels last", (True, True)), ("dominant", (True, False)), ("rows", (False, False))]
)
def test_the_layout_of_an_image_follows_what_is_asked(layout: Layout, last: tuple[bool, bool], tmp_path: Path) -> None:
    """Between two convolutions, and behind a product whose matrices have the rank of an image."""
    model = regions.region(
        tmp_path,
        "a = Conv<pads=[1,1,1,1]>(x, k) \n b = Conv<pads=[1,1,1,1]>(a, k) \n c = Relu(z) \n d = MatMul(c, c) \n e = MatMul(d, c)",
        "float[1,8,6,6] x, float[1,8,32,32] z",
        "float[1,8,6,6] b, float[1,8,32,32] e",
        k=np.ones((8, 8, 3, 3), np.float32),
    ).model
    infer(model)
    found = plan(*lower_region(model), FUSION, layout=layout)
    between = [buffer for buffer in found.buffers.values() if buffer.storage[0] == "arena"]
    assert {size: any(b.strides[1] == 1 for b in between if b.shape[-1] == size) for size in (6, 32)} == {
        6: last[0],
        32: last[1],
    }


def test_a_layout_that_differs_is_a_structure_to_be_measured(tmp_path: Path) -> None:
    """Where a block's dominant operator is no convolution, its layout is a parameter; elsewhere there is no choice."""
    k = np.ones((8, 8, 3, 3), np.float32)
    mixed = regions.region(
        tmp_path,
        "a = Conv<pads=[1,1,1,1]>(x, k) \n c = Relu(z) \n d = MatMul(c, c) \n e = MatMul(d, c)",
        "float[1,8,6,6] x, float[1,8,32,32] z",
        "float[1,8,6,6] a, float[1,8,32,32] e",
        k=k,
    )
    resources, dominant = Resources(threads=1), KernelConfig("f32", ((LAYOUT, "dominant"),))
    assert dominant in Native().structures(mixed, regions.F32, resources)
    plain = regions.region(
        tmp_path,
        "a = Conv<pads=[1,1,1,1]>(x, k) \n y = Conv<pads=[1,1,1,1]>(a, k)",
        "float[1,8,6,6] x",
        "float[1,8,6,6] y",
        k=k,
    )
    assert dominant not in Native().structures(plain, regions.F32, resources)
    with pytest.raises(Refused, match="layout"):
        Native().compile(plain, KernelConfig("f32", ((LAYOUT, "diagonal"),)), resources)
    found = (
        Native()
        .compile(mixed, dominant, resources)
        .run([np.ones((1, 8, 6, 6), np.float32), np.ones((1, 8, 32, 32), np.float32)])
    )
    assert found[1][0, 0, 0, 0] == 32.0 * 32.0 and found[0][0, 0, 3, 3] == 72.0
