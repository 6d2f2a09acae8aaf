"""Recipes are followed as they say: gains left out, exploring rules everywhere but where they must not."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bricolage.errors import UnsupportedOpset
from bricolage.graph.prepare import simplify
from bricolage.rewrite.apply import rewrite
from bricolage.rewrite.catalogue import written
from bricolage.rewrite.recipe import Exploration, Kitchen, Recipe, explorations, opsets, place
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


def test_the_empty_recipe_is_the_fixpoint_and_changes_nothing() -> None:
    model = start()
    followed = Kitchen(model, written()).follow(Recipe())
    alone = model.clone()
    applications = rewrite(alone, written())
    assert [a.rule for a in followed.applications] == [a.rule for a in applications] == ["scale-into-linear"]
    assert [n.op_type for n in followed.model.graph] == [n.op_type for n in alone.graph]
    assert [n.op_type for n in model.graph] == ["Conv", "Relu", "Conv", "Mul", "Relu"]


def test_a_gain_is_left_out() -> None:
    followed = Kitchen(start(), written()).follow(Recipe(frozenset({"scale-into-linear"})))
    assert not followed.applications and "Mul" in [n.op_type for n in followed.model.graph]


def test_an_exploring_rule_is_applied_everywhere_and_gains_follow() -> None:
    followed = Kitchen(start(), written()).follow(Recipe(exploring=(Exploration("join-directions"),)))
    assert ranks(followed.model) == [4, 4]
    check_equal(TWO.model(), followed.model)
    assert len(followed.places["join-directions"]) == 2
    assert [n.op_type for n in followed.model.graph].count("Reshape") == 2, "those between cancel"


def test_not_at_a_kind_of_place() -> None:
    kitchen = Kitchen(start(), written())
    both = kitchen.follow(Recipe(exploring=(Exploration("join-directions"),)))
    for number, kind in enumerate(both.places["join-directions"]):
        recipe = Recipe(exploring=(Exploration("join-directions", frozenset({kind})),))
        followed = kitchen.follow(recipe)
        assert ranks(followed.model)[number] == 5 and sorted(ranks(followed.model)) == [4, 5]
        check_equal(TWO.model(), followed.model)
        assert kitchen.follow(recipe).places == followed.places, "the same every time"


def test_an_exploring_rule_that_undoes_itself_comes_to_an_end() -> None:
    example = Example("float[1,2,4,5] x", "y = Conv<pads=[0,1,0,1]>(x, w)", {"w": (3, 2, 1, 3)})
    followed = Kitchen(example.model(), written()).follow(Recipe(exploring=(Exploration("turn-convolution"),)))
    assert [a.rule for a in followed.applications].count("turn-convolution") == 1


def test_places_that_are_alike_are_one_kind() -> None:
    example = Example("float[2,3] x", "a = Relu(x) b = Relu(a) c = Tanh(b) y = Concat<axis=0>(a, c)")
    nodes = list(example.model().graph)
    assert place(nodes[0]) == place(nodes[1]) and len({place(node) for node in nodes}) == 3


def test_a_rule_that_looks_for_partners_itself_is_applied_too() -> None:
    example = Example(
        "float[1,3] x, float[2,3] z", "a = MatMul(x, w) b = MatMul(z, w) y = Concat<axis=0>(b, a)", {"w": (3, 4)}
    )
    followed = Kitchen(example.model(), written()).follow(Recipe(exploring=(Exploration("join-rows"),)))
    assert [node.op_type for node in followed.model.graph].count("MatMul") == 1
    check_equal(example.model(), followed.model)


def test_every_exploration_names_an_exploring_rule() -> None:
    exploring = [rule.name for rule in written() if rule.exploring]
    assert [exploration.rule for exploration in explorations(written())] == exploring


def test_a_recipe_says_what_it_is() -> None:
    recipe = Recipe(frozenset({"b", "a"}), (Exploration("c"), Exploration("d", frozenset({"Conv"}))))
    assert str(recipe) == "all gains, without a, without b, c, d but at one kind of place"
    assert str(Recipe(opset=23)) == "opset 23, all gains"


def test_a_model_is_raised_for_more_rules() -> None:
    example = Example(
        "float[2,3] x",
        "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h)",
        {"r": 2**0.5, "o": 1.0, "h": 0.5},
    )
    kitchen, own = Kitchen(example.model(), written()), example.model().graph.opset_imports[""]
    assert opsets(example.model(), written())[-1] > own
    assert "Gelu" not in [node.op_type for node in kitchen.follow(Recipe()).model.graph]
    raised = kitchen.follow(Recipe(opset=20)).model
    assert [node.op_type for node in raised.graph] == ["Gelu"] and raised.graph.opset_imports[""] == 20
    check_equal(example.model(), raised)
    with pytest.raises(UnsupportedOpset):
        kitchen.follow(Recipe(opset=999))
