"""Elastic policies in the spirit of their abstracts: neither code nor data of them is public.

`Cynthia` (Zheng, Xu, Chen, Zhou, Liu, ICPP'19): the cheapest mix of devices that meets a job's time. It predicts a step with
parameter servers; here speeds come from the job's scaling. `SideCar` (Wang, .., Woo, SC'20): allocation by training progress, by
stopping and restarting a job's process on another number of devices: who is nearest to the end grows first.
"""

from __future__ import annotations

from bricolage.cluster.jobs import JobState
from bricolage.cluster.policies.elastic import levels
from bricolage.cluster.target_policies import ClusterView, Stateless, Target


def cheapest_mix(state: JobState, view: ClusterView, free: dict[str, int]) -> tuple[str, int] | None:
    """The kind and number of free devices of least cost that ends before the deadline; the fastest where none does; None where
    none fits."""
    mixes: list[tuple[bool, float, float, str, int]] = []
    for kind in state.kinds:
        for devices, speed in levels(state):
            if devices <= free[kind]:
                seconds = state.left_s(kind) / speed
                late = view.now + seconds > state.job.deadline_s
                cost = devices * seconds * view.cluster.price(kind)
                mixes.append((late, seconds if late else cost, seconds, kind, devices))
    return min(mixes)[3:] if mixes else None


class Cynthia(Stateless):
    """Jobs in order of submission; who runs stays as it is."""

    def target(self, view: ClusterView) -> Target:
        """The cheapest mix of what is free for each that waits."""
        wanted = {state.number: (state.held_kind, state.held) for state in view.states if state.held}
        free = dict(view.capacity)
        for kind, devices in wanted.values():
            free[kind] -= devices
        for state in view.states:
            if state.held:
                continue
            mix = cheapest_mix(state, view, free)
            if mix is None:
                break  # nobody overtakes: its turn is next
            wanted[state.number] = mix
            free[mix[0]] -= mix[1]
        return wanted


class SideCar(Stateless):
    """Every job its least number of devices in order of submission; what is left to those of most progress."""

    def __init__(self, every_s: float = 600.0) -> None:
        self.every_s = every_s

    def target(self, view: ClusterView) -> Target:
        """Who has how many until the next round."""
        free, at = dict(view.capacity), dict[int, tuple[str, int]]()
        for state in view.states:
            least = levels(state)[0][0]
            kinds = sorted(state.kinds, key=lambda kind, held=state.held_kind: kind != held)  # type: ignore[misc]
            kind = next((kind for kind in kinds if free[kind] >= least), "")
            if kind:
                at[state.number] = kind, least
                free[kind] -= least
        near = [state for state in view.states if state.number in at]
        near.sort(
            key=lambda job_state: (
                -job_state.steps_done / (job_state.steps_done + job_state.predicted_left()),
                job_state.number,
            )
        )
        for state in near:
            kind, count = at[state.number]
            most = max(devices for devices, _ in levels(state) if devices <= count + free[kind])
            free[kind] -= most - count
            at[state.number] = kind, most
        return at
