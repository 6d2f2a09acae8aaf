"""Policies that fill rounds in an order made anew for each round: Gandiva's time slices, Themis' finish-time fairness."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import Apart, ClusterView, Target


def fill_devices(order: Iterable[JobState], view: ClusterView, kept: Target | None = None) -> Target:
    """Jobs in an order, each on the first kind that has room, preferably where it runs; who does not fit is passed over."""
    wanted = dict(kept or {})
    free = dict(view.capacity)
    for kind, devices in wanted.values():
        free[kind] -= devices
    for state in order:
        if state.number in wanted:
            continue
        kinds = sorted(state.kinds, key=lambda kind: kind != state.held_kind) if state.held else state.kinds
        kind = next((kind for kind in kinds if free[kind] >= state.job.devices), "")
        if kind:
            wanted[state.number] = (kind, state.job.devices)
            free[kind] -= state.job.devices
    return wanted


@dataclass
class TimeSlices(Apart):
    """Gandiva's suspend and resume (Xiao et al., OSDI'18; no code is public): jobs take turns in slices, who has waited longest
    first. Its migration and growing are
    `gandiva`, its packing is `gandiva-packed`."""

    every_s: float = 60.0

    def target(self, view: ClusterView) -> Target:
        """Who runs in this slice."""
        order = sorted(
            view.states, key=lambda state: (state.held > 0, state.waits_since_s if not state.held else state.since_s)
        )
        everybody = fill_devices(sorted(view.states, key=lambda state: not state.held), view)
        return everybody if len(everybody) == len(view.states) else fill_devices(order, view)


@dataclass
class Themis(Apart):
    """Themis (Mahajan et al., NSDI'20; from second-hand notes): devices whose lease is over go to the jobs of the worst finish-time
    fairness rho. The share `1 - fairness` of the jobs, worst first, may bid; what they leave goes to the others, shortest first.

    A gang cannot use parts of what it asks for, so that its bid is all or nothing, and the auction becomes an order by rho.
    """

    every_s: float = 120.0
    lease_s: float = 600.0
    fairness: float = 0.8
    _until: dict[int, float] = field(default_factory=dict)

    def target(self, view: ClusterView) -> Target:
        """Leases that are not over stay."""
        kept = {
            state.number: (state.held_kind, state.held)
            for state in view.states
            if state.held and self._until.get(state.number, 0.0) > view.now
        }
        rest = [state for state in view.states if state.number not in kept]
        rest.sort(key=lambda job_state: (-rho(job_state, view), job_state.number))
        bids = math.ceil((1.0 - self.fairness) * len(view.states))
        order = rest[:bids] + sorted(
            rest[bids:], key=lambda job_state: (job_state.left_s(job_state.kinds[0]), job_state.number)
        )
        wanted = fill_devices(order, view, kept)
        for number in wanted.keys() - kept.keys():
            self._until[number] = view.now + self.lease_s
        return wanted

    def ended(self, state: JobState, now: float) -> None:
        """Its lease is over."""
        del now
        self._until.pop(state.number, None)


def rho(state: JobState, view: ClusterView) -> float:
    """Finish time if it ran from now on, by that on an exclusive 1/n of the devices, n the number of jobs now."""
    rate = state.rate_on(state.kinds[0])
    share = min(1.0, view.devices / (len(view.states) * state.job.devices))
    whole = (state.steps_done + state.predicted_left()) / rate
    return (view.now - state.job.submit_s + state.predicted_left() / rate) / (whole / share)
