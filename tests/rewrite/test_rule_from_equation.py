"""Equations as rules: where they apply, where they refuse, and that the answer stays."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from bricolage.equations.evaluate_term import is_equal
from bricolage.equations.term import read_equation
from bricolage.rewrite.catalogue import choose_rules, rules, written_rules
from bricolage.rewrite.engine.apply import apply_once, failed_matches
from bricolage.rewrite.rule import Example, MatchFailure
from bricolage.rewrite.rule_from_equation import EquationRule
from bricolage.rewrite.rules import generated
from bricolage.rewrite.unification import solve
from bricolage.rulemaking.verification import verify
from bricolage.testing import contexts
from tests.rewrite.checking import check_equal

GENERATED = [rule for rule in generated.generated_rules() if isinstance(rule, EquationRule)]
SOME = GENERATED[::29]


def rule(equation: str) -> EquationRule:
    return EquationRule("planted", read_equation(equation))


@pytest.mark.parametrize("one", SOME, ids=lambda one: one.name)
def test_generated_rules_hold_on_their_examples(one: EquationRule) -> None:
    for example in one.examples:
        before, after = example.model(), example.model()
        assert apply_once(after, one) is not None, [str(failed) for failed in failed_matches(before, one)]
        check_equal(before, after, attempts=1)
    assert verify(one).status != "not proved"


@pytest.mark.slow
@pytest.mark.parametrize("one", GENERATED, ids=lambda one: one.name)
def test_all_generated_rules_hold(one: EquationRule) -> None:
    test_generated_rules_hold_on_their_examples(one)


@pytest.mark.parametrize(
    "context", [contexts.inner_outputs, contexts.second_users, contexts.in_branches], ids=lambda c: c.__name__
)
@pytest.mark.parametrize("one", SOME[::3], ids=lambda one: one.name)
def test_generated_rules_in_contexts(one: EquationRule, context: Callable[[ir.Model], ir.Model]) -> None:
    before, after = (context(one.examples[0].model()) for _ in range(2))
    if apply_once(after, one) is None:
        assert "another output" in str(failed_matches(before, one))
    check_equal(before, after, attempts=1)


@pytest.mark.parametrize("one", SOME[::2], ids=lambda one: one.name)
def test_generated_rules_with_symbolic_dimensions(one: EquationRule) -> None:
    before, after = (contexts.symbolic(one.examples[0].model()) for _ in range(2))
    if apply_once(after, one) is None:  # its operators are written with sizes
        assert any(why in str(failed_matches(before, one)) for why in ("not a number", "no fixed size", "a size is"))
    check_equal(before, after, sizes=contexts.sizes(before), attempts=1)


def test_many_generated_rules_apply_with_a_symbolic_batch() -> None:
    assert sum(apply_once(contexts.symbolic(one.examples[0].model()), one) is not None for one in SOME) > 0.4 * len(
        SOME
    )


REFUSED = {
    "broadcast": ("add(mul(a, b), mul(a, c)) = mul(a, add(b, c))", "float[2,3] a, float[2,3] b, float[3] c",
                  "t = Mul(a, b) u = Mul(a, c) y = Add(t, u)", {}, "form|leading axes"),
    "batches": ("matmul(matmul(a, b), c) = matmul(a, matmul(b, c))", "float[5,2,3] a, float[3,4] b, float[4,2] c",
                "t = MatMul(a, b) y = MatMul(t, c)", {}, "leading axes"),
    "permutation": ("transpose(transpose(x)) = x", "float[2,3,4] x",
                    "t = Transpose<perm=[1,0,2]>(x) y = Transpose<perm=[1,0,2]>(t)", {}, "permutes otherwise"),
    "axis": ("split_rows_0(concat_rows(a, b)) = a", "float[2,3] a, float[2,3] b",
             "t = Concat<axis=1>(a, b) y, z = Split<axis=1>(t, i)", {"i": [3, 3]}, "another axis"),
    "place of the cut": ("split_rows_0(concat_rows(a, b)) = a", "float[2,3] a, float[2,3] b",
                         "t = Concat<axis=0>(a, b) y, z = Split<axis=0>(t, i)", {"i": [1, 3]}, "a size is"),
    "three parts": ("split_rows_0(concat_rows(a, b)) = a", "float[2,3] a, float[2,3] b",
                    "t = Concat<axis=0>(a, b) y, u, v = Split<axis=0>(t, i)", {"i": [2, 1, 1]}, "two outputs"),
    "strides": ("conv3(x, enlarge(w)) = conv1(x, w)", "float[1,2,5,5] x, float[3,2,1,1] w",
                "t = Pad(w, i) y = Conv<pads=[1,1,1,1],strides=[2,2]>(x, t)", {"i": [0, 0, 1, 1, 0, 0, 1, 1]}, "strides"),
    "pads of a kernel": ("conv3(x, enlarge(w)) = conv1(x, w)", "float[1,2,5,5] x, float[3,2,1,1] w",
                         "t = Pad(w, i) y = Conv<pads=[1,1,1,1]>(x, t)", {"i": [0, 0, 2, 1, 0, 0, 0, 1]}, "other pads"),
    "filler": ("conv3_valid(pad(x), w) = conv3(x, w)", "float[1,2,5,5] x, float[3,2,3,3] w",
               "t = Pad(x, i, f) y = Conv(t, w)", {"i": [0, 0, 1, 1, 0, 0, 1, 1], "f": 1.0}, "with 0"),
    "bias": ("conv3_valid(pad(x), w) = conv3(x, w)", "float[1,2,5,5] x, float[3,2,3,3] w, float[3] b",
             "t = Pad(x, i) y = Conv(t, w, b)", {"i": [0, 0, 1, 1, 0, 0, 1, 1]}, "more than 2 inputs"),
    "groups": ("conv1_group2(x, w) = conv3_group2(x, enlarge(w))", "float[1,6,5,5] x, float[3,2,1,1] w",
               "y = Conv<group=3>(x, w)", {}, "group"),
    "padding not counted": ("average_pool3(scale(x, s)) = scale(average_pool3(x), s)", "float[1,2,5,5] x, float s",
                            "t = Mul(x, s) y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1]>(t)", {}, "count_include_pad"),
    "no factor": ("average_pool3(scale(x, s)) = scale(average_pool3(x), s)", "float[1,2,5,5] x, float[5] s",
                  "t = Mul(x, s) y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1],count_include_pad=1>(t)", {}, "form"),
    "integers": ("add(mul(a, b), mul(a, c)) = mul(a, add(b, c))", "int32[2,3] a, int32[2,3] b, int32[2,3] c",
                 "t = Mul(a, b) u = Mul(a, c) y = Add(t, u)", {}, "floating-point"),
    "dropped axis": ("sum_rows(sum_rows(x)) = sum_rows(x)", "float[2,3] x",
                     "t = ReduceSum(x, i) y = ReduceSum<keepdims=0>(t, i)", {"i": [0]}, "drops"),
    "slice of the middle": ("slice_rows_0(concat_rows(a, b)) = a", "float[2,3] a, float[2,3] b",
                            "t = Concat<axis=0>(a, b) y = Slice(t, i, j, k)", {"i": [1], "j": [3], "k": [0]}, "front"),
    "unknown sizes": ("split_rows_0(concat_rows(a, b)) = a", "float[M,3] a, float[N,3] b",
                      "t = Concat<axis=0>(a, b) y, z = Split<axis=0>(t, i)", {"i": [2, 2]}, "size|number"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    equation, inputs, body, weights, why = REFUSED[name]
    model = Example(inputs, body, weights).model()
    one = rule(equation)
    reasons = [failed.reason for failed in failed_matches(model, one)]
    assert apply_once(model, one) is None
    assert any(any(word in reason for word in why.split("|")) for reason in reasons), reasons


def test_any_rank_and_split_place() -> None:
    one = rule("add(matmul(a, b), matmul(c, d)) = matmul(concat_columns(a, c), concat_rows(b, d))")
    example = Example(
        "float[2,5,3,4] a, float[2,5,4,6] b, float[2,5,3,1] c, float[2,5,1,6] d",
        "t = MatMul(a, b) u = MatMul(c, d) y = Add(t, u)",
    )
    before, after = example.model(), example.model()
    assert apply_once(after, one) is not None
    check_equal(before, after)
    back = EquationRule("back", one.stated.turned)
    assert apply_once(after, back) is not None
    check_equal(before, after)


def test_two_roots_become_parts_of_one() -> None:
    one = rule(
        "matmul(x, v), matmul(x, w) = split_columns_0(matmul(x, concat_columns(v, w))), "
        "split_columns_1(matmul(x, concat_columns(v, w)))"
    )
    example = Example("float[2,3] x, float[3,4] v, float[3,5] w", "a = MatMul(x, v) b = MatMul(x, w)", outputs="b, a")
    before, after = example.model(), example.model()
    applied = apply_once(after, one)
    assert applied is not None and len(applied.removed) == 2
    assert sorted(node.op_type for node in after.graph) == ["Concat", "MatMul", "Split"]
    check_equal(before, after)
    back = EquationRule("back", one.stated.turned)
    assert apply_once(after, back) is not None
    check_equal(before, after)


def test_sizes_are_solved_for() -> None:
    assert solve([(("...", ("+", "a", "b")), (7, 5)), (("a",), (2,))]) == {"...": (7,), "a": 2, "b": 3}
    assert solve([((("*", "a", "b"), "c"), (6, "N")), (("b",), (3,))]) == {"a": 2, "b": 3, "c": "N"}
    assert solve([((("pad", "a"), ("+", "b", "b")), (7, 8))]) == {"a": 5, "b": 4}
    for wrong in (
        [((("+", "b", "b"),), (7,))],
        [((("+", "a", "b"),), (7,))],
        [(("a", "a"), (2, 3))],
        [(("a",), ("?",))],
    ):
        with pytest.raises(MatchFailure):
            solve(wrong)


def test_the_catalogue_knows_them() -> None:
    assert {one.family for one in GENERATED} == {"generated"} and all(one.cost_based for one in GENERATED)
    assert len({one.name for one in rules()}) == len(rules()) == len(written_rules()) + len(GENERATED)
    assert choose_rules(["generated"]) == GENERATED


def test_rules_that_lose_accuracy_are_left_out_where_precision_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GENERATED[0], "unstable", True)
    assert GENERATED[0] in choose_rules(["generated"]) and GENERATED[0] not in choose_rules(["generated"], stable=True)


def test_substitutions_are_distinct_and_as_many_as_promised() -> None:
    found = generated.substitutions()
    assert len(set(found)) == len(found) >= 743
    for line in found[::31]:
        equation = read_equation(line)
        assert equation.size <= 4 and str(equation.canonical) == line and is_equal(equation, seed=11)


def test_generated_rules_on_the_examples_of_others() -> None:
    """Where a rule matches what it was not made for, the answer stays too."""
    applied = 0
    for one in GENERATED[5::41]:
        model = one.examples[-1].model()
        types = {node.op_type for node in model.graph}
        for other in GENERATED[::2]:
            roots = other.patterns()[0]
            first = roots[0] if isinstance(roots, tuple) else roots
            after = model.clone() if other is not one and first.types & types else None
            if after is not None and apply_once(after, other) is not None:
                check_equal(model, after, attempts=1)
                applied += 1
                if applied == 5:
                    return
    pytest.fail(f"only {applied} applied")
