"""Schedules as `torch.distributed.pipelining` reads them: a row for each rank, a cell for each pass.

`_PipelineScheduleRuntime._load_csv(path, format="compute_only")` adds sends and receives itself.
"""

from __future__ import annotations

from bricolage.errors import BadOption
from bricolage.work.pipeline.table import PipelineSchedule


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
    several = sorted(stage for stage, some in homes.items() if len(some) > 1)
    if several:
        reason = f"stage {several[0]} is on {len(homes[several[0]])} devices"
    if reason:
        raise BadOption(
            option="--csv",
            value=schedule.name,
            advice=f"torch.distributed.pipelining cannot run this schedule: {reason}. Choose gpipe, 1f1b, dapple, interleaved, "
            "zb-h1, zb-h2, zb-v or dualpipe-v",
        )
    return "".join(",".join(map(str, row)) + "\n" for row in schedule.rows)
