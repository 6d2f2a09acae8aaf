"""Modules whose training a traced graph holds in part: as one they come out as if trained alone, or one by one with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.errors import BadTrainingCode, NotFusible
from bricolage.train.fuse.fuse import FusedSweep, train_sweep
from bricolage.train.fuse.lane_check import compare_lanes
from bricolage.train.fuse.lane_groups import group
from bricolage.train.fuse.sweep import Sweep, read_sweep
from bricolage.train.fuse.sweep_data import load_data

torch = pytest.importorskip("torch")
fused_equal = pytest.importorskip("benchmarks.training.fused_equal", reason="run from the repository's root")

CODE = """
import random, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

def data():
    made = torch.Generator().manual_seed(7)
    x = torch.randn(64, 12, generator=made, dtype=torch.float64)
    return (x[:48], (x[:48, 0] > 0).long()), (x[48:], (x[48:, 0] > 0).long())

def batch(size, seed):
    (x, y), _ = data()
    return x[:size], y[:size]

class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0) * 0.5

class Failing(Halved):
    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("no gradient today")

class Reversed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, scale):
        return x * 1.0, (x > 0).long()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        return -ctx.scale * g, None

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return 0.7 * g @ weight, 1.3 * g.T @ x

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2

class Counted(Halved):
    times = 0

    @staticmethod
    def backward(ctx, g):
        Counted.times += 1
        return Halved.backward(ctx, g)

class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = torch.rand_like(x) > 0.3
        return x * ctx.mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask

STEPS = {"taken": 0}

def halve(module, given, made):
    return (given[0] / 2,)

