"""Rules of several families together: what one makes possible, another does."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bricolage.rewrite.catalogue import find_rule, rules
from bricolage.rewrite.engine.apply import apply_once, rewrite
from bricolage.rewrite.rule import Example
from tests.rewrite.checking import check_equal


def explored(example: Example, *names: str) -> ir.Model:
    """The model after these cost-based rules, each as often as it stands here, and the canonicalising ones after them."""
    model = example.model()
    for name in names:
        assert apply_once(model, find_rule(name)) is not None, name
    rewrite(model, rules())
    check_equal(example.model(), model, own_error=True)
    return model


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def groups(model: ir.Model) -> list[int]:
    return [node.attributes.get_int("group", 1) for node in model.graph if node.op_type == "Conv"]


def test_a_small_kernel_is_enlarged_and_merged() -> None:
    """TASO: a 1×1 and a 3×3 convolution of one input become one."""
    example = Example(
        "float[1,3,6,6] x",
        "a = Conv(x, v) b = Conv<pads=[1,1,1,1]>(x, w) y = Concat<axis=1>(a, b)",
        {"v": (4, 3, 1, 1), "w": (2, 3, 3, 3)},
    )
    assert kinds(explored(example, "enlarge-kernel", "merge-convolutions")) == ["Conv"]


def test_32_groups_become_four_convolutions() -> None:
    """As in TASO's result on ResNeXt; which of them to halve again is for a search."""
    example = Example("float[1,64,5,5] x", "y = Conv<group=32, pads=[1,1,1,1]>(x, w)", {"w": (64, 2, 3, 3)})
    model = explored(example, *["split-groups"] * 3)
    assert len(groups(model)) == 4 and sum(groups(model)) == 32
    assert kinds(model).count("Concat") == 1, "a Concat of Concats is one"


def test_branches_become_groups_and_come_apart_again() -> None:
    """HFTA: three convolutions on three inputs are one in three groups; what only joined their results is gone."""
    example = Example(
        "float[1,2,6] x, float[1,2,6] z, float[1,2,6] u",
        "a = Conv(x, v) b = Conv(z, w) c = Conv(u, q) y = Concat<axis=1>(a, b, c)",
        {"v": (4, 2, 3), "w": (4, 2, 3), "q": (4, 2, 3)},
    )
    model = explored(example, "group-convolutions")
    assert kinds(model) == ["Concat", "Conv"] and groups(model) == [3]


def test_a_merged_product_of_which_little_is_read_is_cut() -> None:
    example = Example(
        "float[2,8] x",
        "t = MatMul(x, w) u = Add(t, b) p = Slice(u, s, e, a) y = Relu(p)",
        {"w": (8, 12), "b": (12,), "s": [2], "e": [5], "a": [1]},
    )
    model = explored(example)
    (product,) = (node for node in model.graph if node.op_type in ("Gemm", "MatMul"))
    assert product.inputs[1] is not None and tuple(product.inputs[1].shape or ()) == (8, 3)


def test_merging_and_splitting_undo_one_another() -> None:
    example = Example("float[2,3] x", "a = MatMul(x, v) b = MatMul(x, w) y = Add(a, b)", {"v": (3, 4), "w": (3, 4)})
    assert "Split" in kinds(explored(example, "merge-products"))
    assert kinds(explored(example, "merge-products", "split-of-linear")) == kinds(explored(example))


def test_the_flattened_end_of_a_channels_last_network_loses_its_transpose() -> None:
    example = Example(
        "float[2,3,4,4] x",
        "c = Conv(x, k) t = Transpose<perm=[0,2,3,1]>(c) r = Relu(t) f = Reshape(r, s) y = MatMul(f, w)",
        {"k": (5, 3, 1, 1), "s": [-1, 80], "w": (80, 6)},
    )
    assert "Transpose" not in kinds(explored(example))


@pytest.mark.parametrize("size", [8, 9])
def test_a_factorised_reduction_reads_its_input_twice(size: int) -> None:
    """NASNet's (Zoph et al., CVPR 2018): two 1×1 convolutions, on every second place from the first and from the second on, joined
    and normalised."""
    example = Example(
        f"float[1,3,{size},{size}] x",
        "p = AveragePool<kernel_shape=[1,1], strides=[2,2]>(x) a = Conv(p, v)"
        " f = Pad(x, q) g = Slice(f, s, e, d) h = AveragePool<kernel_shape=[1,1], strides=[2,2]>(g) b = Conv(h, w)"
        " t = Concat<axis=1>(a, b) y = BatchNormalization(t, m, m, m, m)",
        {
            "v": (2, 3, 1, 1),
            "w": (2, 3, 1, 1),
            "m": (4,),
            "q": [0, 0, 0, 0, 0, 0, 1, 1],
            "s": [1, 1],
            "e": [10, 10],
            "d": [2, 3],
        },
    )
    model = explored(example)
    assert sorted(kinds(model)) == ["Concat", "Conv", "Conv", "Slice"]
    (part,) = (node.outputs[0] for node in model.graph if node.op_type == "Slice")
    assert tuple(part.shape or ()) == (1, 3, 4, 4), "only what is read is cut out"
