"""Decisions without a processor: backends that only claim, a measurer that knows every answer, and a state around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from bricolage.backends.interface import ANY, Backend, Claim, RegionModel, op
from bricolage.backends.kernel_trials import KernelTiming
from bricolage.base.budget import DecisionBudget
from bricolage.base.codec import encode
from bricolage.base.options import Options, Precision
from bricolage.base.progress import Silent
from bricolage.costs.entries import Cost, Outcome, TrialRecord
from bricolage.costs.latency import Latency
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.driver.session import Session
from bricolage.driver.stages.profiling import Reference
from bricolage.driver.state import DecisionState
from bricolage.graph.graph import Graph
from bricolage.graph.store import Store
from bricolage.measure.log import MeasurementLog
from bricolage.measure.measurer import Event, Measurer, judge_cost
from bricolage.measure.specs import CandidateSpec, Regime, RegionTask, Stop, never
from bricolage.measure.worker_process import Answer
from bricolage.plan.program_step import Step
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from bricolage.work.config_space import REGION, ConfigSpace
from bricolage.work.implementation import Implementation, KernelConfig, named
from tests.driver.test_candidates import Elementwise, Everything


class First(Everything):
    name = "first"


class Second(Everything):
    name = "second"


class Third(Everything):
    name = "third"


class Partial(Elementwise):
    """Accepts no matrix products."""

    name = "partial"


class Bold(Partial):
    """Tries what it does not claim, in two configurations."""

    name = "bold"
    tries_whole = True

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        del precision, device
        return named("f32", "f32-tiles")


class BoldSluggish(Partial):
    """As `Bold`, and it compiles slowly."""

    name = "bold-sluggish"
    tries_whole = True
    compiles_slowly = True


class Read(Everything):
    """One of those that read most models."""

    name = "read"
    always_measured = True


class ReadToo(Read):
    name = "read-too"


class Sluggish(Everything):
    name = "sluggish"
    compiles_slowly = True


class Tuned(Everything):
    name = "tuned"
    tunable = True


class Untuned(Everything):
    name = "untuned"
    tunable = True


class Tiled(Everything):
    """A configuration for products, refused where there are none (by `Answers.wants`)."""

    name = "tiled"

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        del precision, device
        return named("f32", "f32-tiles")


class Narrow(Everything):
    """Has a lower precision."""

    name = "narrow"

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        del precision, device
        return named("f32", "bf16")


class Fusing(Everything):
    """Has a switch for its optimisations, which may refuse what it runs without them."""

    name = "fusing"
    optimiser_refuses = True

    def unoptimised(self, config: KernelConfig) -> KernelConfig | None:
        del config
        return KernelConfig("f32-unoptimised")


class Spinning(Everything):
    """Has threads that may spin while they wait, or not."""

    name = "spinning"
    teams = ("one-thread", "waiting")


class Dense(Everything):
    """A kernel library that knows one pattern: a product, and what is added to it."""

    name = "dense"

    def claims(self) -> Iterable[Claim]:
        return [Claim("dense", op("Add", op("MatMul"), ANY))]


REFERENCES = {
    one.name: f"{__name__}:{one.__name__}"
    for one in (
        First,
        Second,
        Third,
        Partial,
        Bold,
        BoldSluggish,
        Read,
        ReadToo,
        Sluggish,
        Tuned,
        Untuned,
        Tiled,
        Narrow,
        Fusing,
        Dense,
        Spinning,
    )
}
"""For the registry."""


def latency(ms: float, low: float | None = None, high: float | None = None) -> Latency:
    return Latency(ms, ms * 0.99 if low is None else low, ms * 1.01 if high is None else high, 9)


@dataclass
class Answers:
    """What a made-up measurer says. Who runs something is named as in a plan ("first f32") or by its backend."""

    factors: Mapping[str, float] = field(default_factory=dict)
    """On the time of every operator."""
    operators: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds by type; 1 for the others."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Relative ones; 0 for the others."""
    failures: Mapping[str, tuple[Outcome, str]] = field(default_factory=dict)
    wants: Mapping[str, str] = field(default_factory=dict)
    """The type of operator without which it refuses a region."""
    on_one_core: float = 2.0
    """How many times as long anything takes on a group of the cores."""
    side_by_side: float = 1.0
    """On the time of plans with a schedule."""

    def cost(self, spec: CandidateSpec) -> Cost:
        total, error = 0.0, 0.0
        for step in spec.steps:
            named = self._of(self.failures, step)
            if named is not None:
                return Cost(named[0], reason=named[1])
            error = max(error, self._of(self.errors, step) or 0.0)
            nodes = RegionModel(step.path).model.graph
            wanted = self._of(self.wants, step)
            if wanted is not None and not any(node.op_type == wanted for node in nodes):
                return Cost("refused", reason=f"no {wanted}")
            ms = sum(self.operators.get(node.op_type, 1.0) for node in nodes)
            total += ms * (self._of(self.factors, step) or 1.0)
        total *= self.side_by_side if spec.cores else 1.0
        total *= self.on_one_core if spec.device.is_group else 1.0
        return Cost("ok", latency(total), error)

    @staticmethod
    def _of(table: Mapping[str, Any], step: Step) -> Any:
        one = step.implementation
        return table.get(str(one), table.get(one.backend))


