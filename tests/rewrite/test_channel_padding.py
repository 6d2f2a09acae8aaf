"""Channels filled up to whole vectors: in networks of any shape, wherever it says it does, and equal."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bricolage.graph.graph import describe
from bricolage.graph.prepare import simplify
from bricolage.rewrite.catalogue import find_rule
from bricolage.rewrite.engine.apply import apply_everywhere, apply_once
from bricolage.rewrite.rule import Example
from tests.rewrite.checking import check_equal

WIDEN, FILL = find_rule("pad-channels"), find_rule("fill-groups")
COUNTS = (12, 13, 16, 30)
"""Three that may become whole vectors, and one that is."""
KEEPING = ("Relu({})", "Sigmoid({})", "Clip({})", "AveragePool<kernel_shape=[3], pads=[1,1]>({})", "Mul({}, s)")


@dataclass
class Network:
    """A network in the making: results with their channels, and what is written so far."""

    results: list[tuple[str, int]]
    body: list[str] = field(default_factory=list)
    weights: dict[str, tuple[int, ...] | float] = field(default_factory=lambda: {"s": 0.7})

    def add(self, text: str, channels: int) -> None:
        name = f"r{len(self.results)}"
        self.body.append(f"{name} = {text}")
        self.results.append((name, channels))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = shape
        return name


@st.composite
def networks(draw: st.DrawFn) -> Example:
    """Convolutions, dense and depthwise, with everything around them that keeps, adds or joins channels."""
    network = Network([("x", 12), ("z", 30)])
    for _ in range(draw(st.integers(2, 9))):
        value, count = draw(st.sampled_from(network.results[-4:]))
        kind = draw(st.sampled_from(["dense", "dense", "depthwise", "depthwise", "keeping", "sum", "join", "strange"]))
        if kind == "dense":
            wanted, bias = draw(st.sampled_from(COUNTS)), draw(st.booleans())
            more = f", {network.weight(wanted)}" if bias else ""
            network.add(f"Conv({value}, {network.weight(wanted, count, 1)}{more})", wanted)
        elif kind == "depthwise":
            network.add(f"Conv<group={count}, pads=[1,1]>({value}, {network.weight(count, 1, 3)})", count)
        elif kind == "keeping":
            network.add(draw(st.sampled_from(KEEPING)).format(value), count)
        elif kind == "strange":
            network.add(f"Softmax<axis=1>({value})", count)
        else:
            alike = [name for name, channels in network.results if kind == "join" or channels == count]
            other = draw(st.sampled_from(alike))
            channels = dict(network.results)[other]
            text = f"Add({value}, {other})" if kind == "sum" else f"Concat<axis=1>({value}, {other}, {value})"
            network.add(text, count if kind == "sum" else 2 * count + channels)
    names = [name for name, _ in network.results[2:]]
    inner = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    outputs = ", ".join(dict.fromkeys([*inner, names[-1]]))
    return Example("float[2,12,5] x, float[2,30,5] z", " ".join(network.body), network.weights, outputs=outputs)


def depthwise(model: ir.Model) -> list[int]:
    """Channels of all depthwise convolutions."""
    groups = [node.attributes.get_int("group", 1) for node in model.graph if node.op_type == "Conv"]
    return [group for group in groups if group is not None and group > 1]


@settings(max_examples=30, deadline=None)
@given(networks())
def test_networks_of_any_shape(example: Example) -> None:
    before, after = example.model(), example.model()
    simplify(before)
    simplify(after)
    applied = apply_everywhere(after, WIDEN, lambda _: True, lambda _: None)
    event(f"{min(len(applied), 3)} parts")
    check_equal(before, after, attempts=1)
    for count in depthwise(after):
        assert count % 16 == 0 or -count % 16 > count / 3, "every depthwise convolution has whole vectors"


def test_a_chain_of_separable_convolutions_is_widened_without_a_copy() -> None:
    example = Example(
        "float[1,3,6,6] x",
        "a = Conv(x, u) b = Relu(a) c = Conv<group=42, pads=[1,1,1,1]>(b, v) d = Conv(c, w) e = Add(d, a)"
        " f = Conv<group=42, pads=[1,1,1,1]>(e, v) g = Concat<axis=1>(f, e, a) h = Relu(g) y = Conv(h, q)",
        {"u": (42, 3, 1, 1), "v": (42, 1, 3, 3), "w": (42, 42, 1, 1), "q": (4, 126, 1, 1)},
    )
    model = example.model()
    assert apply_once(model, WIDEN) is not None
    assert [node.op_type for node in model.graph] == [node.op_type for node in example.model().graph]
    assert depthwise(model) == [48, 48]
    joined = next(node for node in model.graph if node.op_type == "Concat")
    assert describe(joined.outputs[0]).shape == (1, 144, 6, 6)
    check_equal(example.model(), model)


def test_parts_that_read_from_each_other_are_all_widened() -> None:
    example = Example(
        "float[1,3,6] x",
        "a = Conv(x, u) b = Conv<group=30>(a, v) c = Conv(b, w) d = Conv<group=13>(c, p) e = Conv(d, q) f = Relu(e)"
        " g = Concat<axis=1>(f, e) y = Conv(g, r)",
        {
            "u": (30, 3, 1),
            "v": (30, 1, 2),
            "w": (13, 30, 1),
            "p": (13, 1, 2),
            "q": (12, 13, 1),
            "r": (2, 24, 1),
        },
    )
    model = example.model()
    assert len(apply_everywhere(model, WIDEN, lambda _: True, lambda _: None)) == 3
    assert depthwise(model) == [32, 16] and not any(node.op_type in ("Pad", "Slice") for node in model.graph)
    check_equal(example.model(), model)


def test_groups_are_filled_by_as_few_as_do() -> None:
    for groups, own, filled in ((32, 4, 8), (32, 8, 16), (4, 24, 2)):
        channels = groups * own
        example = Example(f"float[1,{channels},3] x", f"y = Conv<group={groups}>(x, w)", {"w": (channels, own, 2)})
        model = example.model()
        assert apply_once(model, FILL) is not None
        assert depthwise(model) == [filled]
        check_equal(example.model(), model, attempts=1)


def test_operands_that_are_absent_stay_absent() -> None:
    example = Example(
        "float[1,3,6] x",
        "a = Conv(x, u) b = Conv<group=12>(a, v) g = Concat<axis=1>(b, b) h = Clip(g, , m) y = Conv(h, q)",
        {"u": (12, 3, 1), "v": (12, 1, 2), "q": (2, 24, 1), "m": 0.2},
    )
    model = example.model()
    assert apply_once(model, WIDEN) is not None
    assert depthwise(model) == [16]
    check_equal(example.model(), model)


def test_what_is_cut_is_known() -> None:
    """Without axes, a Slice begins at the first, whatever comes behind them."""
    example = Example(
        "float[1,12,6] x",
        "a = Conv<group=12>(x, v) b = Slice(a, s, e, , t) y = Conv(b, w)",
        {"v": (12, 1, 2), "w": (2, 12, 1), "s": [0, 0], "e": [1, 12], "t": [1, 1]},
    )
    model = example.model()
    apply_everywhere(model, WIDEN, lambda _: True, lambda _: None)
    check_equal(example.model(), model)


def test_added_channels_stay_finite() -> None:
    example = Example(
        "float[1,12,6] x",
        "a = Conv(x, u) b = Conv<group=12>(a, v) p = Pad(b, i, f) m = MaxPool<kernel_shape=[2]>(p) y = Conv(m, w)",
        {"u": (12, 12, 1), "v": (12, 1, 2), "w": (2, 12, 1), "i": [0, 0, 1, 0, 0, 0], "f": float("-inf")},
    )
    model = example.model()
    apply_everywhere(model, WIDEN, lambda _: True, lambda _: None)
    padded = next(node for node in model.graph if node.op_type == "Pad" and len(node.inputs) > 2)
    assert depthwise(model) == [16] and describe(padded.outputs[0]).shape == (1, 12, 6)
    check_equal(example.model(), model)
