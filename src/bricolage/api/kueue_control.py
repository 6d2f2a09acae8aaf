"""A policy behind Kueue's admission checks: `bricolage cluster kueue`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bricolage.cluster.kueue.admission_check import CheckVerdict
from bricolage.cluster.kueue.api import KueueClient
from bricolage.cluster.kueue.controller import CONTROLLER, KueueController
from bricolage.cluster.policy_catalogue import find_policy

__all__ = ["CheckVerdict", "KueueOptions", "control_kueue"]


@dataclass(frozen=True)
class KueueOptions:
    """Which policy lets workloads in, and where."""

    policy: str = "easy"
    context: str = ""
    """Of the kubeconfig; empty: its current one, or the cluster around this process."""
    server: str = ""
    """Address of an API server without credentials (`kubectl proxy`), instead of a kubeconfig."""
    controller: str = CONTROLLER
    """`controllerName` of the admission checks to serve."""
    resource: str = "nvidia.com/gpu"
    """What counts as a device."""
    every_s: float = 30.0
    """The longest time without a look, in seconds."""
    looks: int = 0
    """How many; 0: until the process is ended."""


def control_kueue(
    options: KueueOptions = KueueOptions(),
    *,
    show: Callable[[Sequence[CheckVerdict]], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Lets Kueue's workloads in by a policy, and tells the others when they are expected to start.

    Args:
        options: the policy, the cluster and its checks.
        show: called after each look with the verdicts that are news.
        note: called with what a person should know.

    Raises:
        UnknownPolicy, PolicyRefuses: the policy does not exist, or cannot serve these workloads.
        KueueMissing: the package `kubernetes` is not installed.
        KueueNoChecks: no admission check names this controller.
        KueueUnavailable: the API does not answer; one that has answered once is asked again.
    """
    find_policy(options.policy)  # before a cluster is spoken to
    client = KueueClient(options.context, options.server)
    done = 0

    def over() -> bool:
        nonlocal done
        done += 1
        return bool(options.looks) and done >= options.looks

    kueue = KueueController(client, options.policy, options.controller, options.resource, options.every_s, told=note)
    kueue.run(over, show)
