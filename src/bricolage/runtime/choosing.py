"""Which plan of a pack this machine runs, and why."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.base.options import BOUNDS, Precision
from bricolage.device.device import GIB, Device
from bricolage.device.memory import available_bytes
from bricolage.errors import NoTarget
from bricolage.plan.pack import Pack, PackEntry

_NEAR = 1.1
"""Times of two targets were not measured in turns: what is as near as that to the fastest may be as fast, and the one that leaves
less of the machine unused is taken."""


@dataclass(frozen=True)
class PackChoice:
    """A plan of a pack."""

    entry: PackEntry
    because: str
    """A sentence for people."""


def choose_entry(
    pack: Pack,
    here: Device,
    threads: int,
    *,
    target: str = "",
    precision: Precision | None = None,
    free: int | None = None,
) -> PackChoice:
    """The entry that is to run here: of those that this machine can run as planned the fastest, of the tightest precision unless a
    looser one will do.

    Args:
        pack: what there is.
        here: this machine.
        threads: that this process may use.
        target: the name of one; nothing else is asked then.
        precision: that will do; by default the tightest that the pack has for this machine.
        free: bytes of memory that can be used; by default they are looked up.

    Raises:
        NoTarget: there is none of this name, or none that runs here.
    """
    if target:
        entry = pack.entry(target)
        if entry is None:
            raise NoTarget(
                reason=f"it has no target '{target}', only {', '.join(candidate.target.name for candidate in pack.entries)}"
            )
        if entry.emulated and (missing := _missing_instructions(entry, here)):
            raise NoTarget(reason=f"target '{target}' is for instructions that this machine has not: {missing}")
        return PackChoice(entry, "it was asked for by name")
    free = available_bytes() if free is None else free
    refused = {entry.target.name: lacks(entry, here, threads, free) for entry in pack.entries}
    able = [entry for entry in pack.entries if not refused[entry.target.name]]
    if precision is not None:
        able = [entry for entry in able if entry.bound <= BOUNDS[precision]]
    if not able:
        refusals = "; ".join(f"{name}: {why}" for name, why in refused.items() if why)
        raise NoTarget(reason=refusals or f"none has precision {precision}")
    bound = min(entry.bound for entry in able)
    if precision is None:
        able = [entry for entry in able if entry.bound == bound]
    # Times of several processors do not say which plan is fastest here. What was made for instructions that the others do without
    # goes before them.
    alike = [entry for entry in able if entry.measured_on == here.model]
    widest = max((len(entry.instructions) for entry in able if entry.emulated), default=0)
    able = alike or [entry for entry in able if entry.emulated and len(entry.instructions) == widest] or able
    least = min((candidate.median_ms for candidate in able if candidate.median_ms is not None), default=0.0)
    near = [candidate for candidate in able if candidate.median_ms is None or candidate.median_ms <= _NEAR * least]
    best = min(
        near, key=lambda candidate: (-candidate.threads, -len(candidate.instructions), candidate.median_ms or 0.0)
    )
    others = "; ".join(f"not {name}: {why}" for name, why in refused.items() if why)
    what = "the only one that runs here" if len(able) == 1 else f"the fastest of {len(able)} that run here"
    return PackChoice(best, what + (f" ({others})" if others else ""))


def lacks(entry: PackEntry, here: Device, threads: int, free: int) -> str:
    """Why this machine cannot run an entry as planned; empty where it can."""
    if entry.predicted_ms is not None and not entry.emulated:
        return "its times are predictions for another device: it is taken by name"
    if (entry.system, entry.architecture) != (here.system, here.architecture):
        return f"it is for {entry.system} {entry.architecture}"
    if missing := _missing_instructions(entry, here):
        return f"this machine has no {missing}"
    if entry.threads > threads:
        return f"it has {entry.threads} threads, and this process may use {threads}"
    if entry.resident_bytes > free:
        return f"it takes {entry.resident_bytes / GIB:.2f} GiB, and {free / GIB:.2f} GiB are free"
    return ""


def _missing_instructions(entry: PackEntry, here: Device) -> str:
    """Some of the processor flags that a plan needs and this machine has not, for people; empty where it has all."""
    return ", ".join(sorted(set(entry.instructions) - here.instructions)[:3])
