"""Placement by reinforcement learning: operators are grouped, groups are placed, and both learn from the largest load.

In the manner of Mirhoseini et al., "A hierarchical model for device placement", ICLR 2018, and of EAGLE (IPDPS 2021), where the
grouper is linked to the placer: what the placer reads of a group is the mean of its operators' features by the probabilities with
which the grouper puts them there, so that gradients reach the grouper through the placer too. Rewards come from the cost model
that all other searches use, not from runs; how it learns is `search.policy_gradient`'s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from bricolage.base.torch_library import load_torch
from bricolage.search.devices.batch import PlacementLoads
from bricolage.search.devices.colocation import group_colours
from bricolage.search.devices.device_problem import DevicePlacementProblem, PlacedOperators, least_load, max_load
from bricolage.search.devices.solve import PlacementSearch
from bricolage.search.policy_gradient import GradientMethod, GradientOptions, PolicyGradient


@dataclass(frozen=True)
class LearningOptions:
    """Raises ValueError where there would be nothing to learn from.

    method: how. groups: of operators, at most. hidden: width of the networks. samples: placements of each round. rounds: at
    most. epochs: of PPO on the samples of a round. clip: of PPO. rate: of Adam. entropy: weight of the entropy in the first
    round; it falls to none in the last. seed: of chance."""

    method: GradientMethod = "ppo"
    groups: int = 32
    hidden: int = 64
    samples: int = 32
    rounds: int = 300
    epochs: int = 3
    clip: float = 0.2
    rate: float = 3e-3
    entropy: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.groups, self.hidden, self.rounds, self.epochs) < 1 or self.samples < 2:
            raise ValueError("learning needs a group, a unit, a round, an epoch and two samples")


def learn_placement(
    problem: DevicePlacementProblem, options: LearningOptions | None = None, *, limit_s: float = 60.0
) -> PlacedOperators:
    """The best placement that was sampled. A function of its arguments, but for rounds that `limit_s` cuts off.

    Args:
        problem: the problem.
        options: of learning.
        limit_s: seconds.

    Raises:
        MissingLibrary: PyTorch is not installed.
    """
    torch = load_torch()
    started, chosen = time.monotonic(), options or LearningOptions()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are small: threads would only wait for one another
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chosen.seed)
            best, rounds = _learn(problem, chosen, limit_s)
    finally:
        torch.set_num_threads(threads)
    value = math.inf if best is None else max_load(problem, best)
    name = "PPO" if chosen.method == "ppo" else "REINFORCE"
    note = f"{rounds} rounds of {chosen.samples} placements"
    bound = min(least_load(problem), value)
    return PlacedOperators(best or (), f"learned, {name}", value, bound, time.monotonic() - started, note)


LEARNED: Mapping[str, PlacementSearch] = {
    "reinforce": lambda problem, _known, limit: learn_placement(problem, LearningOptions("reinforce"), limit_s=limit),
    "ppo": lambda problem, _known, limit: learn_placement(problem, LearningOptions("ppo"), limit_s=limit),
}
"""By name, as `search.devices.solve.place` takes them."""


def _learn(
    problem: DevicePlacementProblem, options: LearningOptions, limit_s: float
) -> tuple[tuple[int, ...] | None, int]:
    import torch

    from bricolage.search.devices.placement_network import Policy  # a class of PyTorch's

    of, facts = _features(problem)
    devices = problem.accelerators + problem.processors
    policy = Policy(torch.tensor(facts, dtype=torch.float32), min(options.groups, len(facts)), devices, options.hidden)
    learning = PolicyGradient(
        policy.parameters(), GradientOptions(options.method, options.epochs, options.clip, options.rate)
    )
    loads, scale = PlacementLoads(problem), max(least_load(problem), 1e-12)
    best: tuple[float, tuple[int, ...]] | None = None
    deadline = time.monotonic() + limit_s  # PyTorch is there by now: to import it is no part of learning
    for number in range(options.rounds):
        if time.monotonic() > deadline or (best is not None and best[0] <= scale):
            return (None if best is None else best[1]), number
        with torch.no_grad():
            groups, placed = policy.sample(options.samples)
        where = placed.gather(1, groups).numpy()[:, of]
        each, excess = loads.loads(where)
        most = each.max(axis=1)
        for sample in np.flatnonzero(excess == 0.0):
            if best is None or most[sample] < best[0]:
                best = float(most[sample]), tuple(where[sample].tolist())
        reward = -np.log(np.maximum(most / scale, 1e-9)) - 2.0 * np.minimum(excess, 2.0)
        weight = options.entropy * (1.0 - number / options.rounds)
        learning.improve(partial(policy.score, groups, placed), learning.compare_rewards(reward), entropy_weight=weight)
    return (None if best is None else best[1]), options.rounds


def _features(problem: DevicePlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """By operator its block of one colour; of each block what is known: times, memory, moves, neighbours, and where it is in the
    graph."""
    blocks = group_colours(problem)
    of, count = np.array(blocks.of), len(blocks)
    depth = np.zeros(len(problem))
    for operator, sources in enumerate(problem.graph.predecessors):
        depth[operator] = max((depth[source] + 1.0 for source in sources), default=0.0)
    accelerator = np.array(problem.accelerator_ms)
    columns = [
        np.where(np.isinf(accelerator), 0.0, accelerator),
        np.array(problem.processor_ms),
        np.array(problem.memory),
        np.array(problem.move_ms),
        np.array([float(len(reader)) for reader in problem.readers]),
        np.isinf(accelerator).astype(float),
    ]
    sums = [np.bincount(of, column, minlength=count) for column in columns]
    first = np.full(count, np.inf)
    forward = np.where(np.array(problem.backward), np.inf, depth)
    np.minimum.at(first, of, forward)
    first = np.where(np.isinf(first), depth.max(initial=0.0), first) / max(depth.max(initial=0.0), 1.0)
    waves = [np.sin(first * math.pi * turns) for turns in (1, 2, 4, 8)] + [
        np.cos(first * math.pi * turns) for turns in (1, 2, 4, 8)
    ]
    scaled = [sum_ / max(float(sum_.std()), 1e-12) for sum_ in sums]
    return of, np.stack([*scaled, first, *waves], axis=1)