class MadeUpPool:
    """Workers that tune as told: `found` by backend, None where the search crashes."""

    def __init__(self) -> None:
        self.cluster = None
        self.found: dict[str, KernelConfig | None] = {}
        self.tuned: list[Implementation] = []

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        yield

    def worker(self, regime: Regime) -> Regime:
        return regime

    def end(self, regime: Regime) -> None:
        del regime

    def ask(self, worker: Regime, limit_s: float, command: str, **facts: Any) -> Answer:
        assert limit_s > 0
        (backend,) = worker.backends
        config = KernelConfig(facts["step"]["implementation"]["config"]["name"])
        found = self.found.get(backend)
        if found is None:
            self.tuned.append(Implementation(backend, config))
            return Answer("crashed", "a made-up crash")
        if command == "space":
            self.tuned.append(Implementation(backend, config))
            values = {name: (value,) for name, value in found.parameters} or {"useless": (True,)}
            return Answer("ok", facts={"space": encode(ConfigSpace.of(config, values))})
        assert command == "trial"
        if not facts["builds"]:
            return Answer("ok", facts={"usual": {REGION: 1.0}, "tasks_a_build": 1, "builds_at_once": 1})
        best = [list(one) for one in found.parameters]
        rounds = facts["rounds"]
        trials = [
            {REGION: encode(KernelTiming((0.5 if build[REGION] == best and best else 2.0,) * rounds, (1.0,) * rounds))}
            for build in facts["builds"]
        ]
        return Answer("ok", facts={"trials": trials})


class MadeUpDatabase:
    """Every transfer takes a microsecond; configurations are kept."""

    def __init__(self) -> None:
        self.configs: dict[str, object] = {}

    def get_transfer(self, key: str) -> dict[str, object]:
        del key
        return {"ms": 0.001}

    def get_config(self, key: str) -> object:
        return self.configs.get(key)

    def put_config(self, key: str, value: object) -> None:
        self.configs[key] = value

    def has_trials(self, *_: object) -> bool:
        return False

    def trials(self, *_: object) -> list[TrialRecord]:
        return []

    best_trials = nearest_trials = trials

    def put_trial(self, *_: object) -> None:
        return


class MadeUpMeasurer:
    """Answers at once, and remembers what it was asked."""

    def __init__(self, scratch: Path, answers: Answers) -> None:
        self.scratch, self.answers = scratch, answers
        self.database, self.pool, self.log = MadeUpDatabase(), MadeUpPool(), MeasurementLog()
        self.earlier: dict[CandidateSpec, Cost] = {}
        self.on_record: dict[CandidateSpec, Cost] = {}
        self.asked: list[CandidateSpec] = []
        self.before: Callable[[CandidateSpec], None] = lambda _: None
        """Called before each answer."""

    def cached(self, asked: Sequence[tuple[CandidateSpec, str]], bound: float) -> list[Cost | None]:
        del bound
        return [self.on_record.get(spec) for spec, _ in asked]

    def compile_ahead(self, specs: Sequence[CandidateSpec]) -> None:
        del specs

    def recorded(self, spec: CandidateSpec) -> tuple[Cost, ...]:
        found = (self.on_record.get(spec), self.earlier.get(spec))
        return tuple(cost for cost in found if cost is not None)

    def measure(
        self, tasks: Sequence[RegionTask], progress: Callable[[Event], None] = lambda _: None, should_stop: Stop = never
    ) -> dict[CandidateSpec, Cost]:
        found: dict[CandidateSpec, Cost] = {}
        for task in tasks:
            for spec in task.candidates:
                if should_stop():
                    return found
                self.before(spec)
                self.asked.append(spec)
                cost = found[spec] = judge_cost(self.answers.cost(spec), task.bound)
                progress(Event("measured" if cost.outcome == "ok" else "failed", spec, cost, len(found), len(found)))
        return found


def whole(backend: str) -> Implementation:
    return Implementation(backend)


def made_up_state(
    folder: Path,
    graph: Graph,
    backends: Sequence[Backend],
    answers: Answers | None = None,
    *,
    options: Options | None = None,
    budget_s: float | None = None,
    variants: Sequence[GraphVariant] = (),
) -> tuple[DecisionState, MadeUpMeasurer]:
    """A state whose reference is computed and of which nothing is measured. The folder exists. `budget_s`: by default those of the
    options, or 100."""
    measurer, options = MadeUpMeasurer(folder, answers or Answers()), options or Options(threads=1)
    budget = DecisionBudget.of(options, len(graph))
    if budget_s is not None or not budget.by_user:
        budget = budget.within(100.0 if budget_s is None else budget_s)
    session = Session(options, tuple(backends), host(), cast(Measurer, measurer), Store(folder), Silent(), budget)
    generator = np.random.default_rng(0)
    inputs = {info.name: generator.standard_normal(info.sizes).astype(info.numpy) for info in graph.inputs}
    state = DecisionState(session, [GraphVariant(ORIGINAL, graph), *variants], inputs, "model")
    Reference().run(state, cast(Any, None))
    return state, measurer
