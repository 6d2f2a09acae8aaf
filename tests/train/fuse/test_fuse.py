"""Sweeps trained as one beside each of their models trained alone, in plain PyTorch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bricolage.errors import BadTrainingCode, BadTrainingSpec, NotFusible, TrainingWorkerFailed
from bricolage.train.fuse.contestants import Here
from bricolage.train.fuse.fuse import FusedSweep, How, train_sweep
from bricolage.train.fuse.lane_graph import trace_lane
from bricolage.train.fuse.lane_groups import group
from bricolage.train.fuse.operators.call import Joined, Mask
from bricolage.train.fuse.operators.choose import choose_way
from bricolage.train.fuse.processes import InProcesses
from bricolage.train.fuse.random_streams import DrawnAhead, Streams
from bricolage.train.fuse.sweep import Sweep, read_sweep
from bricolage.train.fuse.sweep_data import load_data

torch = pytest.importorskip("torch")

CODE = """
import torch
from torch import nn

WIDE = {wide}

def data():
    made = torch.Generator().manual_seed(7)
    images = torch.randn(160, 1, 6, 6, generator=made)
    classes = (images.flatten(1)[:, :4].sum(1) > 0).long() + (images.flatten(1)[:, 4:8].sum(1) > 0).long()
    images = images.double() if WIDE else images
    return (images[:128], classes[:128]), (images[128:], classes[128:])

def batch(size, seed):
    (images, classes), _ = data()
    return images[:size], classes[:size]

def wide(module):
    return module.double() if WIDE else module

def mlp(width=8):
    return wide(nn.Sequential(
        nn.Flatten(), nn.Linear(36, width), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(width), nn.Linear(width, 3)))

def cnn(width=4):
    return wide(nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, groups=2), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(2 * width, 3)))

class Transformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.places = nn.Parameter(torch.zeros(1, 6, width))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True), 1)
        self.out = nn.Linear(width, 3)

    def forward(self, images):
        return self.out(self.encoder(self.embed(images.squeeze(1)) + self.places).mean(1))

def transformer(width=8):
    return wide(Transformer(width))

class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(6, width, 2, batch_first=True, dropout=0.2)
        self.out = nn.Linear(width, 3)

    def forward(self, images):
        return self.out(self.lstm(images.squeeze(1))[0][:, -1])

def lstm(width=6):
    return wide(Recurrent(width))

