"""Matching among classes against matching in graphs: on an e-graph of one graph the two find the same."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import given, settings

from bricolage.rewrite.catalogue import choose_rules, written_rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.rewrite.engine.index import RuleIndex
from bricolage.rewrite.engine.matching import PatternMatcher
from bricolage.rewrite.pattern import AnyValue, op
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.saturation.ematching import MOST_LOOKS, ClassIndex
from bricolage.rewrite.search.saturation.terms import Encoder
from tests.rewrite.search.models import square_models


def both(model: ir.Model) -> tuple[set[object], set[object]]:
    """Matches of all patterns in the graph and in its e-graph, as rule, classes of the roots and of the variables."""
    opset = model.graph.opset_imports[""]
    encoder = Encoder(model.graph.opset_imports)
    classes: dict[ir.Value, int] = {}
    encoder.nodes(list(model.graph), classes)
    found, expected = set[object](), set[object]()
    matcher = PatternMatcher(opset)
    index = RuleIndex(written_rules(), opset)
    for node in model.graph:
        for indexed in index.rooted(node.op_type):
            for match in matcher.matches(indexed.roots, node):
                bound = tuple((n, None if v is None else classes[v]) for n, v in sorted(match.values.items()))
                expected.add((indexed, tuple(classes[root] for root in match.roots), bound))
    known = ClassIndex(encoder)
    for indexed in index.patterns:
        found |= {(indexed, match.classes, match.bound) for match in known.matches(indexed.roots)}
    return found, expected


@settings(max_examples=40, deadline=None)
@given(square_models(most=8))
def test_the_same_as_in_a_graph(model: ir.Model) -> None:
    rewrite(model, choose_rules(["common-subexpression"]))
    found, expected = both(model)
    assert found == expected


def test_outputs_numbers_absent_inputs_and_open_ones() -> None:
    for example in (
        Example("float[2,4] x", "a, b = Split<axis=1, num_outputs=2>(x) c = Relu(b) y = Concat<axis=1>(a, c)"),
        Example("float[2,4] x", "a = Clip(x, l, h) b = Relu(a) y = Mul(b, c)", {"l": 0.0, "h": 1.0, "c": 1.0}),
        Example(
            "float[1,3,5] x",
            "a = Conv(x, w) b = Conv(x, v, p) y = Add(a, b)",
            {"w": (4, 3, 1), "v": (4, 3, 1), "p": (4,)},
        ),
        *(
            example
            for rule in choose_rules(["activation", "normalization", "concat", "merging"])
            for example in rule.examples
        ),
    ):
        model = example.model()
        rewrite(model, choose_rules(["common-subexpression"]))
        found, expected = both(model)
        assert found == expected


def test_classes_that_contain_themselves_end() -> None:
    """With x = x · p for forty p there are forty to the power of its depth ways through a pattern."""
    names = [f"p{i}" for i in range(40)]
    model = Example(
        ", ".join(f"float[4] {name}" for name in ["x", *names]),
        " ".join(f"y{i} = Mul(x, {name})" for i, name in enumerate(names)) + " y = Relu(x)",
    ).model()
    encoder = Encoder(model.graph.opset_imports)
    classes: dict[ir.Value, int] = {}
    encoder.nodes(list(model.graph), classes)
    for node in model.graph:
        if node.op_type == "Mul":
            encoder.egraph.merge(classes[node.outputs[0]], classes[model.graph.inputs[0]])
    encoder.egraph.rebuild()
    known, deep = ClassIndex(encoder), op.Tanh(AnyValue("z"))
    for level in range(4):
        deep = op.Mul(deep, AnyValue(f"v{level}"))
    assert list(known.matches([deep])) == [] and known.looks > MOST_LOOKS
    assert len(list(known.matches([op.Mul(AnyValue("a"), AnyValue("b"))]))) >= 40 and known.looks < 100
