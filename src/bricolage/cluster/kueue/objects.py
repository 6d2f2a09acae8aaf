"""Kueue's resources as its API gives them (kueue.x-k8s.io, v1beta1 to v1): what a policy has to know of workloads and quotas."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

Field: TypeAlias = Any
"""What stands in a resource: another version of the API may put anything there."""
Resource: TypeAlias = Mapping[str, Field]
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([KkMGTPE]i?|m)?")
_SUFFIX = {"m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SERIAL = re.compile(r"(-(?:[0-9]+|[0-9a-f]{5,10}|(?=[a-z0-9]*[0-9])[a-z0-9]{5}))+$")
"""What tells runs of one job apart at the end of a name: numbers, and letters with digits drawn at random."""


@dataclass(frozen=True)
class CheckState:
    """The state of our admission check on a workload."""

    name: str
    state: str
    """Pending, Ready, Retry or Rejected."""
    message: str


@dataclass(frozen=True)
class KueueWorkload:
    """A workload with devices. Times are seconds since 1970; nan: not yet."""

    namespace: str
    name: str
    version: str
    """`metadata.resourceVersion`: a change of ours is refused where it is another by then."""
    program: str
    queue: str
    """Its ClusterQueue; empty where its LocalQueue is not known."""
    devices: int
    flavor: str
    """Of the quota that it has reserved; empty where it has none."""
    created_s: float
    admitted_s: float
    finished_s: float
    limit_s: float
    active: bool
    reserved: bool
    check: CheckState | None
    failed: bool = False

    @property
    def key(self) -> str:
        """Of all namespaces."""
        return f"{self.namespace}/{self.name}"

    @property
    def running(self) -> bool:
        """Whether it was admitted and has not ended."""
        return not math.isnan(self.admitted_s) and math.isnan(self.finished_s)


@dataclass(frozen=True)
class KueueState:
    """All that a decision goes by."""

    now: float
    workloads: tuple[KueueWorkload, ...]
    """With devices, in order of creation."""
    quotas: Mapping[str, Mapping[str, int]]
    """Devices of each flavor of each ClusterQueue that asks for one of our checks."""
    left_out: Mapping[str, int] = field(default_factory=dict)


def state_of(
    workloads: Sequence[Resource], cluster_queues: Sequence[Resource], local_queues: Sequence[Resource],
    checks: frozenset[str], resource: str, now: float,
) -> KueueState:  # fmt: skip
    """From what the API lists.

    Args:
        workloads, cluster_queues, local_queues: as the API lists them.
        checks: names of the admission checks that are ours.
        resource: what counts as a device: nvidia.com/gpu.
        now: seconds since 1970.
    """
    quotas = {
        _name(queue): quota for queue in cluster_queues if _asks(queue, checks) and (quota := _quota(queue, resource))
    }
    behind = {
        (_at(queue, "metadata", "namespace"), _name(queue)): str(_at(queue, "spec", "clusterQueue") or "")
        for queue in local_queues
    }
    left_out: Counter[str] = Counter()
    kueue_workloads = []
    for workload in workloads:
        devices = _devices(workload, resource)
        if not devices:
            left_out["workloads have no device"] += 1
            continue
        kueue_workloads.append(_workload(workload, devices, behind, checks, resource))
    kueue_workloads.sort(key=lambda workload: (workload.created_s, workload.key))
    return KueueState(now, tuple(kueue_workloads), quotas, dict(left_out))


def _workload(
    one: Resource, devices: int, behind: Mapping[tuple[Field, str], str], checks: frozenset[str], resource: str
) -> KueueWorkload:
    namespace = str(_at(one, "metadata", "namespace") or "")
    queue = str(_at(one, "status", "admission", "clusterQueue") or "")
    queue = queue or behind.get((namespace, str(_at(one, "spec", "queueName") or "")), "")
    seconds = _at(one, "spec", "maximumExecutionTimeSeconds")
    state = next((row for row in _at(one, "status", "admissionChecks") or () if row.get("name") in checks), None)
    admitted, reserved = _condition(one, "Admitted"), _condition(one, "QuotaReserved")
    finished = _condition(one, "Finished")
    flavor = ""
    for row in _at(one, "status", "admission", "podSetAssignments") or ():
        flavor = flavor or str((row.get("flavors") or {}).get(resource, ""))
    return KueueWorkload(
        namespace=namespace,
        name=_name(one),
        version=str(_at(one, "metadata", "resourceVersion") or ""),
        program=_program(one),
        queue=queue,
        devices=devices,
        flavor=flavor,
        created_s=_seconds(_at(one, "metadata", "creationTimestamp")),
        admitted_s=admitted if not math.isnan(admitted) else math.nan,
        finished_s=finished,
        limit_s=float(seconds) if seconds else math.inf,
        active=_at(one, "spec", "active") is not False,
        reserved=not math.isnan(reserved),
        check=None
        if state is None
        else CheckState(state["name"], str(state.get("state", "")), str(state.get("message", ""))),
        failed=_reason(one, "Finished") not in ("", "Succeeded", "JobFinished"),
    )


def _program(one: Resource) -> str:
    """The name of what owns it, without what tells runs of it apart."""
    owners = _at(one, "metadata", "ownerReferences") or ()
    name = str(owners[0].get("name", "")) if owners else _name(one)
    return _SERIAL.sub("", name) or name


def _devices(one: Resource, resource: str) -> int:
    """Of all pods: requests, or limits where there are none; the larger of containers and init containers."""
    total = 0.0
    for pods in _at(one, "spec", "podSets") or ():
        spec = _at(pods, "template", "spec") or {}
        main = sum(_wants(container, resource) for container in spec.get("containers") or ())
        first = max((_wants(container, resource) for container in spec.get("initContainers") or ()), default=0.0)
        total += float(pods.get("count", 1)) * max(main, first)
    return math.ceil(total)


def _wants(container: Resource, resource: str) -> float:
    for kind in ("requests", "limits"):
        amount = (_at(container, "resources", kind) or {}).get(resource)
        if amount is not None:
            return quantity(amount)
    return 0.0


def _quota(one: Resource, resource: str) -> dict[str, int]:
    quota: dict[str, int] = {}
    for group in _at(one, "spec", "resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for row in flavor.get("resources") or ():
                if row.get("name") == resource and (count := int(quantity(row.get("nominalQuota", 0)))) > 0:
                    quota[str(flavor.get("name", ""))] = count
    return quota


def _asks(one: Resource, checks: frozenset[str]) -> bool:
    names = set(_at(one, "spec", "admissionChecks") or ())  # v1beta1 only
    rules = _at(one, "spec", "admissionChecksStrategy", "admissionChecks") or ()
    return bool((names | {rule.get("name") for rule in rules}) & checks)


def quantity(value: Field) -> float:
    """A number as Kubernetes writes it ("2", "500m", "4k", 3); 0 where it is none."""
    if isinstance(value, int | float):
        return float(value)
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return 0.0
    suffix = match[2] or ""
    scale = 1024.0 ** ("KMGTPE".index(suffix[0].upper()) + 1) if suffix.endswith("i") else _SUFFIX.get(suffix, 1.0)
    return float(match[1]) * scale


def _condition(one: Resource, kind: str) -> float:
    """Since when a condition is true; nan where it is not."""
    for row in _at(one, "status", "conditions") or ():
        if row.get("type") == kind and row.get("status") == "True":
            return _seconds(row.get("lastTransitionTime"))
    return math.nan


def _reason(one: Resource, kind: str) -> str:
    return next(
        (str(row.get("reason", "")) for row in _at(one, "status", "conditions") or () if row.get("type") == kind), ""
    )


def _seconds(text: Field) -> float:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _name(one: Resource) -> str:
    return str(_at(one, "metadata", "name") or "")


def _at(one: Field, *path: str) -> Field:
    for name in path:
        if not isinstance(one, dict):
            return None
        one = one.get(name)
    return one
