"""Rules in random contexts: an example among other operators, in each context; a counterexample; the answer stays what it was."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.fuzz.findings import Feeds, Finding, smaller, store
from benchmarks.fuzz.ledger import Block
from bricolage.errors import NoReference
from bricolage.graph.prepare import prepare
from bricolage.rewrite.catalogue import rules, written_rules
from bricolage.rewrite.engine.apply import apply_once, rewrite
from bricolage.rewrite.rule import Example, Rule
from bricolage.testing import CONTEXTS, contexts, random_model
from bricolage.verify.bound import draws_for, error_limits, rounding_errors
from bricolage.verify.compare import deviation
from bricolage.verify.inputs import choose_sample
from bricolage.verify.reference import Evaluator

_BOUND = 1e-6


@dataclass(frozen=True)
class _NearMiss:
    """The examples that a rule must refuse, for planting."""

    examples: Sequence[Example]


@cache
def _rules() -> tuple[Rule, ...]:
    return tuple(rules())


def check(name: str, seed: int, folder: Path, done: Block) -> None:
    """A rule in turn; its example, or its counterexample in every fourth, among other operators; in a context in turn."""
    chance = random.Random(seed)
    everything = _rules()
    rule = everything[seed % len(everything)] if seed % 3 else chance.choice(written_rules())
    near = bool(rule.counterexamples) and seed % 4 == 3
    context = chance.choice(CONTEXTS)
    others = chance.sample(everything, chance.choice([0, 5, 50]))
    model = random_model(seed, written_rules(), _NearMiss(rule.counterexamples) if near else rule)
    around = contexts.BY_NAME[context](model)
    proto = ir.to_proto(around)
    try:
        feeds = choose_sample(prepare(ir.from_proto(proto), contexts.sizes(around)).model, seed, candidates=2).inputs
        applied, text = compare(proto, feeds, rule, others)
    except NoReference as error:
        done.void += 1
        done.notes[str(error)[:60]] += 1
        return
    except Exception as error:  # a rule or the checker fails: that is a finding
        applied, text = False, f"{type(error).__name__}: {error}"[:500]
        feeds = {}
    done.tested += 1
    done.notes[f"{'near miss' if near else 'example'} in {context or 'the open'}"] += 1
    done.notes["the rule applied"] += applied
    if not text:
        return

    def shows(part: onnx.ModelProto, given: Feeds) -> bool:
        return bool(compare(part, given, rule, others)[1])

    cut, given = smaller(proto, feeds, shows) if feeds else (proto, feeds)
    finding = Finding(name, seed, f"rule-{rule.name}", "value", f"in {context or 'the open'}: {text}", {})
    done.findings.append(store(folder / "findings", finding, cut, given, _SCRIPT.format(rule=rule.name)).name)


def compare(proto: onnx.ModelProto, feeds: Feeds, rule: Rule, others: Sequence[Rule] = ()) -> tuple[bool, str]:
    """Whether the rule applied, and what is wrong with the model after it and then the others were applied; empty if nothing is.

    Raises:
        NoReference: an operator can be evaluated by no library.
    """
    before, after = ir.from_proto(proto), ir.from_proto(proto)
    sizes = contexts.sizes(before)
    exact = Evaluator(prepare(before, sizes).model)(feeds)
    own: dict[str, float] = dict.fromkeys(exact, 0.0)
    steps: list[Callable[[], bool]] = [lambda: apply_once(after, rule) is not None]
    if others:
        steps.append(lambda: bool(rewrite(after, [one for one in others if not one.cost_based])))
    applied = [False]
    for step in steps:
        if not step():
            continue
        applied.append(step is steps[0])
        onnx.checker.check_model(ir.to_proto(after), full_check=True)
        declared = [(v.name, v.dtype) for v in after.graph.outputs]
        if declared != [(v.name, v.dtype) for v in before.graph.outputs]:
            return True, f"outputs became {declared}"
        graph = prepare(after, sizes)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = Evaluator(graph.model)(feeds)
            judged = deviation(list(found.values()), list(exact.values()), list(own.values()))
            if judged.excess > _BOUND and not any(own.values()):
                start = prepare(before, sizes)
                own = error_limits(rounding_errors(start.model, feeds, exact, draws_for(start)), exact)
                judged = deviation(list(found.values()), list(exact.values()), list(own.values()))
        if judged.excess > _BOUND:
            return any(applied), f"the error is {judged.excess:.1e}, of rounding {max(own.values(), default=0.0):.1e}"
        if [np.shape(a) for a in found.values()] != [np.shape(a) for a in exact.values()]:
            return any(applied), "shapes differ"
    return any(applied), ""


_SCRIPT = '''"""Rule {rule} changes the answer."""

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.fuzz.rules import compare
from bricolage.rewrite.catalogue import rules

rule = next(rule for rule in rules() if rule.name == "{rule}")
print(compare(onnx.load("model.onnx"), dict(np.load("inputs.npz")), rule))
'''
