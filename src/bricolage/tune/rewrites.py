"""Rewrite autotuning: the variant of a model that one backend runs fastest, found by timing variants on this machine.

Runtimes fuse patterns that they know, and have fast kernels for some shapes only. No count of operators says which variant they
like. So configs are varied one rule at a time, each variation races against the best so far as a whole model, and what wins is
combined: steepest ascent by measurement, first over opsets, then over rules, then over the operator signatures where cost-based
rules are applied. On a noisy machine the luckiest of many variations is ahead in any race: those that were ahead race again, few
with more rounds, and only that second race counts (as in successive halving, Jamieson and Talwalkar, AISTATS 2016, section 3)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from bricolage.backends.interface import Backend
from bricolage.base.budget import DecisionBudget
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.costs.entries import Cost
from bricolage.device.device import Device
from bricolage.errors import EndlessRewriting, NoBackend, NotAccurate, OpsetOutOfReach
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import prepare
from bricolage.measure.measurer import Measurer
from bricolage.measure.race import race
from bricolage.measure.race_record import Race
from bricolage.measure.specs import CandidateSpec
from bricolage.measure.statistics import Ratio
from bricolage.plan.program_step import Step
from bricolage.plan.rewrite_steps import EnabledRule, OperatorSignature, RewriteConfig
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.engine.apply import counts
from bricolage.rewrite.engine.pipeline import PipelineRunner, RewriteResult, cost_based_rules, newer_opsets
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.variants import REWRITTEN, TAILORED
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
"""Of each variant in the races that decide, where the effort races in several: processes differ by a few percent."""
_WORTH = 1.005
"""A variation is kept if it is faster by more than this in the race that decides."""


@dataclass(frozen=True)
class RacedVariant:
    """One of the graph variants in the final race. `speedup` is over the original."""

    name: str
    cost: Cost
    speedup: Ratio | None


@dataclass(frozen=True)
class RewriteTuningResult:
    """The variant that a backend runs fastest, with the oracle."""

    chosen: str
    """original, rewritten (by all canonicalising rules) or tailored."""
    rewrite_config: RewriteConfig | None
    """How the chosen variant is made; None for the original."""
    implementation: Implementation
    threads: int
    tried: int
    """Different graph variants that were made."""
    graph_variants: tuple[RacedVariant, ...]
    """Fastest first."""

    def raced(self, name: str) -> RacedVariant | None:
        """The result of one variant."""
        return next((raced for raced in self.graph_variants if raced.name == name), None)


@dataclass(frozen=True)
class _Trial:
    """A variant that was made; its model is on disk."""

    name: str
    rewrite_config: RewriteConfig
    used: tuple[str, ...]
    """Rules that were applied."""
    signatures: Mapping[str, tuple[OperatorSignature, ...]]
    """Signatures of the operators at which cost-based rules were applied."""
    spec: CandidateSpec


class RewriteTuner:
    """The search for one model and one backend."""

    def __init__(
        self,
        start: ir.Model,
        sizes: Mapping[str, int],
        rules: Sequence[Rule],
        oracle: Oracle,
        backend: Backend,
        options: Options,
        budget: DecisionBudget,
        measurer: Measurer,
        progress: Progress,
        *,
        device: Device,
        config: KernelConfig | None = None,
        prefix: str = "rewrites",
        raising: bool = True,
    ) -> None:
        """`start`: the simplified model, dimensions open; `sizes`: what they are for measuring; `evidence`: of the original at
        these sizes. `config`: of the backend; the one that runs the original fastest where it is not given. `prefix`: of files
        that are written next to the oracle. `raising`: whether variants of newer opsets are tried."""
        self._oracle, self._backend, self._options, self._budget = oracle, backend, options, budget
        self._measurer, self._progress = measurer, progress
        self._families = {rule.name: rule.family for rule in rules}
        self._trials: dict[RewriteConfig, _Trial] = {}
        self._config, self._device, self._prefix = config, device, prefix
        self._processes = min(_PROCESSES, budget.profile.race_processes)
        self._written: list[str] = []
        working = start.clone()
        self._keep(working)  # once, so that each variant brings only the weights that it changes
        self._runner, self._sizes, self._rules = PipelineRunner(working, rules, self._keep), dict(sizes), list(rules)
        self._opset, self._opsets = start.graph.opset_imports.get("", 0), newer_opsets(start, rules) if raising else []

    def run(self, stop: Deadline) -> RewriteTuningResult:
        """Looks for the best variant until `stop` says so, and holds the final race.

        Raises:
            NoBackend: the backend does not run the model.
            NotAccurate: its answer is not accurate enough.
            EndlessRewriting: rules undo each other.
        """
        seconds, rounds = self._budget.race_s, self._budget.profile.race_rounds
        searching = stop.reserve(seconds)
        if self._config is None:
            self._config = self._best_config(searching)
        base, best = self._trial(RewriteConfig()), self._trial(self.search(searching))
        specs = {ORIGINAL: self._spec(self._oracle.graph, self._config)}
        for name, trial in ((REWRITTEN, base), (TAILORED, best)):
            if all(trial.spec.region_key != spec.region_key for spec in specs.values()):
                specs[name] = trial.spec
        ran = self._race(specs, ORIGINAL, rounds, seconds, processes=2 * self._processes)
        chosen, raced = judge_race(ran)
        rewrite_config = {REWRITTEN: base.rewrite_config, TAILORED: best.rewrite_config}.get(chosen)
        keys = {trial.spec.region_key for trial in self._trials.values()}
        implementation = Implementation(self._backend.name, self._config, self._device.name)
        return RewriteTuningResult(chosen, rewrite_config, implementation, self._options.threads, len(keys), raced)

    def search(self, stop: Deadline) -> RewriteConfig:
        """The best configuration that is found until `stop` says so; the configuration is known.

        Raises:
            EndlessRewriting: rules undo each other.
        """
        best = self._trial(RewriteConfig())
        with stop.catching_interrupts():
            newer = self._newer(stop)
            best = self._better(best, newer, "opset", stop)
            bases = [best.rewrite_config, *(replace(best.rewrite_config, opset=config.opset) for config in newer[:1])]
            more = [rewrite_config for base in dict.fromkeys(bases) for rewrite_config in self._with(base)]
            best = self._better(best, [*more, *self._without(best)], "rules", stop)
            if best.rewrite_config.enabled:
                best = self._better(best, self._with(best.rewrite_config), "more rules", stop)
                best = self._better(best, self._elsewhere(best), "signatures", stop)
        return best.rewrite_config

    def _best_config(self, stop: Deadline) -> KernelConfig:
        """The configuration of the backend that runs the original fastest."""
        graph, word = self._oracle.graph, self._options.precision
        configs = {str(config): config for config in self._backend.suited_configs(word, self._device, graph.everything)}
        specs = {name: self._spec(graph, candidate) for name, candidate in configs.items()}
        seconds = (
            self._budget.shares.tailoring.signatures * stop.left if len(specs) > 1 else 1.0
        )  # alone it need only run
        ran = self._race(specs, next(iter(specs)), _MORE_ROUNDS, seconds)
        if ran.fastest is None:
            if wrong := [row.error for row in ran.costs.values() if row.outcome == "wrong" and row.error is not None]:
                raise NotAccurate(error=min(wrong), bound=self._oracle.bound)
            reasons = "; ".join(dict.fromkeys(cost.reason for cost in ran.costs.values()))
            raise NoBackend(why=f" for this model: {self._backend.name} says {reasons}")
        return configs[ran.fastest]

    # --- variations -------------------------------------------------------------------------------------------------

    def _newer(self, stop: Deadline) -> list[RewriteConfig]:
        """All canonicalising rules at newer opsets, the newest first; none where no rule asks for operators of the newest."""
        newest = None if stop() or not self._opsets else self._attempt(RewriteConfig(opset=self._opsets[0]))
        if newest is not None and newest.rewrite_config.opset is None:
            return []
        return [RewriteConfig(opset=opset) for opset in self._opsets]

    def _without(self, best: _Trial) -> list[RewriteConfig]:
        """All canonicalising rules but one."""
        names = [name for name in best.used if self._families[name] not in _ALWAYS]
        return [replace(best.rewrite_config, disabled=best.rewrite_config.disabled | {name}) for name in names]

    def _with(self, rewrite_config: RewriteConfig) -> list[RewriteConfig]:
        """One cost-based rule more: after the others, or before them, where operators still are what they were."""
        used = {entry.rule for entry in rewrite_config.enabled}
        more = [entry for entry in cost_based_rules(self._rules) if entry.rule not in used]
        behind = [replace(rewrite_config, enabled=(*rewrite_config.enabled, entry)) for entry in more]
        before = [replace(rewrite_config, enabled=(entry, *rewrite_config.enabled)) for entry in more]
        return list(
            dict.fromkeys(rewrite_config for pair in zip(behind, before, strict=True) for rewrite_config in pair)
        )

    @staticmethod
    def _elsewhere(best: _Trial) -> list[RewriteConfig]:
        """Each cost-based rule but at one operator signature, where it is applied at several."""
        narrower_configs = []
        for number, entry in enumerate(best.rewrite_config.enabled):
            signatures = best.signatures.get(entry.rule, ())
            for signature in signatures if len(signatures) > 1 else ():
                less = replace(entry, not_at=entry.not_at | {signature})
                enabled = (*best.rewrite_config.enabled[:number], less, *best.rewrite_config.enabled[number + 1 :])
                narrower_configs.append(replace(best.rewrite_config, enabled=enabled))
        return narrower_configs

    @staticmethod
    def together(best: RewriteConfig, winners: Iterable[RewriteConfig]) -> RewriteConfig:
        """What all winners changed of the best, the first winner's changes first."""
        winners = list(winners)
        disabled = set(best.disabled)
        opset = next((winner.opset for winner in winners if winner.opset != best.opset), best.opset)
        enabled = list(best.enabled)
        for winner in winners:
            disabled |= winner.disabled
            for entry in winner.enabled:
                position = next((i for i, enabled_rule in enumerate(enabled) if enabled_rule.rule == entry.rule), None)
                if position is not None:
                    not_at = enabled[position].not_at | entry.not_at
                    enabled[position] = EnabledRule(entry.rule, not_at)
                elif len(winner.enabled) > 1 and entry == winner.enabled[0]:
                    enabled.insert(0, entry)
                else:
                    enabled.append(entry)
        return RewriteConfig(frozenset(disabled), tuple(enabled), opset)

    # --- races ------------------------------------------------------------------------------------------------------

    def _better(self, best: _Trial, configs: Sequence[RewriteConfig], phase: str, stop: Deadline) -> _Trial:
        """The best of the configurations, of their changes together, and of what was best so far."""
        if stop():
            return best
        self._progress.start(f"graph variants with other {phase}", len(configs))
        trials: dict[str, _Trial] = {}
        keys = {best.spec.region_key}
        making = stop.reserve(self._budget.shares.tailoring.racing * stop.left)
        for rewrite_config in configs:
            if making():
                break
            self._progress.advance(1, str(rewrite_config))
            trial = self._attempt(rewrite_config)
            if trial is not None and trial.spec.region_key not in keys:
                keys.add(trial.spec.region_key)
                trials[trial.name] = trial
        self._progress.finish()
        seconds = min(self._budget.tailoring_s(phase), stop.left) / 2
        lucky = ahead(self._against(best, trials, seconds, stop, decides=False), best.name, 1.0)
        hopeful = {name: trials[name] for name in lucky[:_HOPEFUL]}
        ran = self._against(best, hopeful, seconds, stop, decides=True)
        winners = [hopeful[name] for name in ahead(ran, best.name, _WORTH)]
        if len(winners) > 1:
            both = self._attempt(self.together(best.rewrite_config, [winner.rewrite_config for winner in winners]))
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
        rounds, processes = (_MORE_ROUNDS, self._processes) if decides else (_ROUNDS, 1)
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
        self._progress.start("race of graph variants", rounds * len(specs))
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

    # --- graph variants ------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Removes the weights of all variants that were tried."""
        for name in self._written:
            self._oracle.store.forget(name)

    def _attempt(self, rewrite_config: RewriteConfig) -> _Trial | None:
        """The variant of a configuration; None where rules undo each other, or the model cannot be raised to its opset."""
        try:
            return self._trial(rewrite_config)
        except (EndlessRewriting, OpsetOutOfReach) as error:
            _LOG.info("%s: %s", rewrite_config, error)
            return None

    def _trial(self, rewrite_config: RewriteConfig) -> _Trial:
        """The variant of a configuration, written to the folder.

        Raises:
            EndlessRewriting: rules undo each other.
            OpsetOutOfReach: the model cannot be raised to its opset.
        """
        if rewrite_config not in self._trials:
            number = len(self._trials)
            result = self._runner.run(rewrite_config)
            needed = self._drop_unneeded(rewrite_config, result)
            if needed != rewrite_config:
                self._trials[rewrite_config] = self._trial(needed)
                return self._trials[rewrite_config]
            graph = prepare(result.model, self._sizes)
            self._share(graph.model, "variant")
            used = tuple(counts(result.applications))
            assert self._config is not None
            spec = self._spec(graph, self._config)
            self._trials[rewrite_config] = _Trial(
                f"graph variant {number}: {rewrite_config}", rewrite_config, used, result.signatures, spec
            )
        return self._trials[rewrite_config]

    def _drop_unneeded(self, rewrite_config: RewriteConfig, result: RewriteResult) -> RewriteConfig:
        """A configuration without what made no difference: cost-based rules that apply nowhere, an opset that no rule asked for."""
        enabled = tuple(enabled_rule for enabled_rule in rewrite_config.enabled if result.signatures[enabled_rule.rule])
        used = {application.rule for application in result.applications}
        raised = any(rule.since > self._opset for rule in self._rules if rule.name in used)
        return replace(rewrite_config, enabled=enabled, opset=rewrite_config.opset if raised else None)

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


def judge_race(ran: Race) -> tuple[str, tuple[RacedVariant, ...]]:
    """The variant to choose after the final race, the fastest that is not slower than the original, and all that raced."""
    raced = tuple(
        RacedVariant(name, cost, None if name == ORIGINAL or cost.ms is None else ran.ratio(name, ORIGINAL))
        for name, cost in sorted(ran.costs.items(), key=lambda item: (item[1].ms is None, item[1].ms or 0.0))
    )
    speedups = {variant.name: variant.speedup.value for variant in raced if variant.speedup is not None}
    ahead = {name: speedup for name, speedup in speedups.items() if speedup >= 1.0}
    return max(ahead, key=ahead.__getitem__, default=ORIGINAL), raced
