"""What the processes of these tests do: all cases in one group, since starting one is what takes time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from benchmarks.training.layout_runs import LayoutJob, LayoutRun, work
from bricolage.device.collective import Ring
from bricolage.device.device import Link, Peaks
from bricolage.train.run.rank import Rank
from bricolage.train.sharded.dtensor_step import FullySharded, distribute, run_sharded
from bricolage.train.sharded.layout_plan import Described, DeviceGroup
from bricolage.train.sharded.planned_layouts import LayoutPlan
from bricolage.train.sharded.signatures import to_placement
from bricolage.train.sharded.step_graph import JointStep, trace_joint
from bricolage.train.step.spec import Optimiser
from bricolage.train.step.step import TrainingStep


class Block(torch.nn.Module):
    """Of a Transformer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm, self.after = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, 2 * hidden), torch.nn.Linear(2 * hidden, hidden)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        parts = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))


def transformer() -> TrainingStep:
    """One block between an embedding and a layer of classes."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Embedding(12, 16), Block(16, 4), torch.nn.Linear(16, 8), torch.nn.Flatten(0, 1)
    )
    words, targets = torch.randint(12, (4, 8)), torch.randint(8, (32,))
    return TrainingStep(module, torch.nn.functional.cross_entropy, (words,), (targets,), Optimiser("adam"))


def perceptron() -> TrainingStep:
    """With a loss that is a mean of squares."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    return TrainingStep(module, torch.nn.functional.mse_loss, (torch.randn(16, 8),), (torch.randn(16, 4),), Optimiser())


def network() -> torch.nn.Module:
    """That of the spec."""
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def samples(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """That of the spec."""
    torch.manual_seed(seed)
    return torch.randn(size, 8), torch.randint(4, (size,))


STEPS = {"transformer": transformer, "perceptron": perceptron}


def group(workers: int, *, gbytes: float = 1e4, memory: float = float("inf"), latency_us: float = 0.0) -> DeviceGroup:
    """Slow devices: it pays to divide what little these networks compute."""
    ring = Ring.described(workers, Link(("0", "1"), gbytes, latency_us), gbytes)
    return DeviceGroup(workers, ring, Peaks(1.0, 1.0), memory, start_ms=0.0)


@dataclass(frozen=True)
class Case:
    """A step, and its layouts as JSON of `LayoutPlan`."""

    name: str
    step: str
    plan: LayoutPlan


@dataclass(frozen=True)
class Job:
    cases: tuple[Case, ...]
    fully: tuple[str, ...]
    """Steps that FSDP2 runs; their errors come first."""
    spec: LayoutJob
    """As `run_plan` gives it to its processes."""


@dataclass(frozen=True)
class Ran:
    """For each case the largest error of the loss and the gradients, relative, operators that strayed, and what could not run."""

    errors: tuple[float, ...]
    strayed: tuple[str, ...]
    refused: tuple[str, ...]
    spec: LayoutRun
    conversions: tuple[str, ...]
    """That gave something else than the tensor."""


def described(step: TrainingStep, where: DeviceGroup) -> tuple[JointStep, Described]:
    joint = trace_joint(step)
    return joint, Described(joint, step.optimiser, where)


def run(job: Job, rank: Rank) -> Ran:
    """Every case, against the step in one process."""
    mesh = init_device_mesh("cpu", (rank.size,))
    strayed, refused = [], []
    errors = [_fully(STEPS[name], mesh) for name in job.fully]
    steps = {name: make() for name, make in STEPS.items()}
    joints = {name: trace_joint(step) for name, step in steps.items()}
    for case in job.cases:
        step, joint = steps[case.step], joints[case.step]
        step.module.zero_grad()
        state = dict(step.module.named_parameters()) | dict(step.module.named_buffers())
        loss = step.loss(step.module(*step.inputs), *step.targets)
        loss.backward()
        try:
            found = run_sharded(
                joint, case.plan, distribute(joint, case.plan, state, [*step.inputs, *step.targets], mesh)
            )
            pairs = [(found.loss.to_local(), loss.detach())]
            pairs += [(found.gradients[name].full_tensor(), state[name].grad) for name in joint.parameters]
        except (RuntimeError, ValueError, NotImplementedError) as error:
            refused.append(f"{case.name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            errors.append(float("inf"))
            continue
        errors.append(max(float((a - b).norm() / max(float(b.norm()), 1e-12)) for a, b in pairs))
        strayed += [f"{case.name}: {one}" for one in found.strayed]
    return Ran(tuple(errors), tuple(strayed), tuple(refused), work(job.spec, rank), _conversions(mesh))


def _conversions(mesh: DeviceMesh) -> tuple[str, ...]:
    """Every conversion of the cost table, but those to summands."""
    whole, wrong = torch.arange(32.0).reshape(4, 8), []
    for source, target in itertools.product(("S(0)", "S(1)", "R", "P", "P(avg)"), ("S(0)", "S(1)", "R")):
        if source.startswith("P"):
            own = whole / mesh.size() if source == "P" else whole
            given = DTensor.from_local(own.clone(), mesh, [to_placement(source)])
        else:
            given = distribute_tensor(whole, mesh, [to_placement(source)])
        if not torch.equal(given.redistribute(placements=[to_placement(target)]).full_tensor(), whole):
            wrong.append(f"{source} to {target}")
    return tuple(wrong)


def _fully(make: Callable[[], TrainingStep], mesh: DeviceMesh) -> float:
    """The largest relative error of FSDP2's loss and gradients."""
    alone, step = make(), make()
    loss = alone.loss(alone.module(*alone.inputs), *alone.targets)
    loss.backward()
    runs = FullySharded(step, mesh)
    total, gradients = runs.loss(runs.backward()), runs.gradients
    pairs = [(total, loss.detach())]
    pairs += [(gradients[name].full_tensor(), one.grad) for name, one in alone.module.named_parameters()]
    return max(float((a - b).norm() / max(float(b.norm()), 1e-12)) for a, b in pairs)
