"""Every rule applies to its examples and gives the same answer; it refuses its counterexamples, for the reason given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import pytest

from bricolage.graph.prepare import prepare, symbolic_dimensions
from bricolage.rewrite.catalogue import written_rules
from bricolage.rewrite.engine.apply import apply_once, failed_matches, rewrite
from bricolage.rewrite.rule import Example, GraphRule, Rule
from bricolage.verify.compare import relative_error
from bricolage.verify.inputs import draw_inputs
from tests.rewrite.checking import check_equal

CASES = [
    pytest.param(rule, i, marks=pytest.mark.slow if i % 2 else (), id=f"{rule.name}-{i}")
    for rule in written_rules()
    for i in range(len(rule.examples))
]
"""Every second example, the first one among them; weekly all."""
COUNTERCASES = [(rule, i) for rule in written_rules() for i in range(len(rule.counterexamples))]


def in_turn(which: int) -> Any:
    """The first example of every second rule; the others are for `make test-all`."""
    cases = []
    for number, rule in enumerate(written_rules()):
        for index in range(len(rule.examples)):
            kept = index == 0 and number % 2 == which
            cases.append(pytest.param(rule, index, marks=() if kept else pytest.mark.slow, id=f"{rule.name}-{index}"))
    return pytest.mark.parametrize(("rule", "index"), cases)


def label(value: object) -> str:
    return value.name if isinstance(value, Rule) else str(value)


def test_an_example_but_for_what_is_given() -> None:
    whole = Example("float[2] x", "y = Mul(x, w)", {"w": (2,)}, opset=20)
    assert whole.but("shape", w=(3,), v=1.0) == replace(whole, weights={"w": (3,), "v": 1.0}, why="shape")
    assert whole.but(inputs="float[N] x", body="y = Relu(x)") == replace(whole, inputs="float[N] x", body="y = Relu(x)")
    assert list(whole.but(v=1.0).weights) == ["w", "v"], "random numbers are drawn in this order"


@pytest.mark.parametrize(("rule", "index"), CASES)
def test_examples_are_rewritten_and_stay_equal(rule: Rule, index: int) -> None:
    example = rule.examples[index]
    before, after = example.model(), example.model()
    if rule.cost_based:
        assert apply_once(after, rule) is not None
    else:
        assert rewrite(after, [rule]), [str(failed) for failed in failed_matches(before, rule)]
    check_equal(before, after)


@in_turn(0)
def test_unfolded_applications_are_valid_too(rule: Rule, index: int) -> None:
    before, after = (rule.examples[index].model() for _ in range(2))
    assert apply_once(after, rule, fold=False) is not None
    check_equal(before, after, attempts=1)


@pytest.mark.parametrize(("rule", "index"), COUNTERCASES, ids=label)
def test_counterexamples_are_refused(rule: Rule, index: int) -> None:
    example = rule.counterexamples[index]
    model = example.model()
    reasons = [failed.reason for failed in failed_matches(model, rule)]
    assert not rewrite(model, [rule])
    if rule.cost_based:
        assert apply_once(model, rule) is None
    if example.why:
        assert any(example.why in reason for reason in reasons), reasons


@pytest.mark.parametrize("rule", written_rules(), ids=label)
def test_every_rule_states_its_equation_and_has_examples(rule: Rule) -> None:
    assert rule.equation and rule.examples
    assert all(isinstance(example, Example) for example in (*rule.examples, *rule.counterexamples))
    if rule.conditions and not isinstance(rule, GraphRule):
        assert rule.counterexamples, "a rule with conditions shows where they do not hold"


@in_turn(1)
def test_onnxruntime_runs_what_rules_make(rule: Rule, index: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    before, after = (rule.examples[index].model() for _ in range(2))
    apply_once(after, rule)
    inputs = draw_inputs(prepare(before, dict.fromkeys(symbolic_dimensions(before), 3)).model)
    try:
        expected = _run(onnxruntime, before, inputs)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        pytest.skip(f"onnxruntime lacks the original: {error}")
    error = relative_error(_run(onnxruntime, after, inputs), expected)
    assert error <= 1e-4


def _run(onnxruntime: Any, model: ir.Model, inputs: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    return list(session.run(None, dict(inputs)))
