"""Random models, random subsets and orders of rules: the graph stays valid, the answer stays, and nothing is left to do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import onnx_ir as ir
import pytest

from bricolage.rewrite.catalogue import rules, written_rules
from bricolage.rewrite.engine.apply import Application, apply_once, failed_matches, rewrite
from bricolage.rewrite.engine.fuel import Fuel
from bricolage.rewrite.engine.index import RuleIndex
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.rules import generated
from bricolage.testing import random_model
from tests.rewrite.checking import check_equal

FAST, SLOW, PART = 15, 5_000, 15
GENERATED = generated.generated_rules()


def check(seed: int) -> list[str]:
    """Rewrites one model: a few cost-based rules once each, and then a subset of the others, in some order, as long as they
    apply. The rules that were applied."""
    chance = random.Random(seed)
    chosen = [rule for rule in rules() if not rule.cost_based]
    exploring = [rule for rule in rules() if rule.cost_based]
    if chance.random() < 0.7:
        chance.shuffle(chosen)
    if chance.random() < 0.5:
        chosen = chosen[: chance.randint(1, len(chosen))]
    before, after = random_model(seed, written_rules()), random_model(seed, written_rules())
    explored = explore(after, chance.sample(exploring, chance.choice([0, 2, len(exploring)])))
    applied = rewrite(after, chosen)
    check_equal(before, after, seed=seed, attempts=1, own_error=True)
    assert not rewrite(after, chosen), "a second run finds something to do"
    assert [a.number for a in applied] == list(range(1, len(applied) + 1))
    return [application.rule for application in (*explored, *applied)]


def explore(model: ir.Model, chosen: Sequence[Rule]) -> list[Application]:
    """Applies each rule once, in this order, where it can be. Most of a thousand can not, which the index knows at once."""
    index, found = RuleIndex(chosen, model.graph.opset_imports[""]), list[Application]()
    scans = {rule.name for rule in index.graph_rules}
    possible = None
    for rule in chosen:
        if possible is None:
            nodes = model.graph.all_nodes()
            possible = scans | {indexed.rule.name for node in nodes for indexed in index.at(node)}
        if rule.name in possible and (application := apply_once(model, rule)) is not None:
            found.append(application)
            possible = None
    return found


@pytest.mark.parametrize("start", range(0, FAST, PART))
def test_random_models(start: int) -> None:
    assert sum(len(check(seed)) for seed in range(start, start + PART)) > PART


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FAST, SLOW, PART))
def test_many_random_models(start: int) -> None:
    for seed in range(start, start + PART):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(GENERATED), PART))
def test_generated_rules_among_others(start: int) -> None:
    """Models hold by chance what few of them look for: so an example of each is planted in one."""
    for seed, rule in enumerate(GENERATED[start : start + PART], start):
        before, after = random_model(seed, written_rules(), rule), random_model(seed, written_rules(), rule)
        others = random.Random(seed).sample(GENERATED, 100)
        if rule.name not in {application.rule for application in explore(after, [rule, *others])}:
            assert "another output" in str(
                failed_matches(before, rule)
            )  # what a split gives besides is an output of the model
        rewrite(after, written_rules())
        check_equal(before, after, seed=seed, attempts=1, own_error=True)


@pytest.mark.slow
def test_every_written_rule_takes_part() -> None:
    """What random models hold is what rules look for."""
    missing = {rule.name: rule for rule in written_rules()}
    for seed in range(SLOW):
        exploring = [rule for rule in missing.values() if rule.cost_based]
        for application in explore(random_model(seed, written_rules()), exploring):
            del missing[application.rule]
        chosen = [rule for rule in written_rules() if not rule.cost_based]
        random.Random(seed).shuffle(chosen)
        chosen.sort(key=lambda rule: rule.name not in missing)  # what comes first takes what others would
        for application in rewrite(random_model(seed, written_rules()), chosen):
            missing.pop(application.rule, None)
        if not missing:
            return
    pytest.fail(f"these never apply: {sorted(missing)}")


def test_the_first_applications_are_the_same_in_every_run() -> None:
    for seed in range(4):
        whole = rewrite(random_model(seed, written_rules()), rules())
        for limit in {0, 1, len(whole) // 2, len(whole)}:
            part = rewrite(random_model(seed, written_rules()), rules(), fuel=Fuel(limit))
            assert part == whole[:limit]
