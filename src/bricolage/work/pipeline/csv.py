"""Schedules as `torch.distributed.pipelining` reads them: a row for each rank, a cell for each pass.

`_PipelineScheduleRuntime._load_csv(path, format="compute_only")` adds sends and receives itself.
"""

from __future__ import annotations

import re

from bricolage.errors import BadOption
from bricolage.work.pipeline.table import Pass, PassKind, PipelineSchedule

_CELL = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})(?:@(\d{1,6}))?")


def to_csv(schedule: PipelineSchedule) -> str:
    """The table as text.

    Raises:
        BadOption: PyTorch's runtime cannot run it: a stage is on several devices, or weights have several versions.
    """
    reason = ""
    if not schedule.synchronous:
        reason = "it updates weights between micro-batches"
    homes: dict[int, set[int]] = {}
    for (stage, _), device in schedule.device.items():
        homes.setdefault(stage, set()).add(device)
    several = sorted(stage for stage, devices in homes.items() if len(devices) > 1)
    if several:
        reason = f"stage {several[0]} is on {len(homes[several[0]])} devices"
    if reason:
        raise BadOption(
            option="--csv",
            value=schedule.name,
            advice=f"torch.distributed.pipelining cannot run this schedule: {reason}. Choose gpipe, 1f1b, dapple, interleaved, "
            "zb-h1, zb-h2, zb-v or dualpipe-v",
        )
    return table_text(schedule)


def table_text(schedule: PipelineSchedule) -> str:
    """The table as text, also where PyTorch cannot run it; where weights have versions, they stand behind a pass: "0F3@2"."""
    return "".join(
        ",".join(f"{cell}@{cell.version}" if cell.version else str(cell) for cell in row) + "\n"
        for row in schedule.rows
    )


def from_text(name: str, text: str, copies: int = 1, *, synchronous: bool = True) -> PipelineSchedule:
    """The table that a text holds.

    Raises:
        ValueError: a cell is no pass, or the table misses one, has one twice, or has one before what it needs.
    """
    rows = []
    for line in text.splitlines():
        row = []
        for cell in filter(None, (field.strip() for field in line.split(","))):
            cell_match = _CELL.fullmatch(cell)
            if cell_match is None:
                raise ValueError(f"'{cell[:40]}' is no pass (as 0F3)")
            stage, kind, micro, version = cell_match.groups()
            passed: PassKind = "F" if kind == "F" else "B" if kind == "B" else "I" if kind == "I" else "W"
            row.append(Pass(int(stage), passed, int(micro), int(version or 0)))
        rows.append(tuple(row))
    flat = [step for row in rows for step in row]
    if not flat:
        raise ValueError("it holds no pass")
    stages, micro_batches = max(step.stage for step in flat) + 1, max(step.micro_batch for step in flat) + 1
    return PipelineSchedule(name, stages, micro_batches, tuple(rows), (copies,) * len(rows), synchronous)
