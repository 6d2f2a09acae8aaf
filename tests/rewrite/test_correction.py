"""Mutants of convolutions: where they are wrong is found by trying, and what is wrong is computed again."""

from __future__ import annotations

from itertools import pairwise

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.rewrite.analyses.linear import Window
from bricolage.rewrite.catalogue import choose_rules, find_rule
from bricolage.rewrite.engine.apply import apply_once, failed_matches
from bricolage.rewrite.predicates import sizes
from bricolage.rewrite.rule import Example, MatchFailure, Operators
from bricolage.rewrite.rules.correction import (
    Convolve,
    CorrectedConvolution,
    CorrectedStrideInChannels,
    Mutant,
    Sizes,
    WrongBoxes,
    wrong_boxes,
)
from bricolage.rewrite.rules.mutants import generated_mutants
from bricolage.rewrite.search.graph_search import search_graphs
from bricolage.rewrite.search.search_options import METHODS, Method, SearchOptions
from tests.rewrite.checking import check_equal
from tests.rewrite.search.models import by_type

THREE = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))


def mutant(name: str) -> Mutant:
    rule = find_rule(name)
    assert isinstance(rule, CorrectedConvolution)
    return rule.mutant


def phases(
    op: Operators, data: ir.Value, _weight: ir.Value, convolve: Convolve, to: Sizes, _window: Window
) -> ir.Value:
    """The mutation behind `dilation-into-batch`, for dilations of 2: each phase of the image is an image."""
    batch, channels, height, width = sizes(data)
    pairs = op.Reshape(data, op.integers([batch, channels, height // 2, 2, width // 2, 2]))
    images = op.Reshape(
        op.Transpose(pairs, perm=[3, 5, 0, 1, 2, 4]), op.integers([-1, channels, height // 2, width // 2])
    )
    made = op.Reshape(
        convolve(images, dilations=None, pads=[1, 1, 1, 1]), op.integers([2, 2, batch, to[1], to[2] // 2, to[3] // 2])
    )
    return op.Reshape(op.Transpose(made, perm=[2, 3, 4, 0, 5, 1]), op.integers(to))


def test_seams_are_found() -> None:
    """Between two images of five columns, a window of three reads one column of the neighbour on either side."""
    found = wrong_boxes(mutant("corrected-batch-into-width"), 2, (4, 5), (4, 5), THREE)
    assert found == WrongBoxes(3, ((0, 1), (4, 5)))
    assert wrong_boxes(mutant("corrected-parts-of-height-into-batch"), 1, (8, 5), (8, 5), THREE) == WrongBoxes(
        2, ((3, 5),)
    )


def test_a_mutant_that_is_right_everywhere_needs_no_correction() -> None:
    dilated = Window((3, 3), (1, 1), (2, 2), (2, 2), (2, 2))
    assert wrong_boxes(phases, 2, (6, 8), (6, 8), dilated) is None, "the rule that is written by hand is found"
    one = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    assert wrong_boxes(mutant("corrected-batch-into-width"), 3, (2, 2), (2, 2), one) is None


def test_mutants_that_rearrange_weights() -> None:
    """With a stride of two and centred windows the phases are right everywhere, as `stride-into-channels` has them by hand."""
    strided = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
    assert wrong_boxes(CorrectedStrideInChannels().mutant, 2, (6, 8), (3, 4), strided) is None
    assert wrong_boxes(mutant("corrected-parts-of-height-into-groups"), 1, (8, 5), (8, 5), THREE) == WrongBoxes(
        2, ((3, 5),)
    )
    # A window that begins one element further behind than a centred one is right nowhere.
    with pytest.raises(MatchFailure, match="too much"):
        wrong_boxes(
            CorrectedStrideInChannels().mutant, 1, (8, 8), (4, 4), Window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1))
        )


def test_a_mutant_that_is_mostly_wrong_is_refused() -> None:
    with pytest.raises(MatchFailure, match="too much"):
        wrong_boxes(mutant("corrected-batch-into-width"), 2, (4, 3), (4, 3), THREE)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([rule.name for rule in generated_mutants()]),
    st.integers(1, 3),
    st.sampled_from([(8, 6), (12, 9), (6, 10)]),
    st.sampled_from([(1, 3), (3, 1), (3, 3), (5, 3)]),
    st.integers(1, 2),
)
def test_what_is_made_equals_the_convolution(
    rule: str, batch: int, image: tuple[int, int], kernel: tuple[int, int], groups: int
) -> None:
    pads = [size // 2 for size in kernel] * 2
    example = Example(
        f"float[{batch},2,{image[0]},{image[1]}] x",
        f"y = Conv<pads={pads}, group={groups}>(x, w)",
        {"w": (2, 2 // groups, *kernel)},
    )
    model = example.model()
    applied = apply_once(model, find_rule(rule))
    if applied is None:
        reasons = [failed.reason for failed in failed_matches(model, find_rule(rule))]
        assert reasons and any(word in reasons[0] for word in ("one image", "multiple", "too much")), reasons
        return
    check_equal(example.model(), model)


@pytest.mark.parametrize("method", METHODS)
def test_searches_meet_the_mutants(method: Method) -> None:
    """Among what they may keep are graphs that a correction leads to, equal to the first."""
    names = ["t", *(f"v{number}" for number in range(13)), "y"]  # graphs of more than twice the operators are left
    body = " ".join(["t = Conv<pads=[1,1,1,1]>(x, w)", *(f"{b} = Tanh({a})" for a, b in pairwise(names))])
    example = Example("float[4,2,6,16] x", body, {"w": (2, 2, 3, 3)})
    options = SearchOptions(method=method, alpha=20.0, graphs=6, keep=6)
    found = search_graphs(
        example.model(), choose_rules(["correction"]), by_type({"Tanh": 1.0, "Conv": 0.01}, 0.001), options
    )
    if method == "saturate":  # what it keeps is the cheapest alone
        assert found.statistics.counts.nodes > 4
        return
    made = [one for one in found.candidates if any(a.family == "correction" for a in one.applications)]
    assert made
    check_equal(example.model(), made[0].model)
