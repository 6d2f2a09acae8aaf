"""The pipeline does what its configuration says: rules left out, cost-based ones everywhere but where they must not."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bricolage.errors import UnsupportedOpset
from bricolage.graph.prepare import simplify
from bricolage.plan.rewrite_steps import EnabledRule, RewriteConfig
from bricolage.rewrite.catalogue import written_rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.rewrite.engine.pipeline import PipelineRunner, cost_based_rules, newer_opsets, operator_signature
from bricolage.rewrite.rule import Example
from tests.rewrite.checking import check_equal

TWO = Example(
    "float[1,2,1,4,4] x",
    "a = Conv(x, v) r = Relu(a) b = Conv<pads=[0,1,1,0,1,1]>(r, w) s = Mul(b, c) y = Relu(s)",
    {"v": (3, 2, 1, 1, 1), "w": (2, 3, 1, 3, 3), "c": 2.0},
)


def ranks(model: ir.Model) -> list[int]:
    return [len(node.inputs[1].shape or ()) for node in model.graph if node.op_type == "Conv" and node.inputs[1]]


def start() -> ir.Model:
    model = TWO.model()
    simplify(model)
    return model


def test_the_default_is_the_fixpoint_and_changes_nothing() -> None:
    model = start()
    result = PipelineRunner(model, written_rules()).run(RewriteConfig())
    alone = model.clone()
    applications = rewrite(alone, written_rules())
    assert [a.rule for a in result.applications] == [a.rule for a in applications] == ["scale-into-linear"]
    assert [n.op_type for n in result.model.graph] == [n.op_type for n in alone.graph]
    assert [n.op_type for n in model.graph] == ["Conv", "Relu", "Conv", "Mul", "Relu"]


@pytest.mark.parametrize(
    "config",
    [
        RewriteConfig(),
        RewriteConfig(frozenset({"scale-into-linear"})),
        RewriteConfig(enabled=(EnabledRule("join-spatial-dimensions"),)),
        RewriteConfig(opset=20),
    ],
    ids=str,
)
def test_the_given_model_is_not_changed(config: RewriteConfig) -> None:
    model = start()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    runner = PipelineRunner(model, written_rules())
    first, second = (runner.run(config) for _ in range(2))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert first.applications == second.applications and first.model is not second.model


def test_a_canonicalising_rule_is_left_out() -> None:
    result = PipelineRunner(start(), written_rules()).run(RewriteConfig(frozenset({"scale-into-linear"})))
    assert not result.applications and "Mul" in [n.op_type for n in result.model.graph]


def test_a_cost_based_rule_is_applied_everywhere_and_canonicalising_ones_follow() -> None:
    result = PipelineRunner(start(), written_rules()).run(
        RewriteConfig(enabled=(EnabledRule("join-spatial-dimensions"),))
    )
    assert ranks(result.model) == [4, 4]
    check_equal(TWO.model(), result.model)
    assert len(result.signatures["join-spatial-dimensions"]) == 2
    assert [n.op_type for n in result.model.graph].count("Reshape") == 2, "those between cancel"


def test_not_at_operators_of_a_signature() -> None:
    runner = PipelineRunner(start(), written_rules())
    both = runner.run(RewriteConfig(enabled=(EnabledRule("join-spatial-dimensions"),)))
    for number, kind in enumerate(both.signatures["join-spatial-dimensions"]):
        config = RewriteConfig(enabled=(EnabledRule("join-spatial-dimensions", frozenset({kind})),))
        result = runner.run(config)
        assert ranks(result.model)[number] == 5 and sorted(ranks(result.model)) == [4, 5]
        check_equal(TWO.model(), result.model)
        assert runner.run(config).signatures == result.signatures, "the same every time"


def test_a_cost_based_rule_that_undoes_itself_comes_to_an_end() -> None:
    example = Example("float[1,2,4,5] x", "y = Conv<pads=[0,1,0,1]>(x, w)", {"w": (3, 2, 1, 3)})
    result = PipelineRunner(example.model(), written_rules()).run(
        RewriteConfig(enabled=(EnabledRule("turn-convolution"),))
    )
    assert [a.rule for a in result.applications].count("turn-convolution") == 1


def test_operators_that_are_alike_have_one_signature() -> None:
    example = Example("float[2,3] x", "a = Relu(x) b = Relu(a) c = Tanh(b) y = Concat<axis=0>(a, c)")
    nodes = list(example.model().graph)
    assert (
        operator_signature(nodes[0]) == operator_signature(nodes[1])
        and len({operator_signature(node) for node in nodes}) == 3
    )


def test_a_rule_that_looks_for_partners_itself_is_applied_too() -> None:
    example = Example(
        "float[1,3] x, float[2,3] z", "a = MatMul(x, w) b = MatMul(z, w) y = Concat<axis=0>(b, a)", {"w": (3, 4)}
    )
    result = PipelineRunner(example.model(), written_rules()).run(RewriteConfig(enabled=(EnabledRule("join-rows"),)))
    assert [node.op_type for node in result.model.graph].count("MatMul") == 1
    check_equal(example.model(), result.model)


def test_every_enabled_rule_names_a_cost_based_rule() -> None:
    cost_based = [rule.name for rule in written_rules() if rule.cost_based]
    assert [entry.rule for entry in cost_based_rules(written_rules())] == cost_based


def test_a_configuration_says_what_it_is() -> None:
    config = RewriteConfig(frozenset({"b", "a"}), (EnabledRule("c"), EnabledRule("d", frozenset({"Conv"}))))
    assert str(config) == "canonicalising rules, without a, without b, c, d except at one operator signature"
    assert str(RewriteConfig(opset=23)) == "opset 23, canonicalising rules"


def test_a_model_is_raised_for_more_rules() -> None:
    example = Example(
        "float[2,3] x",
        "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)",
        {"r": 2**0.5, "o": 1.0, "h": 0.5},
    )
    runner, own = PipelineRunner(example.model(), written_rules()), example.model().graph.opset_imports[""]
    assert newer_opsets(example.model(), written_rules())[-1] > own
    assert "Gelu" not in [node.op_type for node in runner.run(RewriteConfig()).model.graph]
    raised = runner.run(RewriteConfig(opset=20)).model
    assert [node.op_type for node in raised.graph] == ["Gelu"] and raised.graph.opset_imports[""] == 20
    check_equal(example.model(), raised)
    with pytest.raises(UnsupportedOpset):
        runner.run(RewriteConfig(opset=999))
