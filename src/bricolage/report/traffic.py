"""What fused kernels move, compared with their operators one by one and with groups of layers: `explain --traffic`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from bricolage.base.codec import JsonObject
from bricolage.report import words
from bricolage.report.explain import SHOWN
from bricolage.report.tables import plain_table, plain_text
from bricolage.work.fused_kernel import KernelTraffic, RegionTraffic

_NAMES = 2
"""Operators of a kernel that are named."""


def traffic_table(number: int, traffic: RegionTraffic, everything: bool = False) -> RenderableType:
    """The kernels of a region by the bytes that they move, the sum of all, and the groups."""
    largest = sorted(traffic.kernels, key=lambda kernel: -kernel.moved)
    shown = set(largest if everything else largest[:SHOWN])
    rows = [_row(kernel) for kernel in traffic.kernels if kernel in shown]
    total = [sum(column) for column in zip(*map(_columns, traffic.kernels), strict=True)]
    rows.append(["all", words.count(len(traffic.kernels), "kernel"), *map(words.size, total)])
    moved = sum(kernel.moved for kernel in traffic.kernels)
    title = f"Region {number}: {words.size(moved)} to and from memory, {words.size(total[-1])} operator by operator"
    heads = [("Kernel", "left"), ("Operators", "fold"), ("Weights", "right"), ("Inputs", "right"), ("Outputs", "right")]
    heads += [("Kept", "right"), ("Unfused", "right")]
    parts: list[RenderableType] = [Text(""), plain_text(title, "bold"), plain_table(heads, rows)]
    if len(shown) < len(traffic.kernels):
        rest = words.count(len(traffic.kernels) - len(shown), "kernel")
        parts.append(Text(f"and {rest} that move less; --all lists every one", style="dim"))
    return Group(*parts, Text(""), *_groupings(traffic))


def _groupings(traffic: RegionTraffic) -> list[RenderableType]:
    heads = [("Groups of layers", "left"), ("Groups", "right"), ("Memory", "right"), ("Moving", "right"), ("", "left")]
    rows = [
        [
            grouping.plan,
            str(grouping.groups),
            words.size(round(grouping.memory_bytes)),
            words.milliseconds(grouping.ms),
            "proven in the model" if grouping.proven else "",
        ]
        for grouping in traffic.groupings
    ]
    title = f"{words.count(traffic.layers, 'layer')} and a buffer of {words.size(traffic.buffer_bytes)}, by the model of Optimus"
    note = "the model counts blocks and tiles of one thread; it is not measured"
    return [plain_text(title, "bold"), plain_table(heads, rows), Text(note, style="dim")]


def _columns(kernel: KernelTraffic) -> tuple[int, ...]:
    return kernel.weights, kernel.inputs, kernel.outputs, kernel.kept, kernel.unfused


def _row(kernel: KernelTraffic) -> list[str]:
    more = len(kernel.operators) - _NAMES
    names = ", ".join(kernel.operators[:_NAMES]) + (f" and {more} more" if more > 0 else "")
    label = f"{kernel.kind}: {names}" if names else kernel.kind
    return [kernel.name.removeprefix("kernel_"), label, *map(words.size, _columns(kernel))]


def traffic_json(moved: Mapping[int, RegionTraffic]) -> JsonObject:
    """The same for programs, by number of the region; nothing where nothing was asked."""
    return {"traffic": {str(number): asdict(traffic) for number, traffic in moved.items()}} if moved else {}
