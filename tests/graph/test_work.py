import numpy as np
import pytest

from bricolage.graph.segments import segments
from bricolage.graph.work import flops, workload
from bricolage.work.workload import OperatorWork
from tests.graph.models import graph


@pytest.mark.parametrize(
    ("body", "inputs", "constants", "expected"),
    [
        ("y=Conv<pads=[1,1,1,1]>(x,w)", "float[1,8,5,5] x", {"w": (16, 8, 3, 3)}, 2 * 16 * 25 * 8 * 9),
        ("y=Conv<group=8>(x,w)", "float[1,8,5,5] x", {"w": (8, 1, 1, 1)}, 2 * 8 * 25),
        ("y=ConvTranspose(x,w)", "float[1,8,5,5] x", {"w": (8, 4, 2, 2)}, 2 * 8 * 25 * 4 * 4),
        ("y=MatMul(x,w)", "float[2,3,4] x", {"w": (4, 5)}, 2 * 6 * 4 * 5),
        ("y=Gemm<transA=1>(x,w)", "float[4,3] x", {"w": (4, 5)}, 2 * 3 * 4 * 5),
        ("y=Relu(x)", "float[2,3] x", {}, 6),
        ("y=Transpose(x)", "float[2,3] x", {}, 0),
        ("y=GlobalAveragePool(x)", "float[1,2,4,4] x", {}, 32),
    ],
)
def test_operations(body: str, inputs: str, constants: dict[str, tuple[int, ...]], expected: int) -> None:
    arrays = {name: np.ones(shape, np.float32) for name, shape in constants.items()}
    g = graph(body, inputs, "float[] y", **arrays)
    assert flops(g.operators[-1]) == expected


def test_a_fused_region_moves_fewer_bytes_than_its_parts() -> None:
    g = graph("a=Relu(x) y=Abs(a)", "float[100] x", "float[] y")
    assert workload(g.everything).bytes == 800
    assert sum(workload(g.region(1 << i)).bytes for i in range(2)) == 1600


def test_a_workload_says_what_a_region_computes() -> None:
    g = graph(
        "c=Conv<pads=[1,1,1,1], group=2>(x,w) y=Relu(c)",
        "float[1,8,5,5] x",
        "float[] y",
        w=np.ones((16, 4, 3, 3), np.float32),
    )
    found = workload(g.everything)
    shape, bytes_ = (1, 16, 5, 5), 16 * 25 * 4
    assert found.operators == (
        OperatorWork("Conv", "float", shape, 2 * 16 * 25 * 4 * 9, 800, 16 * 4 * 9 * 4, bytes_, kernel=(3, 3), groups=2),
        OperatorWork("Relu", "float", shape, 16 * 25, bytes_, 0, bytes_),
    )
    assert (found.read, found.constant, found.written) == (800, 16 * 4 * 9 * 4, bytes_)


def test_segments_cut_at_narrow_places_and_cover_everything() -> None:
    block = "a{i}=Relu({x}) b{i}=Abs(a{i}) c{i}=Neg(b{i}) d{i}=Tanh(c{i}) o{i}=Add(d{i},{x}) "
    body = "".join(block.format(i=i, x=f"o{i - 1}" if i else "x") for i in range(4)) + "y=Relu(o3)"
    g = graph(body, "float[64] x", "float[64] y")
    cuts = segments(g, smallest=3, largest=8)
    assert sum(cuts) == g.everything.bits and all(g.region(cut).convex for cut in cuts)
    assert all(len(g.region(cut).outputs) == 1 for cut in cuts), "no cut goes through a residual block"
