"""Each rule where its pattern is not alone: read elsewhere, with open dimensions, inside a sub-graph. The answer stays, the graph
stays valid, and the rule applies to one of its examples at least: those that do not, and why, are named."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import onnx_ir as ir
import pytest

from bricolage.rewrite.catalogue import written_rules
from bricolage.rewrite.engine.apply import apply_once, rewrite
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.rules.mutants import generated_mutants
from bricolage.testing import contexts
from tests.rewrite.checking import check_equal
from tests.rewrite.test_rules import in_turn as examples_in_turn

BODIES = [
    pytest.param(
        rule, context, marks=() if number % 4 == 2 * which else pytest.mark.slow, id=f"{rule.name}-{context.__name__}"
    )
    for number, rule in enumerate(written_rules())
    for which, context in enumerate((contexts.in_loop, contexts.in_scan))
]
"""A loop for one rule in four, a scan for another; weekly both for each."""
NOT_WHERE_READ_ELSEWHERE = {
    "move-transpose-behind-function": "a transpose that is read elsewhere stays, so that moving it brings not profitable nearer",
    "move-layout-border": "the same of all transposes of a part",
    "move-reshape-behind-function": "the same of a view",
    "reorder-products": "a chain whose inner products are needed is computed in that order",
}
NOT_WITH_SECOND_USERS = {
    **NOT_WHERE_READ_ELSEWHERE,
    "split-heads-behind-rotary": "another reader than Attention takes no heads side by side",
}
NOT_WITH_A_SYMBOLIC_BATCH = {
    "remove-expand": "a dimension of unknown size may be 1, and is expanded then",
    "reshape-around-product": "inference does not see that the second view undoes the first",
    "dilation-into-batch": "the right side is written with sizes",
    **dict.fromkeys((rule.name for rule in generated_mutants()), "the right side is written with sizes"),
    "corrected-stride-in-channels": "the right side is written with sizes",
    "stride-into-channels": "the right side is written with sizes",
    "batch-into-width": "the batch becomes pads, which are numbers",
    "recognise-interleaved-rotary-embedding": "views with sizes written out are not known to have the shape of x",
}
NOT_WITH_CAPTURED_CONSTANTS = dict.fromkeys(
    [
        "move-reshapes-behind-operator",
        "reshape-around-product",
        "transpose-between-reshapes",
        "recognise-interleaved-rotary-embedding",
        "remove-concat-split",
        "compose-slices",
        "slice-before-pad",
        "split-heads-behind-rotary",
        "heads-into-attention",
        "repeated-heads-into-attention",
        "compose-reductions",
        "sum-into-mean",
    ],
    "inference sees no shapes and axes across the border, so that the shape of what they make is not known",
)


def in_turn(which: int) -> Any:
    """One rule in three; the others are for `make test-all`: a rule runs in some of the contexts."""
    cases = [
        pytest.param(rule, marks=() if number % 3 == which else pytest.mark.slow, id=rule.name)
        for number, rule in enumerate(written_rules())
    ]
    return pytest.mark.parametrize("rule", cases)


Context = Callable[[ir.Model], ir.Model]
extents = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one", "every"])
"""The first example to which a rule applies, or weekly all of them."""


def check(rule: Rule, context: Context, exceptions: Collection[str], every: bool, attempts: int = 1) -> None:
    """The rule applies to an example in this context, or to none if it is an exception; the answer stays."""
    applied = 0
    for example in rule.examples:
        before, after = context(example.model()), context(example.model())
        if apply_once(after, rule) is not None:
            check_equal(before, after, sizes=contexts.sizes(before), attempts=attempts)
            applied += 1
            if not every:
                break
    assert (applied > 0) == (rule.name not in exceptions)


@extents
@in_turn(0)
def test_values_that_are_graph_outputs_stay(rule: Rule, every: bool) -> None:
    check(rule, contexts.inner_outputs, NOT_WHERE_READ_ELSEWHERE, every)


@extents
@in_turn(1)
def test_values_that_are_read_elsewhere_stay(rule: Rule, every: bool) -> None:
    check(rule, contexts.second_users, NOT_WITH_SECOND_USERS, every)


@extents
@in_turn(2)
def test_symbolic_dimensions(rule: Rule, every: bool) -> None:
    check(rule, contexts.symbolic, NOT_WITH_A_SYMBOLIC_BATCH, every)


@extents
@in_turn(1)
def test_weights_of_the_enclosing_graph(rule: Rule, every: bool) -> None:
    check(rule, partial(contexts.in_branches, captured=True), NOT_WITH_CAPTURED_CONSTANTS, every, attempts=2)


def test_exceptions_are_few_and_known() -> None:
    """Mutants, which are enumerated, count as one."""
    names, mutants = {rule.name for rule in written_rules()}, {rule.name for rule in generated_mutants()}
    for exceptions in (NOT_WITH_SECOND_USERS, NOT_WITH_A_SYMBOLIC_BATCH, NOT_WITH_CAPTURED_CONSTANTS):
        assert set(exceptions) <= names and len(exceptions.keys() - mutants) + 1 < 0.1 * len(names - mutants)


@examples_in_turn(0)
def test_branches_of_an_if_are_rewritten(rule: Rule, index: int) -> None:
    before, after = (contexts.in_branches(rule.examples[index].model()) for _ in range(2))
    applied = [apply_once(after, rule)] if rule.cost_based else rewrite(after, [rule])
    assert applied and applied[0] is not None
    check_equal(before, after, attempts=1)


@pytest.mark.parametrize(("rule", "context"), BODIES)
def test_bodies_of_loop_and_scan_are_rewritten(rule: Rule, context: Context) -> None:
    example = rule.examples[0]
    before, after = context(example.model()), context(example.model())
    applied = [apply_once(after, rule)] if rule.cost_based else rewrite(after, [rule])
    assert applied and applied[0] is not None
    check_equal(before, after, attempts=1)
