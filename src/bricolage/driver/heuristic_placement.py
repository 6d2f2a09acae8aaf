"""A placement without measuring: by preference among backends, for a caller who cannot wait for measurements.

The first backend that claims the whole graph gets it. Where none does, as few regions as cover it are chosen from what backends
claim, of equally many those of backends that come first. Capability tables hold as in a measured placement.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from bricolage.backends.capabilities import is_current
from bricolage.backends.claim_matching import Matcher, objections
from bricolage.backends.interface import Backend
from bricolage.device.device import Device
from bricolage.errors import NoPlacement, Unclaimed
from bricolage.graph.graph import Graph, Region, describe
from bricolage.graph.to_work import to_work
from bricolage.measure import selfcheck
from bricolage.search.placement.exact import solve_additive
from bricolage.work import bits as bitset
from bricolage.work.implementation import Assignment, Implementation, Placement
from bricolage.work.placement import Candidate

Failures = Mapping[str, int]
"""By backend, the operators with which it has failed here, as a bit-set."""


def usable_backends(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    """The backends as they may be used at once: those whose capability table is of another version than the installed one with
    what earlier self-checks found, and those that compile quickly first."""
    usable: list[Backend] = []
    for backend in sorted(backends, key=lambda candidate: candidate.compiles_slowly):
        if not is_current(backend):
            backend = copy.copy(backend)
            backend.self_check = selfcheck.known_findings(backend)
        usable.append(backend)
    return tuple(usable)


def place_by_preference(graph: Graph, backends: Sequence[Backend], device: Device, failed: Failures) -> Placement:
    """The placement of a graph on `backends`, of which earlier ones are preferred, in their first configuration for the precision
    "highest". An operator is not given to a backend that has failed with it.

    Raises:
        Unclaimed: no backend claims one of the operators; with the reasons.
    """
    matcher, everything = Matcher(graph), graph.everything.bits
    choices: list[Candidate] = []
    last = len(backends) * len(graph) + 1
    for rank, backend in enumerate(backends):
        implementation = Implementation(backend.name, backend.configs("highest", device)[0], device.name)
        claims, free = tuple(backend.claims()), everything & ~failed.get(backend.name, 0)
        accepted = matcher.accepted(claims) & free
        if accepted == everything and (backend.dynamic or graph.static):
            return (Assignment(everything, implementation),)
        regions = {region for region in matcher.regions(claims) if region & free == region}
        regions.update(matcher.maximal(accepted))
        choices += [
            Candidate(region, implementation, 1 + rank * region.bit_count() / last)
            for region in sorted(regions)
            if backend.dynamic or _static(graph, region)
        ]
    try:
        placed = solve_additive(to_work(graph), choices)
    except NoPlacement as error:
        covered = 0
        for choice in choices:
            covered |= choice.region
        number = bitset.lowest(everything & ~covered)
        operator = graph.operators[number]
        reasons = "; ".join(f"{backend.name}: {_reason(graph, number, backend, failed)}" for backend in backends)
        raise Unclaimed(name=operator.name, op_type=operator.op_type, reasons=reasons) from error
    return tuple(choice.assignment for choice in placed.choices)


def _static(graph: Graph, region: int) -> bool:
    operators = Region(graph, region).operators
    values = (value for operator in operators for value in (*operator.inputs, *operator.outputs))
    return all(describe(value).static for value in values)


def _reason(graph: Graph, number: int, backend: Backend, failed: Failures) -> str:
    if failed.get(backend.name, 0) >> number & 1:
        return "it has failed here"
    return ", ".join(objections(backend, graph, graph.operators[number])) or "it takes static shapes alone"
