"""Tailoring: the form of a model that one backend runs fastest, found by timing forms against each other on this machine.

Runtimes fuse patterns that they know, and have fast kernels for some shapes only. No count of operators says which
form they like. So recipes are varied one rule at a time, each variation races against the best so far as a whole
model, and what wins is combined: steepest ascent by measurement, first over opsets, then over rules, then over the
kinds of place where exploring rules are applied. On a noisy machine the luckiest of many variations is ahead in any
race: those that were ahead race again, few with more rounds, and only that second race counts (as in successive
halving, Jamieson and Talwalkar, AISTATS 2016, section 3)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from bricolage.backends.interface import Backend
from bricolage.deadline import Deadline
from bricolage.device.device import Device
from bricolage.errors import EndlessRewriting, NoBackend, NotAccurate, OpsetOutOfReach
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import prepare
from bricolage.measure.entries import Cost
from bricolage.measure.loading import CandidateSpec
from bricolage.measure.measurer import Measurer
from bricolage.measure.race import Race, race
from bricolage.measure.statistics import Ratio
from bricolage.options import Options
from bricolage.plan.plan import ORIGINAL
from bricolage.plan.step import Step
from bricolage.progress import Progress
from bricolage.rewrite.apply import counts
from bricolage.rewrite.forms import REWRITTEN, TAILORED
from bricolage.rewrite.recipe import Exploration, Followed, Kitchen, Place, Recipe, explorations, opsets
from bricolage.rewrite.rule import Rule
from bricolage.verify.oracle import Oracle
from bricolage.work.implementation import Implementation, KernelConfig

_LOG = logging.getLogger(__name__)

_ALWAYS = {"identity", "folding", "strides", "shapes"}
"""Families that only take work away: leaving them out is not tried."""
_ROUNDS = 8
"""Of the race of all variations."""
_HOPEFUL = 5
"""Variations that race again."""
_MORE_ROUNDS = 24
"""Of the races that decide."""
_PROCESSES = 2
"""Of each form in the races that decide: one process runs the same file up to a few percent faster than another."""
_SHARES = {"opset": 0.1, "rules": 0.35, "more rules": 0.2, "places": 0.2}
"""Parts of the budget for the rounds of each step; the rest is for compiling and for the final race."""
_RACING = 0.6
"""Part of what is left of the time that is kept for racing forms while they are made."""
_WORTH = 1.005
"""A variation is kept if it is faster by more than this in the race that decides."""


@dataclass(frozen=True)
class Raced:
    """One of the forms in the final race. `speedup` is over the original."""

    name: str
    cost: Cost
    speedup: Ratio | None


@dataclass(frozen=True)
class Tailored:
    """The form that a backend runs fastest, with the oracle."""

    chosen: str
    """original, rewritten (by all gains) or tailored."""
    recipe: Recipe | None
    """How the chosen form is made; None for the original."""
    implementation: Implementation
    threads: int
    tried: int
    """Different forms that were made."""
    forms: tuple[Raced, ...]
    """Fastest first."""

    def raced(self, name: str) -> Raced | None:
        """The result of one form."""
        return next((raced for raced in self.forms if raced.name == name), None)


@dataclass(frozen=True)
class _Trial:
    """A form that was made; its model is on disk."""

    name: str
    recipe: Recipe
    used: tuple[str, ...]
    """Rules that were applied."""
    places: Mapping[str, tuple[Place, ...]]
    """Kinds of place at which exploring rules were."""
    spec: CandidateSpec


class Tailoring:
    """The search for one model and one backend."""

    def __init__(
        self,
        start: ir.Model,
        sizes: Mapping[str, int],
        rules: Sequence[Rule],
        oracle: Oracle,
        backend: Backend,
        options: Options,
        measurer: Measurer,
        progress: Progress,
        *,
        device: Device,
        config: KernelConfig | None = None,
        prefix: str = "tailoring",
        raising: bool = True,
    ) -> None:
        """`start`: the simplified model, dimensions open; `sizes`: what they are for measuring; `evidence`: of the original at
        these sizes. `config`: of the backend; the one that runs the original fastest where it is not given. `prefix`: of files
        that are written beside the oracle. `raising`: whether forms of newer opsets are tried."""
        self._oracle, self._backend, self._options = oracle, backend, options
        self._measurer, self._progress = measurer, progress
        self._families = {rule.name: rule.family for rule in rules}
        self._trials: dict[Recipe, _Trial] = {}
        self._config, self._device, self._prefix = config, device, prefix
        self._written: list[str] = []
        own = start.clone()
        self._keep(own)  # once, so that each form brings only the weights that it changes
        self._kitchen, self._sizes, self._rules = Kitchen(own, rules, self._keep), dict(sizes), list(rules)
        self._opset, self._opsets = start.graph.opset_imports.get("", 0), opsets(start, rules) if raising else []

    def run(self, stop: Deadline) -> Tailored:
        """Looks for the best form until `stop` says so, and holds the final race.

        Raises:
            NoBackend: the backend does not run the model.
            NotAccurate: its answer is not accurate enough.
            EndlessRewriting: rules undo each other.
        """
        seconds = self._options.race_seconds(len(self._oracle.graph))
        searching = stop.reserve(seconds)
        if self._config is None:
            self._config = self._best_config(searching)
        base, best = self._trial(Recipe()), self._trial(self.search(searching))
        specs = {ORIGINAL: self._spec(self._oracle.graph, self._config)}
        for name, trial in ((REWRITTEN, base), (TAILORED, best)):
            if all(trial.spec.region_key != spec.region_key for spec in specs.values()):
                specs[name] = trial.spec
        ran = self._race(specs, ORIGINAL, self._options.profile.race_rounds, seconds, processes=2 * _PROCESSES)
        chosen, forms = verdict(ran)
        recipe = {REWRITTEN: base.recipe, TAILORED: best.recipe}.get(chosen)
        made = {trial.spec.region_key for trial in self._trials.values()}
        implementation = Implementation(self._backend.name, self._config, self._device.name)
        return Tailored(chosen, recipe, implementation, self._options.threads, len(made), forms)

    def search(self, stop: Deadline) -> Recipe:
        """The best recipe that is found until `stop` says so; the configuration is known.

        Raises:
            EndlessRewriting: rules undo each other.
        """
        best = self._trial(Recipe())
        with stop.catching_interrupts():
            newer = self._newer(stop)
            best = self._better(best, newer, "opset", stop)
            bases = [best.recipe, *(replace(best.recipe, opset=recipe.opset) for recipe in newer[:1])]
            more = [recipe for base in dict.fromkeys(bases) for recipe in self._with(base)]
            best = self._better(best, [*more, *self._without(best)], "rules", stop)
            if best.recipe.exploring:
                best = self._better(best, self._with(best.recipe), "more rules", stop)
                best = self._better(best, self._elsewhere(best), "places", stop)
        return best.recipe

    def _best_config(self, stop: Deadline) -> KernelConfig:
        """The configuration of the backend that runs the original fastest."""
        configs = {str(config): config for config in self._backend.configs(self._options.precision, self._device)}
        specs = {name: self._spec(self._oracle.graph, config) for name, config in configs.items()}
        seconds = _SHARES["places"] * stop.left if len(specs) > 1 else 1.0  # alone it need only run
        ran = self._race(specs, next(iter(specs)), _MORE_ROUNDS, seconds)
        if ran.fastest is None:
            wrong = [cost.error for cost in ran.costs.values() if cost.outcome == "wrong" and cost.error is not None]
            if wrong:
                raise NotAccurate(error=min(wrong), bound=self._oracle.bound)
            reasons = "; ".join(dict.fromkeys(cost.reason for cost in ran.costs.values()))
            raise NoBackend(why=f" for this model: {self._backend.name} says {reasons}")
        return configs[ran.fastest]

    # --- variations -------------------------------------------------------------------------------------------------

    def _newer(self, stop: Deadline) -> list[Recipe]:
        """All gains at newer opsets, the newest first; none where no rule asks for the operators of the newest."""
        newest = None if stop() or not self._opsets else self._attempt(Recipe(opset=self._opsets[0]))
        if newest is not None and newest.recipe.opset is None:
            return []
        return [Recipe(opset=opset) for opset in self._opsets]

    def _without(self, best: _Trial) -> list[Recipe]:
        """All gains but one."""
        names = [name for name in best.used if self._families[name] not in _ALWAYS]
        return [replace(best.recipe, without=best.recipe.without | {name}) for name in names]

    def _with(self, recipe: Recipe) -> list[Recipe]:
        """One exploring rule more: after the others, or before them, where operators still are what they were."""
        used = {exploration.rule for exploration in recipe.exploring}
        more = [exploration for exploration in explorations(self._rules) if exploration.rule not in used]
        behind = [replace(recipe, exploring=(*recipe.exploring, exploration)) for exploration in more]
        before = [replace(recipe, exploring=(exploration, *recipe.exploring)) for exploration in more]
        return list(dict.fromkeys(recipe for pair in zip(behind, before, strict=True) for recipe in pair))

    @staticmethod
    def _elsewhere(best: _Trial) -> list[Recipe]:
        """Each exploring rule but at one kind of place, where it is applied at several."""
        found = []
        for number, exploration in enumerate(best.recipe.exploring):
            places = best.places.get(exploration.rule, ())
            for place in places if len(places) > 1 else ():
                less = replace(exploration, not_at=exploration.not_at | {place})
                exploring = (*best.recipe.exploring[:number], less, *best.recipe.exploring[number + 1 :])
                found.append(replace(best.recipe, exploring=exploring))
        return found

    @staticmethod
    def together(best: Recipe, winners: Iterable[Recipe]) -> Recipe:
        """What all winners changed of the best, the first winner's changes first."""
        winners = list(winners)
        without = set(best.without)
        opset = next((winner.opset for winner in winners if winner.opset != best.opset), best.opset)
        exploring = list(best.exploring)
        for winner in winners:
            without |= winner.without
            for exploration in winner.exploring:
                place = next((i for i, known in enumerate(exploring) if known.rule == exploration.rule), None)
                if place is not None:
                    not_at = exploring[place].not_at | exploration.not_at
                    exploring[place] = Exploration(exploration.rule, not_at)
                elif len(winner.exploring) > 1 and exploration == winner.exploring[0]:
                    exploring.insert(0, exploration)
                else:
                    exploring.append(exploration)
        return Recipe(frozenset(without), tuple(exploring), opset)

    # --- races ------------------------------------------------------------------------------------------------------

    def _better(self, best: _Trial, recipes: Sequence[Recipe], phase: str, stop: Deadline) -> _Trial:
        """The best of the recipes, of their changes together, and of what was best so far."""
        if stop():
            return best
        self._progress.start(f"forms with other {phase}", len(recipes))
        trials: dict[str, _Trial] = {}
        keys = {best.spec.region_key}
        making = stop.reserve(_RACING * stop.left)
        for recipe in recipes:
            if making():
                break
            self._progress.advance(1, str(recipe))
            trial = self._attempt(recipe)
            if trial is not None and trial.spec.region_key not in keys:
                keys.add(trial.spec.region_key)
                trials[trial.name] = trial
        self._progress.finish()
        seconds = min(_SHARES[phase] * self._options.budget(len(self._oracle.graph)), stop.left) / 2
        lucky = ahead(self._against(best, trials, seconds, stop, decides=False), best.name, 1.0)
        hopeful = {name: trials[name] for name in lucky[:_HOPEFUL]}
        ran = self._against(best, hopeful, seconds, stop, decides=True)
        winners = [hopeful[name] for name in ahead(ran, best.name, _WORTH)]
        if len(winners) > 1:
            both = self._attempt(self.together(best.recipe, [winner.recipe for winner in winners]))
            finalists = {trial.name: trial for trial in (winners[0], both) if trial is not None}
            final = self._against(best, finalists, seconds, stop, decides=True)
            winners = [finalists[name] for name in ahead(final, best.name, _WORTH)] or winners[:1]
        for trial in winners[:1]:
            _LOG.info("%s is faster than %s", trial.name, best.name)
        return winners[0] if winners else best

    def _against(
        self, best: _Trial, trials: Mapping[str, _Trial], seconds: float, stop: Deadline, *, decides: bool
    ) -> Race:
        """A race of the best so far and others, a longer one where it decides."""
        if not trials or stop():
            return Race((), {}, {})
        specs = {best.name: best.spec, **{name: trial.spec for name, trial in trials.items()}}
        rounds, processes = (_MORE_ROUNDS, _PROCESSES) if decides else (_ROUNDS, 1)
        return self._race(specs, best.name, rounds, min(seconds, stop.left), stop, processes)

    def _race(
        self,
        specs: Mapping[str, CandidateSpec],
        incumbent: str,
        rounds: int,
        seconds: float,
        stop: Deadline | None = None,
        processes: int = 1,
    ) -> Race:
        inputs, expected, bound = self._oracle.files(self._oracle.graph.everything)
        self._progress.start("race of forms", rounds * len(specs))
        ran = race(
            self._measurer,
            specs,
            inputs,
            expected,
            bound,
            rounds=rounds,
            seconds=seconds,
            incumbent=incumbent,
            progress=lambda name, _: self._progress.advance(1, name),
            should_stop=stop or (lambda: False),
            processes=processes,
        )
        self._progress.finish()
        return ran

    # --- forms ------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Removes the weights of all forms that were tried."""
        for name in self._written:
            self._oracle.store.forget(name)

    def _attempt(self, recipe: Recipe) -> _Trial | None:
        """The form of a recipe; None where rules undo each other, or the model cannot be raised to its opset."""
        try:
            return self._trial(recipe)
        except (EndlessRewriting, OpsetOutOfReach) as error:
            _LOG.info("%s: %s", recipe, error)
            return None

    def _trial(self, recipe: Recipe) -> _Trial:
        """The form of a recipe, written to the folder.

        Raises:
            EndlessRewriting: rules undo each other.
            OpsetOutOfReach: the model cannot be raised to its opset.
        """
        if recipe not in self._trials:
            number = len(self._trials)
            followed = self._kitchen.follow(recipe)
            needed = self._needed(recipe, followed)
            if needed != recipe:
                self._trials[recipe] = self._trial(needed)
                return self._trials[recipe]
            graph = prepare(followed.model, self._sizes)
            self._share(graph.model, "form")
            used = tuple(counts(followed.applications))
            assert self._config is not None
            spec = self._spec(graph, self._config)
            self._trials[recipe] = _Trial(f"form {number}: {recipe}", recipe, used, followed.places, spec)
        return self._trials[recipe]

    def _needed(self, recipe: Recipe, followed: Followed) -> Recipe:
        """A recipe without what made no difference: exploring rules that apply nowhere, an opset that no rule asked for."""
        exploring = tuple(one for one in recipe.exploring if followed.places[one.rule])
        used = {application.rule for application in followed.applications}
        raised = any(rule.since > self._opset for rule in self._rules if rule.name in used)
        return replace(recipe, exploring=exploring, opset=recipe.opset if raised else None)

    def _keep(self, model: ir.Model) -> None:
        self._share(model, "base")

    def _share(self, model: ir.Model, kind: str) -> None:
        self._written.append(f"{self._prefix}-{kind}-{len(self._written)}.data")
        self._oracle.store.share([model], self._written[-1], temporary=True)

    def _spec(self, graph: Graph, config: KernelConfig) -> CandidateSpec:
        whole = graph.everything
        key = Identities(graph).key(whole)
        step = Step(
            Implementation(self._backend.name, config, self._device.name), self._oracle.store.region(whole, key)
        )
        outputs = tuple(info.name for info in graph.outputs)
        return CandidateSpec(key, (step,), outputs, self._options.threads, True, self._device)


def ahead(ran: Race, incumbent: str, factor: float) -> list[str]:
    """Who arrived and was more than `factor` times as fast as the incumbent, fastest first."""
    arrived = [name for name, cost in ran.costs.items() if cost.ms is not None and name != incumbent]
    ratios = {name: ran.ratio(name, incumbent) for name in arrived}
    faster = {name: ratio.value for name, ratio in ratios.items() if ratio is not None and ratio.value > factor}
    return sorted(faster, key=lambda name: -faster[name])


def verdict(ran: Race) -> tuple[str, tuple[Raced, ...]]:
    """The form to choose after the final race, the fastest that is not slower than the original, and all that raced."""
    forms = tuple(
        Raced(name, cost, None if name == ORIGINAL or cost.ms is None else ran.ratio(name, ORIGINAL))
        for name, cost in sorted(ran.costs.items(), key=lambda item: (item[1].ms is None, item[1].ms or 0.0))
    )
    ahead = {
        raced.name: raced.speedup.value for raced in forms if raced.speedup is not None and raced.speedup.value >= 1.0
    }
    return max(ahead, key=ahead.__getitem__, default=ORIGINAL), forms
