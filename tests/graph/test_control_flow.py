"""Control flow that is decided before anything runs, against the ONNX reference on the model as it came."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bricolage.frontends import to_model
from bricolage.graph.control_flow import inline_decided
from bricolage.graph.control_values import deciding_inputs
from bricolage.graph.graph import Graph
from bricolage.graph.model_interface import give_defaults
from bricolage.graph.prepare import prepare
from tests.graph.models import parse

X = np.float32([1.0, -2.0, 3.0])


class Branches:
    """Random models of x and s in which s decides If operators that may lie in each other, capture what is around them, hand out
    what they do not compute, and stand in the body of a Loop."""

    def __init__(self, seed: int) -> None:
        self.draw, self.count = Random(seed), 0
        self.constants: list[onnx.TensorProto] = []

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, self.name()))
        return self.constants[-1].name

    def condition(self, nodes: list[onnx.NodeProto]) -> str:
        """Whether s is, or is at most, a number."""
        other, result, shown = self.constant(np.int64(self.draw.randrange(3))), self.name(), self.name()
        nodes.append(helper.make_node(self.draw.choice(["Equal", "LessOrEqual"]), ["s", other], [result]))
        nodes.append(helper.make_node("Cast", [result], [shown], to=TensorProto.BOOL))
        return shown

    def steps(self, around: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Operators on some of the values around them, and the name of the result."""
        nodes: list[onnx.NodeProto] = []
        values = list(around)
        for _ in range(self.draw.randrange(0 if depth else 1, 3)):
            kind = self.draw.choice(["Add", "Neg", "If", "If", "Loop"] if depth < 3 else ["Add", "Neg"])
            result = self.name()
            if kind == "Add":
                nodes.append(helper.make_node("Add", [self.draw.choice(values), self.draw.choice(values)], [result]))
            elif kind == "Neg":
                nodes.append(helper.make_node("Neg", [self.draw.choice(values)], [result]))
            elif kind == "If":
                condition = self.condition(nodes)
                ways = [self.body(values, depth) for _ in range(2)]
                nodes.append(helper.make_node("If", [condition], [result], then_branch=ways[0], else_branch=ways[1]))
            else:
                nodes.append(self.loop(values, result, depth))
            values.append(result)
        return nodes, values[-1] if nodes else self.draw.choice(values)

    def body(self, around: list[str], depth: int) -> onnx.GraphProto:
        nodes, result = self.steps(around, depth + 1)
        if not nodes or self.draw.random() < 0.3:
            nodes.append(helper.make_node("Identity", [result], [own := self.name()]))
            result = own
        return helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)])

    def loop(self, around: list[str], result: str, depth: int) -> onnx.NodeProto:
        turn, going, carried, still = (self.name() for _ in range(4))
        nodes, end = self.steps([*around, carried], depth + 1)
        nodes.append(helper.make_node("Identity", [end], [last := self.name()]))
        nodes.append(helper.make_node("Identity", [going], [still]))
        info = helper.make_tensor_value_info
        body = helper.make_graph(
            nodes,
            "loop",
            [
                info(turn, TensorProto.INT64, []),
                info(going, TensorProto.BOOL, []),
                info(carried, TensorProto.FLOAT, None),
            ],
            [info(still, TensorProto.BOOL, []), info(last, TensorProto.FLOAT, None)],
        )
        trips = self.constant(np.int64(self.draw.randrange(3)))
        return helper.make_node("Loop", [trips, "", self.draw.choice(around)], [result], body=body)

    def model(self) -> onnx.ModelProto:
        nodes, result = self.steps(["x"], 0)
        condition = self.condition(nodes)
        ways = [self.body(["x", result], 1) for _ in range(2)]
        nodes.append(helper.make_node("If", [condition], ["y"], then_branch=ways[0], else_branch=ways[1]))
        info = helper.make_tensor_value_info
        inputs = [info("x", TensorProto.FLOAT, [3]), info("s", TensorProto.INT64, [])]
        graph = helper.make_graph(nodes, "made", inputs, [info("y", TensorProto.FLOAT, [3])], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def folded(proto: onnx.ModelProto, **values: np.ndarray) -> Graph:
    """The graph with inputs as constants."""
    model = to_model(proto)
    give_defaults(model, {name: ir.tensor(array, name=name) for name, array in values.items()})
    return prepare(model, {})


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), value=st.integers(0, 3))
def test_folded_models_answer_as_the_reference_does(seed: int, value: int) -> None:
    proto, s = Branches(seed).model(), np.int64(value)
    wanted = ReferenceEvaluator(proto).run(None, {"x": X, "s": np.asarray(s)})[0]
    graph = folded(proto, s=np.asarray(s))
    assert [info.name for info in graph.inputs] == ["x"]
    assert not any(node.op_type == "If" for node in graph.model.graph.all_nodes())
    written = ir.to_proto(graph.model)
    onnx.checker.check_model(written, full_check=True)
    np.testing.assert_array_equal(ReferenceEvaluator(written).run(None, {"x": X})[0], wanted)


