"""What methods make of one problem of placement: a training step or an instance, and the placement that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bricolage._version import __version__
from bricolage.base.codec import JsonObject, encode
from bricolage.errors import NoDevicePlacement
from bricolage.search.devices.placement_methods import Goal, MethodPlacement, PlacementCase

if TYPE_CHECKING:
    from bricolage.costs.latency import Latency
    from bricolage.train.run.plan_worker import GradientCheck

FORMAT = 1
"""Version of the format of a placement that is written."""


@dataclass(frozen=True)
class PlacedRun:
    """A placement that was run on processes of this machine. Milliseconds of a step."""

    methods: tuple[str, ...]
    """That place the operators so."""
    devices: tuple[str, ...]
    """That have something to do."""
    predicted_ms: float | None
    """Of what was run: pieces in their order, each move once. None where it cannot be run."""
    measured: Latency | None
    """None where it was not timed."""
    moves: int
    moved_bytes: int
    check: GradientCheck | None
    """Against the step in one process, in float64."""
    refused: str = ""
    """Why it was not timed."""

    @property
    def error(self) -> float | None:
        """Predicted over measured time, minus one."""
        if self.measured is None or self.predicted_ms is None:
            return None
        return self.predicted_ms / self.measured.median_ms - 1.0


@dataclass(frozen=True)
class PlacementComparison:
    """Times in milliseconds, memory in bytes."""

    source: str
    """The file, in words."""
    operators: tuple[str, ...] = field(repr=False)
    devices: tuple[str, ...]
    memory_bytes: Mapping[str, int]
    """Of the devices whose memory is known."""
    bounds: Mapping[Goal, float]
    """No placement takes less."""
    methods: tuple[MethodPlacement, ...]
    goal: Goal
    """By which the kept placement is best."""
    kept: str
    """Its method."""
    runs: tuple[PlacedRun, ...] = ()
    """Where the placements were run."""

    @property
    def placement(self) -> MethodPlacement:
        """The one that is kept."""
        return next(method for method in self.methods if method.method == self.kept and not method.refused)


def compare_placements(
    source: str, case: PlacementCase, placements: Sequence[MethodPlacement], goal: Goal
) -> PlacementComparison:
    """All placements of a case; the best by `goal` is kept.

    Raises:
        NoDevicePlacement: no method places the operators, or none as the goal asks.
    """
    able = [placement for placement in placements if placement.ms.get(goal) is not None]
    if not able:
        refused = next((placement for placement in placements if placement.refused), None)
        reason = f"no placement has a time by '{goal}'" if refused is None else f"{refused.method}: {refused.refused}"
        raise NoDevicePlacement(reason=reason)
    bounds: dict[Goal, float] = {"sample": case.sample_bound, "load": case.load_bound}
    if case.around is not None and any(placement.goal == "blocks" for placement in placements):
        bounds["blocks"] = case.blocks_bound
    best = min(able, key=lambda placement: placement.ms[goal] or 0.0)
    return PlacementComparison(
        source=source,
        operators=tuple(operator.name for operator in case.sample.graph.operators),
        devices=case.names,
        memory_bytes=dict(case.sample.memory),
        bounds=bounds,
        methods=tuple(placements),
        goal=goal,
        kept=best.method,
    )


def comparison_json(comparison: PlacementComparison) -> JsonObject:
    """What `--json` prints: all of it, with what each method looks for and its gap."""
    document: JsonObject = encode(comparison)
    rows = zip(encode(comparison.methods), comparison.methods, strict=True)
    document["methods"] = [{**row, "predicted_ms": method.predicted_ms, "gap": method.gap} for row, method in rows]
    document["runs"] = [{**encode(run), "error": run.error} for run in comparison.runs]
    return document


def placement_json(comparison: PlacementComparison) -> JsonObject:
    """The kept placement as a file: for each operator its device."""
    kept = comparison.placement
    return {
        "format": FORMAT,
        "bricolage": __version__,
        "source": comparison.source,
        "method": kept.method,
        "goal": comparison.goal,
        "ms": encode(kept.ms),
        "bounds": encode(comparison.bounds),
        "memory": encode(kept.memory),
        "operators": dict(zip(comparison.operators, kept.devices, strict=True)),
    }
