"""Stages touch those fields of the state alone that they declare, and all of those."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.costs.entries import Cost
from bricolage.driver import final_race
from bricolage.driver.agenda import Agenda
from bricolage.driver.final_race import FinalRace
from bricolage.driver.items import items
from bricolage.driver.stage import Stage
from bricolage.driver.stages import graph_variants
from bricolage.driver.stages.graph_variants import RewriteSearch, RewriteTuning, RewrittenVariants
from bricolage.driver.stages.kernel_tuning import KernelTuning
from bricolage.driver.stages.placing import Placing
from bricolage.driver.stages.profiling import Baselines, Reference, Regions
from bricolage.driver.stages.scheduling import Scheduling
from bricolage.driver.state import DecisionState
from bricolage.measure.race_record import Race
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.rewrite_steps import RewriteConfig
from bricolage.rewrite.variants import GraphVariant
from bricolage.work.implementation import KernelConfig
from tests.driver.made_up import Answers, First, Partial, Second, Tuned, made_up_state
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")

FOUND = {one.name for one in fields(DecisionState) if one.default is not MISSING or one.default_factory is not MISSING}
"""What a decision finds; the other fields are given."""


class Watched(DecisionState):
    """A state that remembers which fields were asked for."""

    def __getattribute__(self, name: str) -> Any:
        if name in FOUND:
            object.__getattribute__(self, "__dict__").setdefault("seen", set()).add(name)
        return super().__getattribute__(name)


def touched(stage: Stage[DecisionState], state: DecisionState) -> tuple[set[str], set[str]]:
    """Fields that a stage asks for, and those that it changes."""
    held = {name: copy.copy(getattr(state, name)) for name in FOUND}
    watched = state.__dict__
    watched["seen"] = set()
    stage.run(state, Deadline(100.0))
    asked = set(watched["seen"])
    return asked, {name for name in FOUND if held[name] != state.__dict__[name]}


class MadeUpTuner:
    """Finds that one rule is left out."""

    def __init__(self, *_: object, **_more: object) -> None:
        return

    def search(self, deadline: Deadline) -> RewriteConfig:
        del deadline
        return RewriteConfig(frozenset({"scale-into-linear"}))

    def clear(self) -> None:
        return


def race_made_up(_: object, specs: Mapping[str, CandidateSpec], *_more: object, **_facts: object) -> Race:
    return Race((), {name: Cost("lost") for name in specs}, {})


def test_stages_touch_what_they_declare_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, v = np.ones((4, 4), np.float32), np.full((4, 4), 2, np.float32)
    fork = "a=Relu(x) b=MatMul(a,w) c=Tanh(b) d=MatMul(a,v) e=Exp(d) y=Add(c,e)"
    model = graph(fork, "float[4,4] x", "float[4,4] y", w=w, v=v)

    def variant(name: str) -> GraphVariant:
        return GraphVariant(name, graph(fork.replace("Exp", "Relu"), "float[4,4] x", "float[4,4] y", w=w, v=v))

    monkeypatch.setattr(graph_variants, "rewritten_variants", lambda _: [variant("rewritten")])
    monkeypatch.setattr(graph_variants, "searched_variants", lambda *_, **_more: [variant("searched-1")])
    monkeypatch.setattr(graph_variants, "tailored_variant", lambda *_: variant("tailored"))
    monkeypatch.setattr(graph_variants, "RewriteTuner", MadeUpTuner)
    monkeypatch.setattr(final_race, "race", race_made_up)
    answers = Answers({"first": 1.01, "partial": 0.5}, {"MatMul": 3.0}, on_one_core=1.0, side_by_side=0.7)
    backends = [First(), Second(), Partial(), Tuned()]
    state, measurer = made_up_state(tmp_path, model, backends, answers, options=Options(threads=2))
    measurer.pool.found = {"tuned": KernelConfig("faster", parameters=(("tile", 8),))}
    state.__class__ = Watched
    stages: list[Stage[DecisionState]] = [
        Reference(),
        Baselines(),
        RewrittenVariants(),
        Regions(),
        RewriteSearch(),
        RewriteTuning(),
        Placing(),
        Scheduling(),
        KernelTuning(),
        Agenda(items),
        FinalRace(),
    ]
    for stage in stages:
        asked, changed = touched(stage, state)
        assert stage.reads <= asked <= stage.reads | stage.adds, stage.name
        assert changed <= stage.adds, stage.name
