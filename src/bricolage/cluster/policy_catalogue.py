"""The policies by name: how each is made for a history, what it knows of lengths, and which histories it cannot serve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bricolage.cluster.estimates import BlurredRates, Estimator, ExactLengths, Noisy, Rolling
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.order_policies import OrderPolicy, OrderScheduler
from bricolage.cluster.policies import gavel
from bricolage.cluster.policies.allox import AlloX
from bricolage.cluster.policies.chronus import Chronus
from bricolage.cluster.policies.comparison_rules import AlloXShares, equal_time, most_minibatches
from bricolage.cluster.policies.elastic import ElasticFlow, Optimus, Sia
from bricolage.cluster.policies.elastic_spirit import Cynthia, SideCar
from bricolage.cluster.policies.gandiva import Gandiva
from bricolage.cluster.policies.hierarchy import hierarchical
from bricolage.cluster.policies.hydra import Hydra
from bricolage.cluster.policies.interference import Harmony, Horus
from bricolage.cluster.policies.partitioned import partition_rule
from bricolage.cluster.policies.pollux import Pollux
from bricolage.cluster.policies.queue_orders import (
    EarliestDeadline,
    EasyBackfill,
    Fifo,
    LeastLaxity,
    QuasiShortestService,
    ShortestJob,
    ShortestRemaining,
)
from bricolage.cluster.policies.round_policies import Themis, TimeSlices
from bricolage.cluster.policies.shockwave import Shockwave
from bricolage.cluster.policies.space_sharing import PackedShares, RandomPacking
from bricolage.cluster.policies.synergy import Synergy, by_remaining
from bricolage.cluster.policies.tiresias import Gittins, LeastAttained
from bricolage.cluster.scheduler import Scheduler
from bricolage.cluster.shares import SharePolicy, ShareRule
from bricolage.cluster.target_policies import TargetPolicy, TargetScheduler
from bricolage.errors import UnknownPolicy

Refusal = Callable[[Sequence[TrainingJob], ClusterSpec], str]
MOST_IN_ROUNDS = 20_000
"""Jobs, for policies that look at every active job in every round: `all` leaves them out of longer histories."""

DEFINITION, CODE, DESCRIPTION, ABSTRACT = "definition", "code", "description", "abstract"
SOURCES = {
    DEFINITION: "a classical rule, which needs no source",
    CODE: "read in the code of its authors, or of those who compared with it",
    DESCRIPTION: "written from descriptions of the paper; its authors' code was not read, or is not public",
    ABSTRACT: "only the abstract of its paper was known: the idea is theirs, the rule is ours",
}
"""What is known of a policy, from most to least."""


def _nothing(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    del jobs, cluster
    return ""


@dataclass(frozen=True)
class PolicyEntry:
    """A policy that can be asked for."""

    name: str
    title: str
    make: Callable[[Sequence[TrainingJob], ClusterSpec], Scheduler]
    knows: str = "lengths"
    """What it knows of a job: "lengths" (an oracle, or the estimate that is asked for), "history" (predicted from jobs that
    ended), or "nothing"."""
    refuses: Refusal = _nothing
    """Why it cannot serve a history; empty where it can."""
    slow: bool = False
    """Whether it looks at every active job in every round."""
    source: str = CODE
    """From what its rule was written: one of `SOURCES`."""

    def estimator(self, error: float, seed: int, rate_error: float = 0.0) -> Estimator:
        """What it believes: errors are standard deviations of the logarithm of predicted lengths, and of rates."""
        lengths: Estimator = ExactLengths()
        if self.knows == "history":
            lengths = Rolling()
        elif error:
            lengths = Noisy(error, seed)
        return BlurredRates(lengths, rate_error, seed) if rate_error else lengths


def _order(policy: Callable[[], OrderPolicy]) -> Callable[[Sequence[TrainingJob], ClusterSpec], Scheduler]:
    return lambda _jobs, _cluster: OrderScheduler(policy())


def _target(policy: Callable[[ClusterSpec], TargetPolicy]) -> Callable[[Sequence[TrainingJob], ClusterSpec], Scheduler]:
    return lambda _jobs, cluster: TargetScheduler(policy(cluster))


def _slices(cluster: ClusterSpec) -> TimeSlices:
    """A slice of a minute, longer where restarts would take more than a tenth of it."""
    return TimeSlices(max(60.0, 10.0 * cluster.restart_s))


def _shares(rule: ShareRule, aware: bool = True) -> Callable[[Sequence[TrainingJob], ClusterSpec], Scheduler]:
    def make(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> Scheduler:
        del jobs
        return TargetScheduler(SharePolicy(rule, cluster.round_s, cluster.recompute_s, aware))

    return make


def _hosts(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    if any(cluster.host_share(kind) is None for kind in cluster.kinds):
        return "the cluster's file does not give cpus and host_gb of each kind"
    if cluster.failure:
        return "it counts processors of nodes that fail"
    return (
        ""
        if any(job.host is not None for job in jobs)
        else "no job has a profile of processors and memory (--profiles)"
    )


def _gittins(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> Scheduler:
    del cluster
    return OrderScheduler(Gittins([job.devices * job.run_s(job.kinds[0]) for job in jobs]))


def _one_device(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    del cluster
    large = next((job for job in jobs if job.devices > 1), None)
    return "" if large is None else f"it gives each job one device, and job {large.name} needs {large.devices}"


def _one_kind(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    del jobs
    return "" if len(cluster.kinds) == 1 else f"it knows one kind of devices, and the cluster has {len(cluster.kinds)}"


def _deadlines(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    del cluster
    return "" if any(job.deadline_s < math.inf for job in jobs) else "no job has a deadline"


def _entities(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    del cluster
    return "" if len({job.queue or job.user for job in jobs}) > 1 else "all jobs belong to one queue or user"


def _packable(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    del cluster
    return "" if any(job.together for job in jobs) else "no rates of two jobs on one device are known"


def _elastic(jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    del cluster
    return (
        ""
        if any(len(job.scaling) > 1 for job in jobs)
        else "no job can run on other numbers of devices than it asked for"
    )


def _both(first: Refusal, second: Refusal) -> Refusal:
    return lambda jobs, cluster: first(jobs, cluster) or second(jobs, cluster)


def _remembered(rule: Callable[[], ShareRule]) -> Callable[[Sequence[TrainingJob], ClusterSpec], Scheduler]:
    """Of a rule that remembers what it gave: each replay has its own."""
    return lambda jobs, cluster: _shares(rule())(jobs, cluster)


_in_rounds = partial(PolicyEntry, slow=True)
"""Of those that look at every active job in every round."""

POLICIES = (
    PolicyEntry("fifo", "First in, first out", _order(Fifo), "nothing", source=DEFINITION),
    PolicyEntry("easy", "FIFO with EASY backfilling", _order(EasyBackfill), source=DEFINITION),
    PolicyEntry("sjf", "Shortest job first", _order(ShortestJob), source=DEFINITION),
    PolicyEntry("srtf", "Shortest remaining time first", _order(ShortestRemaining), source=DEFINITION),
    PolicyEntry("qssf", "Helios: shortest predicted service first", _order(QuasiShortestService), "history"),
    PolicyEntry("las-2d", "Tiresias: least attained service", _order(LeastAttained), "nothing"),
    PolicyEntry("gittins-2d", "Tiresias: Gittins index", _gittins, "nothing"),
    PolicyEntry("edf", "Earliest deadline first", _order(EarliestDeadline), "nothing", _deadlines, source=DEFINITION),
    PolicyEntry("least-laxity", "GENIE: least laxity first", _order(LeastLaxity), refuses=_deadlines, source=ABSTRACT),
    _in_rounds("slices", "Gandiva: time slices", _target(_slices), "nothing", source=DESCRIPTION),
    _in_rounds(
        "gandiva",
        "Gandiva: migrating and growing",
        _target(lambda cluster: Gandiva(max(60.0, 10.0 * cluster.restart_s))),
        "nothing",
        source=DESCRIPTION,
    ),
    _in_rounds("synergy", "Synergy: processors by need, FIFO", _target(lambda _: Synergy()), "nothing", _hosts),
    _in_rounds(
        "synergy-srtf", "Synergy: processors by need, SRTF", _target(lambda _: Synergy(by_remaining)), refuses=_hosts
    ),
    _in_rounds("proportional", "Equal parts", _shares(gavel.proportional), "nothing"),
    _in_rounds("gandiva-fair", "Gandiva-fair, as compared: equal time", _shares(equal_time, False), "nothing"),
    _in_rounds("max-min", "Gavel: max-min fairness, blind to kinds", _shares(gavel.max_min_blind, False), "nothing"),
    _in_rounds("gavel", "Gavel: max-min fairness", _shares(gavel.max_min), "nothing"),
    _in_rounds("gavel-water", "Gavel: water filling", _shares(gavel.water_filling), "nothing"),
    _in_rounds(
        "gavel-parts",
        "Gavel: max-min fairness, in parts",
        _shares(partition_rule(gavel.max_min)),
        "nothing",
        source=DESCRIPTION,
    ),
    _in_rounds(
        "gavel-packed",
        "Gavel: max-min fairness with sharing",
        _target(lambda cluster: PackedShares(cluster.round_s, cluster.recompute_s)),
        "nothing",
        _packable,
    ),
    _in_rounds(
        "gandiva-packed",
        "Gandiva: random pairs",
        _target(lambda cluster: RandomPacking(cluster.round_s)),
        "nothing",
        _packable,
    ),
    _in_rounds(
        "harmony",
        "Harmony: largest predicted reward",
        _target(lambda _: Harmony()),
        "nothing",
        _packable,
        source=ABSTRACT,
    ),
    _in_rounds(
        "horus", "Horus: utilisation adds up", _target(lambda _: Horus()), "nothing", _packable, source=ABSTRACT
    ),
    _in_rounds(
        "gavel-entities", "Gavel: entities, fair inside", _shares(hierarchical("fairness")), "nothing", _entities
    ),
    _in_rounds(
        "gavel-entities-fifo", "Gavel: entities, FIFO inside", _shares(hierarchical("fifo")), "nothing", _entities
    ),
    _in_rounds("gavel-makespan", "Gavel: least makespan", _shares(gavel.makespan)),
    _in_rounds("gavel-ftf", "Gavel: finish-time fairness", _shares(gavel.finish_time_fairness)),
    _in_rounds(
        "gavel-ftf-blind", "Gavel: finish-time fairness, blind", _shares(gavel.finish_time_fairness_blind, False)
    ),
    _in_rounds("gavel-cost", "Gavel: least cost within deadlines", _shares(gavel.minimise_price)),
    _in_rounds("gavel-throughput", "Gavel: most steps", _shares(gavel.max_sum), "nothing"),
    _in_rounds("max-sum", "Most throughput, as compared: mini-batches", _shares(most_minibatches), "nothing"),
    _in_rounds("allox", "AlloX: least sum of completion times", _target(lambda _: AlloX())),
    _in_rounds("allox-shares", "AlloX, as compared: shares for good", _remembered(AlloXShares)),
    _in_rounds(
        "themis",
        "Themis: worst finish-time fairness first",
        _target(lambda cluster: Themis(cluster.round_s)),
        source=DESCRIPTION,
    ),
    _in_rounds(
        "shockwave",
        "Shockwave: a market over time",
        _target(lambda cluster: Shockwave(cluster.round_s)),
        refuses=_one_kind,
    ),
    _in_rounds(
        "hydra",
        "Hydra: least tardiness, then completion times",
        _target(lambda _: Hydra()),
        refuses=_both(_one_device, _deadlines),
    ),
    _in_rounds("optimus", "Optimus: largest gain of a device more", _target(lambda _: Optimus()), refuses=_elastic),
    _in_rounds(
        "elasticflow",
        "ElasticFlow: deadlines by elasticity",
        _target(lambda _: ElasticFlow()),
        refuses=_both(_one_kind, _deadlines),
    ),
    _in_rounds(
        "chronus",
        "Chronus: deadlines in leases",
        _target(lambda _: Chronus()),
        refuses=_both(_one_kind, _deadlines),
        source=DESCRIPTION,
    ),
    _in_rounds(
        "cynthia", "Cynthia: cheapest mix in time", _target(lambda _: Cynthia()), refuses=_deadlines, source=ABSTRACT
    ),
    _in_rounds("side-car", "Side-car: progress grows", _target(lambda _: SideCar()), refuses=_elastic, source=ABSTRACT),
    _in_rounds("pollux", "Pollux: largest mean speed-up", _target(lambda _: Pollux()), "nothing", refuses=_elastic),
    _in_rounds("sia", "Sia: best configurations", _target(lambda _: Sia()), refuses=_elastic, source=DESCRIPTION),
)


def find_policy(name: str) -> PolicyEntry:
    """A policy.

    Raises:
        UnknownPolicy: there is none of this name.
    """
    entry = next((policy for policy in POLICIES if policy.name == name), None)
    if entry is None:
        raise UnknownPolicy(name=name, known=", ".join(policy.name for policy in POLICIES))
    return entry
