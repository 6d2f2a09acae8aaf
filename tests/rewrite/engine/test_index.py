"""The index leaves out no pattern that matches, keeps their order, and leaves out most of the others."""

from __future__ import annotations

import pytest

from bricolage.rewrite.catalogue import written_rules
from bricolage.rewrite.engine.index import RuleIndex
from bricolage.rewrite.engine.matching import PatternMatcher
from bricolage.rewrite.rule import Example, Rule

INDEX = RuleIndex(written_rules(), 25)


@pytest.mark.parametrize("rule", written_rules(), ids=lambda rule: rule.name)
def test_no_match_is_left_out(rule: Rule) -> None:
    for example in rule.examples:
        model = example.model()
        matcher = PatternMatcher(model.graph.opset_imports[""])
        for node in model.graph.all_nodes():
            every, found = list(INDEX.rooted(node.op_type)), list(INDEX.at(node))
            places = [one.order for one in found]
            assert places == sorted(set(places)) and set(places) <= {one.order for one in every}
            for one in every:
                if one.order not in places:
                    assert not any(matcher.matches(one.roots, node))


def test_what_begins_otherwise_is_left_out() -> None:
    model = Example("float[2,3] x, float[2,3] z", "t = Softplus(x) y = Mul(t, z)").model()
    product = model.graph[-1]
    found = {one.rule.name for one in INDEX.at(product)}
    assert "remove-neutral" in found and "recognise-swish" not in found
    assert len(found) < len({one.rule.name for one in INDEX.rooted("Mul")}) / 2
    assert "Mul" in INDEX and "NeverThere" not in INDEX and not RuleIndex([], 25)