class Net(nn.Module):
    def __init__(self, word):
        super().__init__()
        self.word, self.count = word, 0
        self.a, self.b, self.o = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8, momentum=None)
        self.words = nn.Embedding(5, 8, max_norm=0.5)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.0)
        self.register_buffer("mask", torch.triu(torch.ones(2, 2, dtype=torch.bool), 1))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("rows", torch.zeros(1, 8))
        self.register_buffer("book", torch.randn(3, 8))
        self.norm.register_buffer("other", self.mean)
        self.plain = torch.zeros(8, dtype=torch.float64)
        if word == "tied":
            self.b.weight = nn.Parameter(self.b.weight[:, :8])
            self.more = nn.Linear(8, 8)
            self.more.weight = self.b.weight
        if word == "module hook":
            self.a.register_full_backward_hook(halve)
        if word == "shape hook":
            self.b.register_forward_hook(lambda module, given, made: made)
            self.a.register_forward_hook(lambda module, given, made: torch.cat([made, made], 1))
        if word == "shrinking hook":
            self.a.weight.register_hook(lambda g: g.sum())
        if word == "weight hook":
            self.a.weight.register_hook(lambda g: g / 2)
        if word == "spectral norm":
            self.b = parametrizations.spectral_norm(self.b)
        if word == "weight norm":
            self.b = parametrizations.weight_norm(self.b)

    def forward(self, x):
        h = self.a(x)
        return self.o(getattr(self, self.word.replace(" ", "_"))(h, x))

    def custom(self, h, x): return Halved.apply(h)
    def failing(self, h, x): return Failing.apply(h)
    def reversed_gradient(self, h, x):
        made, positive = Reversed.apply(h, 0.3)
        return self.b(made) * positive
    def own_product(self, h, x): return Halved.apply(Product.apply(h, self.b.weight))
    def own_without_gradient(self, h, x):
        with torch.no_grad():
            shown = Halved.apply(h)
        return h * shown
    def writing_function(self, h, x): return Doubled.apply(h * 1.0)
    def counted_function(self, h, x): return Counted.apply(h)
    def masked_function(self, h, x): return Masked.apply(h)
    def holding_function(self, h, x):
        weight = self.b.weight
        class Held(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x @ weight

            @staticmethod
            def backward(ctx, g):
                return g @ weight.T
        return Held.apply(h)
    def counting_global(self, h, x):
        STEPS["taken"] += 1
        return h * (1.0 if STEPS["taken"] < 100 else 0.5)
    def shrinking_hook(self, h, x): return h.relu()
    def shape_hook(self, h, x): return h[:, :8] * 2.0
    def tied(self, h, x): return self.more(self.b(h).relu()).relu()
    def module_hook(self, h, x): return h.relu()
    def weight_hook(self, h, x): return h.relu()
    def tensor_hook(self, h, x):
        if h.requires_grad:
            h.register_hook(lambda g: g / 2)
        return h.relu()
    def straight_through(self, h, x): return h + (h.sign() - h).detach()
    def checkpointed(self, h, x): return checkpoint(lambda v: self.b(v).tanh(), h, use_reentrant=False)
    def checkpointed_again(self, h, x): return checkpoint(lambda v: self.b(v).tanh(), h, use_reentrant=True)
    def spectral_norm(self, h, x): return self.b(h)
    def weight_norm(self, h, x): return self.b(h)
    def averages(self, h, x): return self.norm(h)
    def max_norm(self, h, x): return h + self.words(x[:, 0].mul(2).long().clamp(-2, 2) + 2)
    def masked(self, h, x):
        rows = h.view(-1, 2, 4)
        return self.attention(rows, rows, rows, attn_mask=self.mask, need_weights=False)[0].flatten(1)
    def written(self, h, x):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
                self.steps += 1
        return (h - self.mean).relu()
    def assigned(self, h, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean
    def growing(self, h, x):
        if self.training:
            self.rows = torch.cat([self.rows, h.detach().mean(0, keepdim=True)])
        return h - self.rows.mean(0)
    def outside(self, h, x):
        self.plain += h.detach().mean(0)
        return h - self.plain
    def counting(self, h, x):
        self.count += 1
        return h * (1.0 if self.count < 100 else 0.5)
    def first_step(self, h, x):
        if self.training and not self.count:
            with torch.no_grad():
                self.mean.copy_(h.mean(0))
            self.count = 1
        return h - self.mean
    def python_random(self, h, x): return h * random.random()
    def clock(self, h, x): return h * (time.perf_counter() % 1)
    def noise(self, h, x): return h + torch.randn_like(h) if self.training else h
    def items_set(self, h, x):
        h = self.b(h)
        h[:, 0] = 0.5
        h[2:] += h[:-2].tanh()
        h[:, 1:3].mul_(2)
        return h
    def parts_written(self, h, x):
        with torch.no_grad():
            self.rows[0] = h.mean(0)
            self.mean[2:].add_(self.rows[0, 2:])
            self.mask |= self.steps > 2
            self.steps.add_(1).remainder_(4)
        return h - self.mean * self.mask[0, 1]
    def codebook(self, h, x):
        nearest = F.one_hot(torch.cdist(h, self.book).argmin(1), 3).to(h.dtype)
        chosen = nearest @ self.book
        if self.training:
            with torch.no_grad():
                self.book.lerp_(nearest.T @ h / nearest.sum(0).clamp(min=1).unsqueeze(1), 0.1)
        return h + (chosen - h).detach()
    def shared_buffer(self, h, x):
        with torch.no_grad():
            self.mean.add_(h.mean(0))
        return h - self.norm.other
    def unused(self, h, x): return h.detach() + x[:, :8]

def net(word):
    return Net(word).double()
"""
FUSED = (
    "custom",
    "reversed gradient",
    "own product",
    "own without gradient",
    "shape hook",
    "tied",
    "written",
    "assigned",
    "masked",
    "averages",
    "max norm",
    "spectral norm",
    "weight norm",
    "straight through",
    "checkpointed",
    "items set",
    "parts written",
    "codebook",
    "shared buffer",
    "unused",
)
REFUSED = {
    "writing function": r"backward of 'Doubled' is its own.*nets.py, line \d+.*writes to its argument",
    "counted function": "each step of training changes 'Counted.times'",
    "masked function": "differs from training alone|other random numbers",
    "holding function": r"backward of 'Held' is its own.*holds a Parameter from outside.*nets.py, line \d+",
    "counting global": "each step of training changes the global 'STEPS'",
    "module hook": r"module 'a' has a hook on gradients.*nets.py, line",
    "weight hook": r"'a.weight' has a hook on its gradient.*nets.py, line",
    "tensor hook": r"sets a hook on a gradient.*nets.py, line",
    "checkpointed again": "CheckpointFunction",
    "counting": "each step of training changes 'count'",
    "first step": r"lane .seed=1. differs from training alone in the loss in step 2",
    "python random": "Python's random",
    "clock": "each time that it is trained alone",
    "noise": r"draws random numbers.*nets.py.*",
    "growing": "buffer 'rows' another shape",
    "outside": "nets.py|others see",
}


def sweep(folder: Path, word: str, steps: int = 5) -> Sweep:
    (folder / "nets.py").write_text(CODE, encoding="utf-8")
    step = {
        "module": "nets.py:net",
        "arguments": {"word": word},
        "batch": "nets.py:batch",
        "batch_size": 8,
        "optimiser": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.01},
    }
    lanes = [{"lr": 0.1, "seed": 1}, {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "seed": 2}]
    path = folder / "sweep.json"
    path.write_text(json.dumps({"step": step, "data": "nets.py:data", "steps": steps, "lane": lanes}), encoding="utf-8")
    return read_sweep(path)


def off(found: FusedSweep, wanted: FusedSweep) -> float:
    worst = 0.0
    for name, state in wanted.states.items():
        for key, tensor in state.items():
            assert found.states[name][key].dtype == tensor.dtype
            worst = max(worst, float((found.states[name][key] * 1.0 - tensor * 1.0).abs().max()))
    return worst


@pytest.mark.parametrize("word", FUSED)
def test_what_is_carried_for_each_lane(word: str, tmp_path: Path) -> None:
    given = sweep(tmp_path, word)
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    (told,) = found.report.groups
    assert told.how == "fused", told.reason
    assert off(found, wanted) < 1e-8
    for one, other in zip(found.report.lanes, wanted.report.lanes, strict=True):
        assert one.held_out_loss == pytest.approx(other.held_out_loss, rel=1e-9)


@pytest.mark.parametrize("word", REFUSED)
def test_what_is_not_is_trained_one_by_one_with_its_reason(word: str, tmp_path: Path) -> None:
    given = sweep(tmp_path, word)
    data = load_data(given)
    with pytest.raises(NotFusible, match=REFUSED[word]):
        (one,) = group(data, given.lanes)
        if one.reason:
            raise NotFusible(reason=one.reason)
        compare_lanes(data, one)


def test_the_report_says_which_tensor_differed(tmp_path: Path) -> None:
    given = sweep(tmp_path, "first step")
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    (told,) = found.report.groups
    assert told.how == "serial" and "in step 2" in told.reason, told.reason
    assert off(found, wanted) == 0.0


@pytest.mark.parametrize(
    ("word", "told"),
    [("failing", r"no gradient today.*nets.py, line \d+"), ("shrinking hook", "has changed the size of value")],
)
def test_what_fails_alone_fails_as_one_with_its_reason(word: str, told: str, tmp_path: Path) -> None:
    given = sweep(tmp_path, word)
    for how in ("fused", "serial"):
        with pytest.raises(BadTrainingCode, match=told):
            train_sweep(given, how)


@given(number=st.integers(0, len(fused_equal.DRAWN) - 1))
@settings(max_examples=4, deadline=None)
def test_a_module_as_one_is_the_module_alone(number: int) -> None:
    """Modules of torch.nn, attributes at their defaults or one of them changed. `benchmarks.training.fused_equal` tries them
    all."""
    row = fused_equal.run(number, timed=False)
    assert row.outcome in ("equal", "refused", "untrainable") and (row.outcome == "equal" or row.reason), row