NESTED = """<ir_version: 8, opset_import: ["" : 18]> nested (float[n,4] x, int64 s) => (float[m,k] y) {
    two = Constant<value: tensor = int64 {2}>() c = Equal(s, two) p = Exp(x) q = Sqrt(p)
    y = If(c) <
      then_branch = a () => (float[i,j] r) { n = Size(p) f = Constant<value: tensor = int64 {8}>() d = Equal(n, f)
        r = If(d) < then_branch = b () => (float[h,l] t) { t = Neg(p) },
                                    else_branch = e () => (float[h,l] u) { u = Abs(p) } > },
      else_branch = g () => (float[i,j] w) { w = Identity(q) } > }"""


@pytest.mark.parametrize(("s", "n", "kept"), [(2, 2, ["Exp", "Neg"]), (2, 3, ["Exp", "Abs"]), (1, 2, ["Exp", "Sqrt"])])
def test_sizes_decide_once_the_branch_around_them_is_taken(s: int, n: int, kept: list[str]) -> None:
    """What only the other branch reads goes, and open sizes of the output are known."""
    model = to_model(onnx.parser.parse_model(NESTED))
    give_defaults(model, {"s": ir.tensor(np.int64(s), name="s")})
    graph = prepare(model, {"n": n})
    assert [operator.op_type for operator in graph.operators] == kept
    assert graph.outputs[0].name == "y" and graph.outputs[0].shape == (n, 4)


def test_a_branch_that_is_not_decided_stays() -> None:
    model = to_model(onnx.parser.parse_model(NESTED))
    assert not inline_decided(model)
    assert [operator.op_type for operator in prepare(model, {"n": 2}).operators].count("If") == 1


def test_a_body_that_stays_is_folded_too() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> m (float[4] x, bool c, int64 s) => (float[4] y) {
        one = Constant<value: tensor = int64 {1}>() two = Constant<value: tensor = float {2}>()
        y = If(c) <
          then_branch = a () => (float[4] r) { d = Equal(s, one) f = Exp(two) r = If(d) <
              then_branch = b () => (float[4] t) { t = Mul(x, f) }, else_branch = e () => (float[4] u) { u = Abs(x) } > },
          else_branch = g () => (float[4] w) { w = Neg(x) } > }"""
    model = to_model(onnx.parser.parse_model(text))
    give_defaults(model, {"s": ir.tensor(np.int64(1), name="s")})
    nodes = [node.op_type for node in prepare(model, {}).model.graph.all_nodes()]
    assert sorted(nodes) == ["If", "Mul", "Neg"]


def test_an_input_that_decides_and_nothing_else_is_named() -> None:
    graph = prepare(to_model(onnx.parser.parse_model(NESTED)), {"n": 2})
    assert deciding_inputs(graph.model) == {"s": 1}


@pytest.mark.parametrize(
    "more",
    ["t = Cast<to = 1>(s) y = Mul(z, t)", "t = Cast<to = 1>(s) u = Add(t, t) y = Add(z, u)"],
    ids=["read", "later"],
)
def test_an_input_that_is_computed_with_is_not(more: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]> m (float[4] x, int64 s) => (float[4] y) {{
        one = Constant<value: tensor = int64 {{1}}>() c = Equal(s, one)
        z = If(c) < then_branch = a () => (float[4] r) {{ r = Neg(x) }}, else_branch = b () => (float[4] u1) {{ u1 = Abs(x) }} >
        {more} }}"""
    assert deciding_inputs(parse(text)) == {}


def test_defaults_settle_the_sizes_that_others_share() -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> m (float[n,k] x, float[k] s) => (float[n,k] y) { y = Add(x, s) }'
    model = to_model(onnx.parser.parse_model(text))
    give_defaults(model, {"s": ir.tensor(np.float32([1, 2]), name="s")})
    x, s = model.graph.inputs
    assert list(s.shape or ()) == [2] and list(x.shape or ())[1] == 2 == list(model.graph.outputs[0].shape or ())[1]
    assert prepare(model, {"n": 3}).outputs[0].shape == (3, 2)
