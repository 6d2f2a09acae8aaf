"""Each rule where its pattern is not alone: read elsewhere, with open dimensions, inside a sub-graph. It may apply or not;
the answer stays, and the graph stays valid."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from bricolage.rewrite.apply import apply_once, rewrite
from bricolage.rewrite.catalogue import written
from bricolage.rewrite.rule import Rule
from tests.rewrite import contexts
from tests.rewrite.checking import check_equal
from tests.rewrite.test_rules import label

CASES = [(rule, i) for rule in written() for i in range(len(rule.examples))]


@pytest.mark.parametrize("context", [contexts.inner_outputs, contexts.second_users], ids=lambda c: c.__name__)
@pytest.mark.parametrize(("rule", "index"), CASES, ids=label)
def test_values_that_are_read_elsewhere_stay(rule: Rule, index: int, context: Callable[[ir.Model], ir.Model]) -> None:
    before = context(rule.examples[index].model())
    after = context(rule.examples[index].model())
    if apply_once(after, rule) is not None:
        check_equal(before, after, attempts=1)


@pytest.mark.parametrize(("rule", "index"), CASES, ids=label)
def test_symbolic_dimensions(rule: Rule, index: int) -> None:
    before, after = (contexts.symbolic(rule.examples[index].model()) for _ in range(2))
    if apply_once(after, rule) is not None:
        check_equal(before, after, sizes=contexts.sizes(before), attempts=1)


def test_most_rules_apply_with_a_symbolic_batch() -> None:
    applied = {
        rule.name
        for rule in written()
        for example in rule.examples
        if apply_once(contexts.symbolic(example.model()), rule) is not None
    }
    assert len(applied) > 0.8 * len(written()), sorted({rule.name for rule in written()} - applied)


@pytest.mark.parametrize(("rule", "index"), CASES, ids=label)
def test_branches_of_an_if_are_rewritten(rule: Rule, index: int) -> None:
    before, after = (contexts.in_branches(rule.examples[index].model()) for _ in range(2))
    applied = [apply_once(after, rule)] if rule.exploring else rewrite(after, [rule])
    assert applied and applied[0] is not None
    check_equal(before, after, attempts=2)


@pytest.mark.parametrize("context", [contexts.in_loop, contexts.in_scan], ids=lambda c: c.__name__)
@pytest.mark.parametrize("rule", written(), ids=label)
def test_bodies_of_loop_and_scan_are_rewritten(rule: Rule, context: Callable[[ir.Model], ir.Model]) -> None:
    example = rule.examples[0]
    before, after = context(example.model()), context(example.model())
    applied = [apply_once(after, rule)] if rule.exploring else rewrite(after, [rule])
    assert applied and applied[0] is not None
    check_equal(before, after, attempts=1)


@pytest.mark.parametrize("rule", written(), ids=label)
def test_weights_of_the_enclosing_graph(rule: Rule) -> None:
    before, after = (contexts.in_branches(rule.examples[0].model(), captured=True) for _ in range(2))
    if apply_once(after, rule) is not None:
        check_equal(before, after, attempts=2)
