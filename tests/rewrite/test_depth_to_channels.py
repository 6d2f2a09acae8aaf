"""The first of three spatial axes as channels: on single convolutions of any geometry, and on parts of networks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bricolage.rewrite.catalogue import find_rule, rules
from bricolage.rewrite.engine.apply import apply_everywhere, apply_once, rewrite
from bricolage.rewrite.predicates import rank
from bricolage.rewrite.rule import Example
from tests.rewrite.checking import check_equal
from tests.rewrite.test_kernel_trimming import Array, Geometry, check, geometries

RULE = find_rule("depth-into-channels")


def most_blocks(carried: Array) -> int:
    """The largest number of equal blocks along the diagonal outside of which a matrix of truth values has none."""
    made, size = carried.shape
    counts = [n for n in range(1, made + 1) if made % n == 0 == size % n]
    blocks = [np.kron(np.eye(n), np.ones((made // n, size // n))) for n in counts]
    return max(n for n, inside in zip(counts, blocks, strict=True) if not (carried & (inside == 0)).any())


@st.composite
def told_apart(draw: st.DrawFn) -> Geometry:
    """Geometries in which positions, or blocks of them, of the first spatial axis do not meet."""
    geometry = draw(geometries(spatial_ranks=(3, 3, 4)))
    kernel, stride = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 2)]))
    return replace(
        geometry,
        sizes=[draw(st.sampled_from([2, 3, 4])), *geometry.sizes[1:]],
        kernel=[kernel, *geometry.kernel[1:]],
        strides=[stride, *geometry.strides[1:]],
        dilations=[1, *geometry.dilations[1:]],
        pads=[(0, 0), *geometry.pads[1:]],
    )


@settings(deadline=None, max_examples=40)
@given(geometries(spatial_ranks=(2, 3, 3, 3, 4)) | told_apart())
def test_a_direction_becomes_channels_unless_half_are_zeros(geometry: Geometry) -> None:
    carried = geometry.met(0) >= 0
    blocks = most_blocks(carried)
    useful = carried.sum() * blocks >= 0.5 * carried.size
    groups = geometry.group == 1 or carried.shape == (blocks, blocks)
    model = check(RULE.name, geometry, applies=len(geometry.sizes) > 2 and groups and bool(useful))
    for node in model.graph:
        if node.op_type == "Conv" and rank(node.outputs[0]) < 2 + len(geometry.sizes):
            assert node.attributes.get_int("group", 1) == blocks * geometry.group
            event("groups" if blocks > 1 else "dense")


def bottleneck(depth: int, stride: int) -> Example:
    """Two blocks of a residual network over three spatial axes, the second with a shortcut and, maybe, a stride; pools around."""
    return Example(
        f"float[N,4,{depth},9,6] x",
        "i = MaxPool<kernel_shape=[3,3,3], pads=[1,1,1,1,1,1], strides=[1,2,2]>(x)"
        " a = Conv(i, u, b) c = Relu(a) d = Conv<pads=[1,1,1,1,1,1]>(c, v, b) e = Relu(d) f = Conv(e, w, p) g = Add(f, i)"
        " h = Relu(g) j = Conv(h, u, b) k = Relu(j)"
        f" l = Conv<pads=[1,1,1,1,1,1], strides=[{stride},2,2]>(k, v, b) m = Relu(l) n = Conv(m, w, p)"
        f" o = Conv<strides=[{stride},2,2]>(h, q, p) r = Add(n, o) s = Relu(r) y = GlobalAveragePool(s)",
        {"u": (2, 4, 1, 1, 1), "b": (2,), "v": (2, 2, 3, 3, 3), "w": (4, 2, 1, 1, 1), "p": (4,), "q": (4, 4, 1, 1, 1)},
    )


@pytest.mark.parametrize(("depth", "stride"), [(2, 1), (2, 2), (3, 1), (3, 2), (1, 1)])
def test_residual_blocks_are_of_two_directions_inside(depth: int, stride: int) -> None:
    example = bottleneck(depth, stride)
    model = example.model()
    assert apply_once(model, RULE) is not None
    assert apply_once(model, RULE) is None, "the whole network is one part"
    rewrite(model, rules())
    check_equal(example.model(), model, own_error=True)
    kinds = Counter(node.op_type for node in model.graph)
    assert kinds["Transpose"] <= 2 and kinds["Reshape"] <= 2
    assert kinds["Conv"] == 7 and kinds["Add"] == 2
    inner = [node for node in model.graph if node.op_type in ("Conv", "Relu", "Add")]
    assert {rank(node.outputs[0]) for node in inner} == {4}
    if stride == 1 and depth > 1:
        groups = [node.attributes.get_int("group", 1) for node in inner if node.op_type == "Conv"]
        assert groups == [depth, 1, depth, depth, 1, depth, depth]


def test_convolutions_without_groups_need_no_transposes() -> None:
    example = Example(
        "float[2,2,3,4,3] x",
        "a = Conv<pads=[1,1,1,1,1,1]>(x, v, b) c = Relu(a) y = Conv(c, w)",
        {"v": (4, 2, 3, 3, 3), "b": (4,), "w": (3, 4, 3, 2, 2)},
    )
    model = example.model()
    assert apply_once(model, RULE) is not None
    check_equal(example.model(), model)
    assert [node.op_type for node in model.graph] == ["Reshape", "Conv", "Relu", "Conv", "Reshape"]


def test_what_stands_beside_a_convolution_of_many_places_stays() -> None:
    """Of sixteen positions, six of seven weights would be zeros; of two none."""
    example = Example(
        "float[1,2,16,3,2] x, float[1,2,2,3,2] z",
        "a = Conv(x, u) c = Relu(a) d = Conv<pads=[1,0,0,1,0,0]>(c, v) e = Conv(z, u) y = Relu(e)",
        {"u": (2, 2, 1, 1, 1), "v": (2, 2, 3, 1, 1)},
        outputs="d, y",
    )
    model = example.model()
    assert len(apply_everywhere(model, RULE, lambda _: True, lambda _: None)) == 1
    check_equal(example.model(), model)
    kept = sorted(rank(node.outputs[0]) for node in model.graph if node.op_type in ("Conv", "Relu"))
    assert kept == [4, 4, 5, 5, 5]


@st.composite
def networks(draw: st.DrawFn) -> Example:
    """Operators over three spatial axes in any order; Softmax belongs to no part."""
    positions = {"x": draw(st.integers(1, 4))}
    body: list[str] = []
    read: set[str] = set()
    weights: dict[str, object] = {"s": (2,)}
    kinds = ("Conv", "Conv", "Conv", "Relu", "Add", "Add", "Mul", "PRelu", "MaxPool", "BatchNormalization", "Softmax")
    for number in range(draw(st.integers(1, 7))):
        data, kind = draw(st.sampled_from([*positions][-3:])), draw(st.sampled_from(kinds))
        made, given, attributes = positions[data], data, ""
        if kind == "Conv":
            kernel, stride = draw(st.integers(1, min(3, made))), draw(st.sampled_from([1, 1, 2]))
            pad, group = draw(st.integers(0, kernel - 1)), draw(st.sampled_from([1, 1, 1, 2]))
            attributes = f"<pads=[{pad},0,1,0,0,0], strides=[{stride},1,1], group={group}>"
            weights |= {f"w{number}": (2, 2 // group, kernel, 1, 2), f"b{number}": (2,)}
            given, made = f"{data}, w{number}, b{number}", (made + pad - kernel) // stride + 1
        elif kind == "Add":
            other = draw(st.sampled_from([value for value in positions if positions[value] == made]))
            read.add(other)
            given = f"{data}, {other}"
        elif kind in ("Mul", "PRelu"):
            own = draw(st.sampled_from([(1,), (1, 4), (made, 1, 1), (2, 1, 1, 1), (1, 2, made, 3, 1)]))
            weights[f"c{number}"], given = own, f"{data}, c{number}"
        elif kind == "MaxPool":
            attributes = "<kernel_shape=[1,2,1], pads=[0,1,0,0,0,0]>"
        elif kind == "BatchNormalization":
            given += ", s, s, s, s"
        elif kind == "Softmax":
            attributes = "<axis=2>"
        positions[f"v{number}"] = made
        read.add(data)
        body.append(f"v{number} = {kind}{attributes}({given})")
    outputs = {*positions} - read | {draw(st.sampled_from([*positions][1:]))}
    return Example(f"float[N,2,{positions['x']},3,4] x", " ".join(body), weights, outputs=", ".join(sorted(outputs)))


@settings(deadline=None, max_examples=40)
@given(networks())
def test_networks_stay_equal(example: Example) -> None:
    before, after = example.model(), example.model()
    applied = apply_everywhere(after, RULE, lambda _: True, lambda _: None)
    event(f"{len(applied)} parts")
    check_equal(before, after, attempts=1)
    assert apply_once(after, RULE) is None, "all parts are found at once"