class Errata(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(5, width, padding_idx=2)
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.slope = nn.PReLU()
        self.slopes = nn.PReLU(width)
        self.out = nn.Linear(width, 3)

    def forward(self, images):
        words = images.flatten(1).mul(2).long().clamp(0, 4)
        return self.out(self.slopes(self.slope(self.norm(self.words(words).mean(1)))))

def errata(width=4):
    return wide(Errata(width))

class Undecided(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(36, 3)

    def forward(self, images):
        found = self.out(images.flatten(1))
        if found.sum() > 0:  # the line to be named
            found = found * 2
        return found

def undecided():
    return wide(Undecided())
"""


def sweep(folder: Path, network: str, lanes: list[dict[str, Any]], *, wide: bool = True, **others: Any) -> Sweep:
    """A sweep of lanes over made-up images, in float64 unless not `wide`."""
    (folder / "nets.py").write_text(CODE.replace("{wide}", str(wide)), encoding="utf-8")
    step = {
        "module": f"nets.py:{network}",
        "batch": "nets.py:batch",
        "batch_size": 16,
        "loss": "cross_entropy",
        "optimiser": {"kind": "sgd", "lr": 0.05},
    }
    path = folder / "sweep.json"
    path.write_text(
        json.dumps({"step": step, "data": "nets.py:data", "steps": 40, "lane": lanes, **others}), encoding="utf-8"
    )
    return read_sweep(path)


def apart(found: FusedSweep, wanted: FusedSweep) -> float:
    """The largest difference of any weight or statistic, beside the largest of its tensor."""
    assert found.states.keys() == wanted.states.keys()
    worst = 0.0
    for name, state in wanted.states.items():
        assert found.states[name].keys() == state.keys()
        for key, tensor in state.items():
            off = (found.states[name][key] - tensor).abs().max() / tensor.abs().max().clamp(min=1e-3)
            worst = max(worst, float(off))
    return worst


LANES: list[dict[str, Any]] = [
    {"lr": 0.05, "momentum": 0.9, "seed": 1},
    {"lr": 0.01, "momentum": 0.5, "nesterov": True, "seed": 2, "dropout": 0.3, "weight_decay": 0.01},
    {"lr": 0.03, "seed": 3, "order": 9, "label_smoothing": 0.1, "clip_norm": 0.2},
    {"kind": "adam", "lr": 0.003, "betas": [0.8, 0.99], "seed": 4, "steps": 25},
    {"kind": "adamw", "lr": 0.002, "weight_decay": 0.1, "seed": 5, "loss_scale": 128.0},
]
"""Every hyper-parameter that lanes may have of their own."""


@pytest.mark.parametrize("way", ["groups", "groups, channels last", "loop"])
def test_however_convolutions_are_computed_models_are_the_same(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(joined: Joined, tensors: Sequence[Any]) -> tuple[str, dict[str, float]]:
        found, ms = choose_way(joined, tensors)
        return (way if way in ms else found), ms

    monkeypatch.setattr("bricolage.train.fuse.building.choose_way", chosen)
    given = sweep(tmp_path, "cnn", LANES, steps=60)
    found, wanted = train_sweep(given, "fused", threads=1), train_sweep(given, "serial", threads=1)
    (trained,) = found.report.groups
    assert all(one == f"aten::conv2d: {way}" for name, one in trained.ways.items() if name.startswith("conv2d"))
    assert apart(found, wanted) < 1e-8


@pytest.mark.parametrize("network", ["mlp", "transformer"])
def test_random_numbers_that_are_drawn_ahead_are_the_same(network: str, tmp_path: Path) -> None:
    """Also after lanes have ended, one of them since its loss is not finite."""
    given = sweep(tmp_path, network, [*LANES, {"lr": 1e6, "seed": 6}], steps=40)
    data = load_data(given)
    (one,) = group(data, given.lanes)
    wanted = train_sweep(given, "serial", threads=1)
    ahead = Here(data, one, 1, ahead=True)
    found = ahead.finish(lambda _: None)
    assert isinstance(ahead.fused._ahead, DrawnAhead)
    assert {name: (one.steps, one.stopped) for name, one in found.results.items()} == {
        one.name: (one.steps, one.stopped) for one in wanted.report.lanes
    }
    ended = {one.name for one in wanted.report.lanes if one.stopped == "finished"}
    assert len(ended) >= len(LANES)
    for name in ended:
        for key, tensor in wanted.states[name].items():
            torch.testing.assert_close(found.states[name][key], tensor, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("discard", [False, True])
def test_streams_are_where_they_were_when_what_was_drawn_is_discarded(discard: bool) -> None:
    masks = [Mask((4, 3), (0.5, 0.5)), Mask((2,), (0.1, 0.1))]

    def streams() -> Streams:
        states = [torch.Generator().manual_seed(seed).get_state() for seed in (1, 2)]
        return Streams(states, [(), ()])

    plain, under = streams(), streams()
    ahead = DrawnAhead(under)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(plain.draw(masks), ahead.draw(masks), strict=True))
        if discard:
            ahead.discard()
    other = masks[:1]  # it asks for something else than was drawn ahead
    assert torch.equal(plain.draw(other)[0], ahead.draw(other)[0])


def test_what_the_public_code_of_hfta_has_wrong(tmp_path: Path) -> None:
    """Each lane's own slopes and padding row; lanes of different age, whose statistics count their own batches (HFTA's fused
    layers share PReLU's slope, zero a lane of `Embedding` in the place of a row, and have one `num_batches_tracked`)."""
    lanes = [{"lr": 0.1, "seed": 1}, {"lr": 0.3, "seed": 2, "steps": 11}, {"lr": 0.2, "seed": 3, "steps": 24}]
    given = sweep(tmp_path, "errata", lanes)
    found, wanted = train_sweep(given, "fused", threads=1), train_sweep(given, "serial", threads=1)
    assert found.report.groups[0].how == "fused" and apart(found, wanted) < 1e-8
    states = [found.states[lane.name] for lane in given.lanes]
    assert [int(one["norm.num_batches_tracked"]) for one in states] == [40, 11, 24]
    assert all(float(one["words.weight"][2].abs().max()) == 0.0 for one in states), "the padding row gets no gradient"
    assert all(float(one["words.weight"][0].abs().max()) > 0.0 for one in states)
    slopes = [float(one["slope.weight"][0]) for one in states]
    assert len(set(slopes)) == 3 and 0.25 not in slopes


@pytest.mark.parametrize(
    ("network", "steps"),
    [
        *((network, 60) for network in ("mlp", "cnn", "transformer", "lstm")),
        *(pytest.param(network, 200, marks=pytest.mark.slow) for network in ("mlp", "cnn", "transformer", "lstm")),
    ],
)
def test_over_many_steps_each_model_comes_out_as_if_trained_alone(network: str, steps: int, tmp_path: Path) -> None:
    lanes = [{**lane, "steps": steps} if lane["seed"] != 4 else lane for lane in LANES]
    given = sweep(tmp_path, network, lanes)
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    (together,) = found.report.groups
    assert together.how == "fused" and len(together.lanes) == len(LANES), together.reason
    assert apart(found, wanted) < 1e-8
    for one, other in zip(found.report.lanes, wanted.report.lanes, strict=True):
        assert (one.name, one.steps, one.stopped, one.accuracy) == (
            other.name,
            other.steps,
            other.stopped,
            other.accuracy,
        )
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert one.held_out_loss == pytest.approx(other.held_out_loss, rel=1e-6)


@pytest.mark.parametrize(
    "network",
    ["cnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("transformer", "mlp", "lstm"))],
)
def test_in_float32_they_differ_by_its_rounding(network: str, tmp_path: Path) -> None:
    """Seen in what the models make of held-out data: weights whose gradient is zero but for rounding (those of keys in attention)
    go wherever Adam takes them."""
    given = sweep(tmp_path, network, [{**lane, "steps": 100} for lane in LANES], wide=False)
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    for one, other in zip(found.report.lanes, wanted.report.lanes, strict=True):
        assert one.held_out_loss == pytest.approx(other.held_out_loss, rel=1e-2)


def test_a_lane_that_is_not_finite_stops_alone(tmp_path: Path) -> None:
    lanes = [{"lr": 0.05}, {"lr": 1e6, "name": "wild"}, {"lr": 0.01}]
    given = sweep(tmp_path, "mlp", lanes, wide=False)
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    ends = {lane.name: (lane.stopped, lane.steps) for lane in found.report.lanes}
    assert ends["wild"][0] == "not finite" and ends["wild"][1] < 40
    assert ends == {lane.name: (lane.stopped, lane.steps) for lane in wanted.report.lanes}
    for one in (found, wanted):
        one.states.pop("wild")
    assert apart(found, wanted) < 1e-4


def test_lanes_stop_early_one_by_one(tmp_path: Path) -> None:
    lanes = [
        {"lr": 0.3, "patience": 1, "epochs": 12},
        {"lr": 0.0, "patience": 2, "epochs": 12},
        {"lr": 0.01, "epochs": 3},
    ]
    given = sweep(tmp_path, "mlp", lanes, steps=None)
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    ends = [(lane.stopped, lane.steps) for lane in found.report.lanes]
    assert ends == [(lane.stopped, lane.steps) for lane in wanted.report.lanes]
    assert ends[1] == ("early", 3 * 8) and ends[2] == ("finished", 3 * 8), "without a smaller loss for two epochs"
    assert apart(found, wanted) < 1e-8


def test_lanes_of_other_shapes_are_groups_of_their_own(tmp_path: Path) -> None:
    lanes = [{"arguments": {"width": width}, "seed": seed} for width in (4, 8) for seed in (1, 2)]
    given = sweep(tmp_path, "mlp", lanes)
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    assert [len(one.lanes) for one in found.report.groups] == [2, 2]
    assert {one.how for one in found.report.groups} == {"fused"}
    assert apart(found, wanted) < 1e-8


def test_control_flow_that_depends_on_data_is_trained_apart_and_the_line_named(tmp_path: Path) -> None:
    given = sweep(tmp_path, "undecided", [{"lr": 0.1}, {"lr": 0.2}], steps=5)
    (one,) = group(load_data(given), given.lanes)
    assert "nets.py" in one.reason and "the line to be named" in one.reason
    with pytest.raises(NotFusible, match="does not export"):
        trace_lane(load_data(given), given.lanes[0])
    found = train_sweep(given, "fused", threads=1)
    assert found.report.groups[0].how == "serial" and "nets.py" in found.report.groups[0].reason
    assert {lane.stopped for lane in found.report.lanes} == {"finished"}


def test_what_would_not_pay_is_trained_one_after_another(tmp_path: Path) -> None:
    found = train_sweep(sweep(tmp_path, "mlp", [{"lr": 0.1}, {"lr": 0.2}], steps=30), "auto", threads=1)
    (told,) = found.report.groups
    assert told.how.startswith("serial") and ("too little" in told.reason or "over before" in told.reason)


@pytest.mark.parametrize("how", [pytest.param("processes", marks=pytest.mark.slow), "fused-processes"])
def test_processes_train_the_same(how: How, tmp_path: Path) -> None:
    lanes = [{"lr": lr, "seed": seed} for lr in (0.1, 0.01) for seed in (1, 2)]
    given = sweep(tmp_path, "mlp", lanes)
    found, wanted = train_sweep(given, how, threads=2), train_sweep(given, "serial", threads=1)
    assert found.report.groups[0].how == how.replace("-", " ")
    assert apart(found, wanted) < 1e-8


def test_a_process_that_ends_is_said(tmp_path: Path) -> None:
    given = sweep(tmp_path, "mlp", [{"lr": 0.1}, {"lr": 0.2}], steps=10**6)
    several = InProcesses(given, [lane.name for lane in given.lanes], 2, "serial")
    try:
        os.kill(several.group.pids[1], signal.SIGKILL)
        with pytest.raises(TrainingWorkerFailed, match="process 1 of 2: its process was killed from outside"):
            several.finish(lambda _: None)
    finally:
        several.close()


def test_a_sweep_counts_in_steps_where_it_has_no_data(tmp_path: Path) -> None:
    given = sweep(tmp_path, "mlp", [{"lr": 0.1}, {"lr": 0.2, "order": 5}], data=None)
    found, wanted = (train_sweep(given, how, threads=1) for how in ("fused", "serial"))
    assert apart(found, wanted) < 1e-8
    assert found.report.lanes[0].held_out_loss is None


@pytest.mark.parametrize(
    ("lanes", "others", "reason"),
    [
        ([], {}, "no lanes"),
        ([{"lr": -1.0}], {}, "lr"),
        ([{"speed": 1.0}], {}, "speed"),
        ([], {"grid": {"lr": [0.01, 1e30]}}, r"it\.grid\.lr is not between 0 and 1e\+06"),
        ([{"betas": [0.9, 0.9]}], {}, "betas, which sgd does not have"),
        ([{"epochs": 1, "steps": 1}], {}, "epochs and steps"),
        ([{"lr": 0.1}], {"steps": None}, "how long"),
        ([{"lr": 0.1, "epochs": 2}], {"data": None}, "counts in epochs"),
        ([{"name": "a"}, {"name": "a"}], {}, "two lanes are named 'a'"),
        ([{"name": "a/b"}], {}, "name"),
        ([], {"grid": {"lr": list(range(1, 100)), "seed": list(range(100))}}, "more than 4096"),
    ],
)
def test_sweeps_that_are_refused(
    lanes: list[dict[str, Any]], others: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(BadTrainingSpec, match=reason):
        sweep(tmp_path, "mlp", lanes, **others)


def test_data_that_do_not_suit(tmp_path: Path) -> None:
    with pytest.raises(BadTrainingCode, match="batches of 500"):
        load_data(sweep(tmp_path, "mlp", [{"batch_size": 500}]))
    with pytest.raises(BadTrainingCode, match="nets.py:nothing"):
        load_data(sweep(tmp_path, "mlp", [{"lr": 0.1}], data="nets.py:nothing"))


def test_names_say_what_differs(tmp_path: Path) -> None:
    given = sweep(tmp_path, "mlp", [], common={"momentum": 0.9}, grid={"lr": [0.1, 0.2], "seed": [1, 2]})
    assert [lane.name for lane in given.lanes] == ["lr=0.1 seed=1", "lr=0.1 seed=2", "lr=0.2 seed=1", "lr=0.2 seed=2"]
    assert {lane.optimiser.momentum for lane in given.lanes} == {0.9}
