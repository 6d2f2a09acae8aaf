"""Losses of asynchronous training: `python -m benchmarks.training.pipemare --devices 4 --batches 60 --json`.

A perceptron of 16 layers learns classes that a fixed network names. It is trained by PipeMare's pipeline on gloo processes, without
remedies, with the learning rate rescheduled (T1), with weights of backward passes corrected (T2), and with both; and in one process
with the same micro-batches one after another ("in turn"). Printed is the mean loss of the last tenth of the batches; `ratio` is by
that in turn. Random numbers have seeds, so that losses are the same in every run on one machine.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.training.delayed_training import DelayedAnswer, DelayedJob, train_delayed, train_in_turn
from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.pipeline.pipemare import Remedies
from bricolage.train.run.process_group import run_group
from bricolage.train.step.spec import Optimiser, StepSpec
from bricolage.work.pipeline.csv import table_text
from bricolage.work.pipeline.generators import pipemare

_WIDTH, _CLASSES, _LAYERS = 32, 4, 16


def deep() -> nn.Module:
    """16 linear layers, each but the last with what its rectifier adds to its input."""
    return nn.Sequential(*[_Residual() for _ in range(_LAYERS - 1)], nn.Linear(_WIDTH, _CLASSES))


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 32] to the same."""
        return x + 0.5 * torch.relu(self.inner(x))


def taught(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points [size, 32], and classes that a fixed network of one hidden layer names."""
    fixed = torch.Generator().manual_seed(12345)
    inner, outer = torch.randn(_WIDTH, 64, generator=fixed), torch.randn(64, _CLASSES, generator=fixed)
    points = torch.randn(size, _WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    return points, (torch.relu(points @ inner) @ outer).argmax(1)


def compare(devices: int, micro_batches: int, batches: int, lr: float, batch_size: int = 256) -> dict[str, float]:
    """Mean losses behind training, by remedy."""
    place = "benchmarks.training.pipemare"
    spec = StepSpec(f"{place}:deep", f"{place}:taught", batch_size=batch_size, optimiser=Optimiser("sgd", lr=lr))
    ends = [round(_LAYERS * one / devices) for one in range(devices)]
    plan = PipelinePlan("pipemare", devices, devices, 1, micro_batches, False, tuple(ends), 1.0, 0.0, 0.0, 0.0, 0.0)
    table = table_text(pipemare(devices, micro_batches))
    anneal = micro_batches * batches // 2
    ways = {
        "plain": Remedies(0, corrected=False),
        "T1": Remedies(anneal, corrected=False),
        "T2": Remedies(0),
        "T1 and T2": Remedies(anneal),
    }
    found = {"in turn": _end(train_in_turn(spec, micro_batches, batches))}
    for name, one in ways.items():
        job = DelayedJob(spec, plan, tuple(map(str, ends[1:])), table, batches, one)
        answers = run_group(train_delayed, [job] * devices, DelayedAnswer, 1, 600.0)
        found[name] = _end(next(some.losses for some in answers if some.losses))
    return found


def _end(losses: Sequence[float]) -> float:
    last = losses[-max(1, len(losses) // 10) :]
    return math.fsum(last) / len(last)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    found = compare(given.devices, given.micro_batches, given.batches, given.lr)
    rows = [{"how": name, "loss": loss, "ratio": loss / found["in turn"]} for name, loss in found.items()]
    if given.json:
        print(json.dumps({"devices": given.devices, "rows": rows}, indent=1))
        return 0
    for one in rows:
        print(f"{one['how']:10} {one['loss']:8.4f}  {one['ratio']:6.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
