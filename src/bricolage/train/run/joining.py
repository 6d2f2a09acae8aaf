"""One process of a plan that something else has started, as torchrun or Ray: it meets the others and runs its part."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from bricolage.base import scratch
from bricolage.base.torch_library import load_torch
from bricolage.train.run.document import read_training_plan
from bricolage.train.run.launch_plan import PlanResult, launch_plan
from bricolage.train.run.rank import Rank
from bricolage.train.step.step import accelerator


def run_as_rank(folder: Path, *, number: int, seconds: float, timeout_s: float, pipelines: int) -> PlanResult | None:
    """Runs a plan as one of the processes of the environment (WORLD_SIZE, MASTER_ADDR, MASTER_PORT); what came of it in the first.

    Plans for GPUs meet by NCCL, where CUDA is, with gloo for what lies in the processor's memory.

    Raises:
        RuntimeError: another process does not come, or does not answer.
        BricolageError: as `launch_plan` does.
    """
    plan, _ = read_training_plan(folder)
    device = accelerator(plan.devices.kind, number)
    dist = load_torch().distributed
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rank=number, timeout=timedelta(seconds=timeout_s))
    scratch_folder = scratch.temporary()
    try:
        plan_result = launch_plan(
            folder,
            seconds=seconds,
            timeout_s=timeout_s,
            pipelines=pipelines,
            rank=Rank(number, dist.get_world_size(), scratch_folder, device=device),
        )
    finally:
        scratch.remove(scratch_folder)
    dist.barrier()
    dist.destroy_process_group()
    return plan_result
