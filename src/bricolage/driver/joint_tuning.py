"""Tuning kernels jointly with what earlier passes decide.

A pass that chooses the graph, the layout or arithmetic, the fusion, or the backend by what is fastest before kernels are tuned
may choose what is slower afterwards (XTAT; Phothilimthana et al., PACT 2021). So several of its choices
are carried through: each combination of graph variant, implementation and structure of kernels is an *arm*; all arms have a slice
of the time, the worse half by the time that the whole is expected to take is dropped, the others have twice as much, and so on
(successive halving; Jamieson and Talwalkar, AISTATS 2016). What a trial says of a kernel counts in every arm that has one which
does the same work. The alternative is *sequential*: each pass takes what is fastest before the next one begins.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from bricolage.backends import registry
from bricolage.base.deadline import Deadline
from bricolage.base.time_shares import TuningShares
from bricolage.driver.timed_variant import TimedVariant
from bricolage.errors import BadOption
from bricolage.plan.program_step import Step
from bricolage.plan.tuned import TunedKernels
from bricolage.tune.kernel_search import Snapshot, TuningResult
from bricolage.tune.kernel_tuner import KernelTuner
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)
Order = Literal["joint", "sequential"]
ORDERS: tuple[Order, ...] = get_args(Order)
_REACH = 1.05
"""An arm whose whole takes longer than that times the best is not searched, beyond what its backend may gain by tuning."""


@dataclass
class Arm:
    """One combination of what earlier passes decide."""

    variant: TimedVariant
    implementation: Implementation
    usual_ms: float
    """Of the whole, with kernels by rules of thumb."""
    result: TuningResult | None = None
    curve: list[Snapshot] = field(default_factory=list)
    searched_s: float = 0.0

    @property
    def tuned(self) -> TunedKernels:
        """What was found; nothing before the first search."""
        return TunedKernels(self.implementation) if self.result is None else self.result.tuned

    @property
    def expected_ms(self) -> float:
        """Of the whole, with what was found."""
        return self.usual_ms - sum(task.saved_ms for task in self.tuned.tasks)

    @property
    def gains(self) -> float:
        """By which factor its backend may gain."""
        return registry.get(self.implementation.backend).gains_by_tuning


Told = Callable[[Implementation, Snapshot], None]


def arms(variants: Sequence[TimedVariant], tuner: KernelTuner, deadline: Deadline) -> list[Arm]:
    """The combinations that could become the fastest by tuning: every implementation of every variant's whole that comes near the
    fastest, and the structures that its backend also offers, as far as time reaches; the fastest first."""
    candidates = [
        Arm(variant, implementation, ms)
        for variant in variants
        for implementation, ms in variant.times.items()
        if variant.session.backend(implementation.backend).tunable and not implementation.config.parameters
    ]
    fastest = min((ms for variant in variants for ms in variant.times.values()), default=math.inf)
    near = sorted((arm for arm in candidates if arm.usual_ms <= fastest * arm.gains), key=lambda arm: arm.usual_ms)
    structures = deadline.at_most(_shares(variants[0]).structures * deadline.left)
    for arm in list(near):
        if structures() or arm.usual_ms > near[0].usual_ms * _REACH:
            break
        others = tuner.structures(_step(arm), structures)
        if others and not structures():
            arm.variant.measure_whole(others, structures)
        times = arm.variant.times
        near += [Arm(arm.variant, other, times[other]) for other in others if other in times]
    return sorted((arm for arm in near if arm.usual_ms <= fastest * arm.gains), key=lambda arm: arm.usual_ms)


def parse_order(word: str) -> Order:
    """The order of a word.

    Raises:
        BadOption: it is none.
    """
    for order in ORDERS:
        if order == word:
            return order
    raise BadOption(option="--order", value=word, advice=f"Use {' or '.join(ORDERS)}")


def search_arms(found: Sequence[Arm], tuner: KernelTuner, deadline: Deadline, order: Order, told: Told) -> list[Arm]:
    """Searches arms until `deadline`; those that had a turn, the one that was searched to the end first. With "sequential" the
    fastest alone."""
    if order == "sequential":
        _turn(found[0], tuner, deadline, told, final=True)
        return [found[0]]
    alive = list(found[: max(1, int(deadline.left / (2 * _shares(found[0].variant).turn_s)))])
    turned: list[Arm] = []
    try:
        while alive and not deadline():
            share = deadline.left / (math.ceil(math.log2(len(alive))) + 1)
            for number, arm in enumerate(alive):
                part = deadline.at_most(share / (len(alive) - number) if len(alive) > 1 else deadline.left)
                begun = deadline.left
                _turn(arm, tuner, part, told, final=len(alive) == 1)
                turned += [arm] if arm not in turned else []
                share -= begun - deadline.left
                if not arm.curve and len(alive) > 1:  # getting ready took all of its time: there are too many
                    break
            if len(alive) == 1:
                break
            alive = sorted(alive, key=lambda arm: arm.expected_ms)[: max(1, len(alive) // 2)]
            _LOG.info("goes on with %s", ", ".join(str(arm.implementation) for arm in alive))
    finally:
        for backend in {arm.implementation.backend for arm in turned}:
            tuner.close(backend)
    return [*alive, *sorted((arm for arm in turned if arm not in alive), key=lambda arm: arm.expected_ms)]


def _turn(arm: Arm, tuner: KernelTuner, deadline: Deadline, told: Told, *, final: bool) -> None:
    begun = deadline.clock()
    result = tuner.search(
        _step(arm),
        arm.variant.region_key(arm.variant.graph.everything),
        registry.version(arm.implementation.backend),
        deadline,
        lambda seen: told(arm.implementation, seen),
        final=final,
    )
    arm.result, spent = result, arm.searched_s
    arm.searched_s += deadline.clock() - begun
    arm.curve += [replace(point, seconds=point.seconds + spent) for point in result.curve]


def _step(arm: Arm) -> Step:
    variant = arm.variant
    region, store = variant.graph.everything, variant.session.store
    return Step(arm.implementation, store.region(region, variant.region_key(region)))


def _shares(variant: TimedVariant) -> TuningShares:
    shares = variant.session.budget.shares
    return shares.tuning
