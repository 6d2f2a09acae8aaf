"""The driver: canonicalising rules where they are profitable, numbered applications, interfaces that stay, graphs left alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.errors import EndlessRewriting
from bricolage.graph.inference import infer
from bricolage.rewrite.catalogue import choose_rules, find_rule, rules
from bricolage.rewrite.engine.apply import apply_once, failed_matches, rewrite
from bricolage.rewrite.engine.fuel import Fuel
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.rule import Example, Operators, Result, Rule
from tests.rewrite.checking import check_equal, check_valid

x = AnyValue("x")


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_applications_are_numbered_and_recorded() -> None:
    model = Example("float[2,3] x", "t = Transpose(x) u = Relu(t) v = Identity(u) y = Transpose(v)").model()
    applied = rewrite(model, choose_rules(skip=["layout"]))
    assert [a.number for a in applied] == [1, 2, 3]
    assert [a.rule for a in applied] == ["remove-identity", "move-transpose-behind-function", "compose-transposes"]
    assert applied[0].removed == ("Identity Identity_2",) and applied[0].added == ()
    assert kinds(model) == ["Relu"]
    assert model.graph.node(0).metadata_props["bricolage.rule"] == "move-transpose-behind-function"


def test_a_limit_stops() -> None:
    model = Example("float[2,3] x", "t = Identity(x) u = Identity(t) y = Relu(u)").model()
    assert len(rewrite(model, rules(), fuel=Fuel(1))) == 1
    assert kinds(model) == ["Identity", "Relu"]


def test_graph_outputs_keep_name_type_and_shape() -> None:
    example = Example("float[N,3] x", "t = Transpose(x) u = Relu(t) y = Transpose(u)")
    before, after = example.model(), example.model()
    rewrite(after, rules())
    assert kinds(after) == ["Relu"]
    assert [(v.name, v.dtype, v.shape) for v in after.graph.outputs] == [
        (v.name, v.dtype, v.shape) for v in before.graph.outputs
    ]


def test_an_output_that_is_an_input_or_another_output_keeps_its_identity() -> None:
    for example in (
        Example("float[2,3] x", "y = Identity(x)"),
        Example("float[2,3] x", "t = Transpose(x) y = Transpose(t)"),
        Example("float[2,3] x", "y = Relu(x) z = Identity(y)", outputs="y, z"),
        Example("float[2,3] x", "y = Relu(x) z = Relu(x)", outputs="y, z"),
    ):
        before, after = example.model(), example.model()
        rewrite(after, rules())
        check_equal(before, after)


def test_an_output_keeps_its_name_where_other_values_become_the_same() -> None:
    body = "a = Transpose(x) b = Add(a, w) y = Transpose(b) c = Transpose(b) z = Relu(c)"
    for outputs in ("y, z", "z, y"):
        before, after = (Example("float[2,3] x", body, {"w": (1,)}, outputs=outputs).model() for _ in range(2))
        assert rewrite(after, choose_rules(["layout"]))
        assert kinds(after).count("Transpose") == 0
        check_equal(before, after)


def test_a_match_whose_inner_value_is_read_elsewhere_is_used_only_for_a_gain() -> None:
    body = "t = Conv(x, w) y = BatchNormalization(t, s, b, m, v) z = Relu(t)"
    weights = {"w": (4, 3, 3), "s": (4,), "b": (4,), "m": (4,), "v": (4,)}
    model = Example("float[1,3,5] x", body, weights, outputs="y, z").model()
    assert not rewrite(model, rules())
    reasons = [failed.reason for failed in failed_matches(model, find_rule("batch-normalization-into-linear"))]
    assert len(reasons) == 1 and reasons[0].startswith("not profitable")


def test_unused_operators_and_weights_go() -> None:
    model = Example("float[2,3] x", "t = Mul(x, c) y = Relu(x)", {"c": (3,)}).model()
    rewrite(model, rules())
    assert kinds(model) == ["Relu"] and not model.graph.initializers


def test_values_captured_by_a_body_count_as_used() -> None:
    info = helper.make_tensor_value_info
    then = helper.make_graph([helper.make_node("Neg", ["t"], ["p"])], "then", [], [info("p", 1, [3, 2])])
    other = helper.make_graph([helper.make_node("Abs", ["t"], ["q"])], "else", [], [info("q", 1, [3, 2])])
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "first", perm=[1, 0]),
        helper.make_node("Transpose", ["t"], ["u"], "second", perm=[1, 0]),
        helper.make_node("Relu", ["u"], ["y"], "relu"),
        helper.make_node("If", ["c"], ["z"], "if", then_branch=then, else_branch=other),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", 1, [2, 3]), info("c", TensorProto.BOOL, [])],
        [info("y", 1, [2, 3]), info("z", 1, [3, 2])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    before, after = ir.from_proto(proto), ir.from_proto(proto)
    infer(before), infer(after)
    assert [a.rule for a in rewrite(after, rules())] == ["compose-transposes"]
    assert kinds(after) == ["Transpose", "Relu", "If"]
    check_equal(before, after)


def test_roots_that_depend_on_one_another_are_not_merged() -> None:
    rule = find_rule("merge-products")
    chained = Example(
        "float[2,3] x", "a = MatMul(x, v) b = MatMul(a, w) c = MatMul(x, u) y = Add(b, c)", dict.fromkeys("vwu", (3, 3))
    )
    model = chained.model()
    assert apply_once(model, rule) is not None
    check_equal(chained.model(), model)


def test_opsets_without_the_operator_are_left_alone() -> None:
    gelu = find_rule("recognise-gelu")
    assert all(apply_once(example.model(), gelu) is not None for example in gelu.examples)
    older = [Example(e.inputs, e.body, e.weights, opset=18).model() for e in gelu.examples]
    assert all(apply_once(model, gelu) is None for model in older)


def test_overflowing_constants_are_not_merged() -> None:
    model = Example("float[3] x", "t = Mul(x, c) y = Mul(t, d)", {"c": 1e30, "d": 1e30}).model()
    assert not rewrite(model, rules())
    assert "not finite" in failed_matches(model, find_rule("merge-constant-factors"))[-1].reason


def test_types_are_never_mixed() -> None:
    """A BatchNormalization may have parameters of another type than its input, a Conv may not."""
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float16[1,3,5] x, float16[4,3,3] w, float[4] s) => (float16[1,4,3] y)'
        " { t = Conv(x, w) y = BatchNormalization(t, s, s, s, s) }"
    )
    proto = onnx.parser.parse_model(text)
    for name, dtype, shape in (("w", np.float16, (4, 3, 3)), ("s", np.float32, (4,))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, dtype), name))
    del proto.graph.input[1:]
    model = ir.from_proto(proto)
    infer(model)
    assert not rewrite(model, rules())
    assert "would mix" in failed_matches(model, find_rule("batch-normalization-into-linear"))[0].reason


def test_an_operator_that_does_not_take_the_type_is_not_made() -> None:
    """An Einsum takes integers of 16 bits, a MatMul does not."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (int16[3,4] a, int16[4,5] b) => (int16[3,5] y)
        { y = Einsum <equation="ij,jk->ik"> (a, b) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert not rewrite(model, rules())
    assert "unsupported type" in failed_matches(model, find_rule("einsum-to-product"))[0].reason


def test_duplicate_names_of_operators_do_no_harm() -> None:
    model = Example("float[2,3] x", "t = Transpose(x) u = Relu(t) y = Transpose(u)").model()
    for node in model.graph:
        node.name = "same"
    assert rewrite(model, rules())
    check_valid(model)


def test_operators_of_other_domains_stay() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "com.example": 1]> g (float[2,3] x) => (float[2,3] y)'
        " { t = Transpose<perm=[1,0]>(x) u = com.example.Odd(t) v = Transpose<perm=[1,0]>(u) y = Identity(v) }"
    )
    model = ir.from_proto(proto)
    infer(model)
    assert not rewrite(model, rules())
    assert kinds(model) == ["Transpose", "Odd", "Transpose", "Identity"]


class Turn(Rule):
    """Relu(x) = Abs(Relu(x)) without end"""

    family: ClassVar[str] = "wrong"
    enabling = True

    def patterns(self) -> list[Op]:
        return [op.one_of("Relu", "Sigmoid")(x, name="f")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Sigmoid(match["x"]) if match.node("f").op_type == "Relu" else op.Relu(match["x"])


def test_rules_that_undo_each_other_are_stopped() -> None:
    model = Example("float[2,3] x", "y = Relu(x)").model()
    with pytest.raises(EndlessRewriting, match="turn"):
        rewrite(model, [Turn()])
