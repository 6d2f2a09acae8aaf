"""Learns from which distributions the keys of `--search learned-keys` are drawn (REGAL, ICLR 2020).

A policy (`search.key_policy`) chooses distributions for the keys of a part of a graph; the genetic algorithm draws individuals from
them; what it reaches, against what it reaches with keys drawn uniformly in as many evaluations, is the reward. The greedy start,
which a search also has, is left out meanwhile: it would hide what is learned.
Costs are those of the model that the search itself uses: nothing is measured. Graphs that were met are kept, so that further
evaluations on the same part cost little.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bricolage.base.torch_library import load_torch
from bricolage.costs.models.roofline import NOMINAL
from bricolage.graph.graph import Graph
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.genetic_rewrites import KeyDecoder
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.partition import partition
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.search.key_policy import KeyFeatures, KeyPolicy, make_distributions
from bricolage.search.policy_gradient import GradientOptions, PolicyGradient
from bricolage.work.cost import CostModel
from bricolage.work.random_keys import KeyDistributions, RandomKeyOptions, minimise

if TYPE_CHECKING:
    import torch

    from bricolage.search.key_network import KeyNetwork


@dataclass(frozen=True)
class KeyLearningOptions:
    """Raises ValueError where there would be nothing to learn from.

    rounds: of the whole training. samples: searches of each round, on one part. evaluations: individuals of each search. parts: of
    each network, those with most applications first. graphs: that may be looked at on a part. hidden: width of the network. rate:
    of Adam. entropy: its weight in the first round; it falls to none. seed: of chance."""

    rounds: int = 200
    samples: int = 8
    evaluations: int = 12
    parts: int = 3
    graphs: int = 60
    hidden: int = 16
    rate: float = 1e-2
    entropy: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.rounds, self.parts, self.hidden) < 1 or self.samples < 2 or self.evaluations < 4:
            raise ValueError("learning needs a round, a part, a unit, two samples and four evaluations")


class LearningPart:
    """A part of a network on which searches are tried."""

    def __init__(self, decoder: KeyDecoder, copies: int) -> None:
        """`copies`: how often it is in its network."""
        self.decoder, self.copies = decoder, copies
        self.features: KeyFeatures = decoder.describe_keys()

    def list_names(self, evaluations: int) -> list[str]:
        """Of the rules that a search with these evaluations meets."""
        self.trace_costs(None, evaluations, 0, from_starts=False)
        return [name for name, used in zip(self.features.names, self.decoder.used_keys, strict=True) if used and name]

    def trace_costs(
        self, distributions: KeyDistributions | None, evaluations: int, seed: int, *, from_starts: bool
    ) -> np.ndarray:
        """The lowest cost after each evaluation of a search, [evaluations], in ms. It begins at the greedy and the patient keys, or
        with all individuals drawn: without distributions, uniformly."""
        costs: list[float] = []

        def record(keys: np.ndarray) -> float:
            costs.append(self.decoder.decode(keys))
            return costs[-1]

        starts = self.decoder.start_keys
        if not from_starts:
            distributions = distributions or make_distributions(np.zeros(len(self.features.names), int))
            starts = [distributions.draw(np.random.default_rng(seed))]
        minimise(
            record,
            starts,
            RandomKeyOptions(seed=seed, generations=evaluations),
            distributions=distributions,
            stopped=lambda: len(costs) >= evaluations,
        )
        return np.minimum.accumulate(costs)


@dataclass(frozen=True)
class KeyLearning:
    """A policy, and how it learned: the mean reward of the first and of the last tenth of the rounds."""

    policy: KeyPolicy
    first_reward: float
    last_reward: float
    parts: int
    rounds: int
    seconds: float


def collect_parts(
    model: ir.Model, rules: Sequence[Rule], costs: CostModel, options: KeyLearningOptions, *, seconds: float = 600.0
) -> list[LearningPart]:
    """The parts of a simplified model to which rules apply, cut as a search cuts them.

    Args:
        model: it is not changed.
        rules: that may be applied.
        costs: of operators, each by itself.
        options: how many parts and graphs.
        seconds: after which no more graphs are looked at.
    """
    pricing = Pricing(costs, NOMINAL, model.graph.opset_imports)
    cut = partition(Graph(model.clone()), largest=SearchOptions().part, shifted=False)
    deadline = time.monotonic() + seconds
    parts: list[LearningPart] = []
    for part in cut:
        decoder = KeyDecoder(part.model(), rules, pricing, graphs=options.graphs, deadline=deadline)
        if decoder.has_moves:
            parts.append(LearningPart(decoder, len(part.regions)))
    return sorted(parts, key=lambda part: -float(part.features.touched.sum()))[: options.parts]


def learn_keys(
    networks: Mapping[str, Sequence[LearningPart]], options: KeyLearningOptions | None = None, *, limit_s: float = 600.0
) -> KeyLearning:
    """A policy that was trained on all parts of all networks, each network as often as any other.

    Args:
        networks: parts by the name of their network.
        options: of learning.
        limit_s: seconds, after which no round begins.

    Raises:
        MissingLibrary: PyTorch is not installed.
        ValueError: there is no part.
    """
    torch = load_torch()
    from bricolage.search.key_network import KeyNetwork  # a class of PyTorch's

    chosen = options or KeyLearningOptions()
    groups = [list(parts) for parts in networks.values() if parts]
    if not groups:
        raise ValueError("no rule applies to any network")
    names = sorted({name for parts in groups for part in parts for name in part.list_names(chosen.evaluations)})
    threads, started = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)  # the network is small: threads would only wait for one another
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chosen.seed)
            network = KeyNetwork(names, chosen.hidden)
            rewards = _train(network, groups, chosen, started + limit_s)
    finally:
        torch.set_num_threads(threads)
    tenth = max(1, len(rewards) // 10)
    return KeyLearning(
        network.freeze_policy(),
        float(np.mean(rewards[:tenth])),
        float(np.mean(rewards[-tenth:])),
        sum(map(len, groups)),
        len(rewards),
        time.monotonic() - started,
    )


def _train(
    network: KeyNetwork, groups: Sequence[Sequence[LearningPart]], options: KeyLearningOptions, deadline: float
) -> list[float]:
    """Mean rewards of the rounds."""
    import torch

    learning = PolicyGradient(network.parameters(), GradientOptions(rate=options.rate))
    random, rewards = np.random.default_rng(options.seed), list[float]()
    for number in range(options.rounds):
        if time.monotonic() > deadline and rewards:
            break
        group = groups[int(random.integers(len(groups)))]
        part = group[int(random.integers(len(group)))]
        with torch.no_grad():
            log_probs = network.compute_log_probs(part.features)
            chosen = torch.multinomial(log_probs.exp(), options.samples, replacement=True).T
        seed = int(random.integers(1 << 31))
        trace = partial(part.trace_costs, evaluations=options.evaluations, seed=seed, from_starts=False)
        plain = trace(None)
        reached = [trace(make_distributions(choice)) for choice in chosen.numpy()]
        reward = np.array([compare_traces(plain, costs) for costs in reached])
        rewards.append(float(reward.mean()))
        used = torch.tensor(part.decoder.used_keys)
        learning.improve(
            partial(_score, network, part.features, chosen, used),
            learning.compare_rewards(100.0 * reward),
            entropy_weight=options.entropy * (1.0 - number / options.rounds),
        )
    return rewards


def _score(
    network: KeyNetwork, features: KeyFeatures, chosen: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithms of the probabilities of what was chosen [samples, used keys], and the entropy of each key."""
    log_probs = network.compute_log_probs(features)[used]
    decided = log_probs.gather(1, chosen.T[used]).T
    return decided, -(log_probs.exp() * log_probs).sum(dim=1)


def compare_traces(plain: np.ndarray, trace: np.ndarray) -> float:
    """How much less one search costs than another, by the mean of the logarithms over all evaluations and that of the last."""
    ratios = np.log(plain / trace)
    return 0.5 * float(ratios.mean()) + 0.5 * float(ratios[-1])
