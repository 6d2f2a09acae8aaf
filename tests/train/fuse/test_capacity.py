"""How many lanes fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.base.progress import Silent
from bricolage.train.fuse.capacity import Held, capacity, fits_memory, within
from bricolage.train.fuse.fuse import train_sweep
from bricolage.train.fuse.lane_groups import group
from bricolage.train.fuse.sweep import Sweep, read_sweep
from bricolage.train.fuse.sweep_data import load_data

torch = pytest.importorskip("torch")

CODE = Path(__file__).parents[3] / "examples" / "demo_train" / "digits.py"


@pytest.mark.parametrize("lanes", [1, 2, 3, 7, 8, 33])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 5, 8, 20, 100])
def test_the_most_that_fits_is_found_with_few_tries(lanes: int, most: int) -> None:
    tried: list[int] = []

    def fit(count: int) -> bool:
        tried.append(count)
        return count <= most

    assert capacity(lanes, fit) == max(1, min(lanes, most))
    assert len(tried) == len(set(tried)) <= 2 + 2 * lanes.bit_length()
    assert tried[0] == lanes


DATA = """
import torch

def data():
    made = torch.Generator().manual_seed(0)
    images, digits = torch.rand(160, 1, 8, 8, generator=made), torch.randint(10, (160,), generator=made)
    return (images[:128], digits[:128]), (images[128:], digits[128:])

def batch(size, seed):
    (images, digits), _ = data()
    return images[:size], digits[:size]
"""


def sweep(tmp_path: Path, width: int) -> Sweep:
    path = tmp_path / "sweep.toml"
    (tmp_path / "made.py").write_text(DATA, encoding="utf-8")
    path.write_text(
        f'data = "made.py:data"\nsteps = 3\n[grid]\nlr = [0.1, 0.2, 0.3, 0.4]\n[step]\nmodule = "{CODE}:mlp"\n'
        f'batch = "made.py:batch"\nbatch_size = 32\narguments = {{ width = {width} }}\n',
        encoding="utf-8",
    )
    return read_sweep(path)


def test_dry_runs_hold_what_lanes_need(tmp_path: Path) -> None:
    given = sweep(tmp_path, 20_000)
    (one,) = group(load_data(given), given.lanes)
    assert fits_memory(given, one, 2, 1, 4 << 30)
    assert not fits_memory(given, one, 4, 1, 32 << 20), "weights, gradients and twice the batch are more"


def test_groups_are_cut_where_dry_runs_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = sweep(tmp_path, 8)
    monkeypatch.setattr("bricolage.train.fuse.capacity.fits_memory", lambda *words: words[2] <= 3)
    data = load_data(given)
    (one,) = group(data, given.lanes)
    parts = within(given, data, one, 1 << 30, 1, Silent())
    assert [len(part.lanes) for part in parts] == [len(part.traced) for part in parts] == [3, 1]
    assert [lane for part in parts for lane in part.lanes] == list(one.lanes)
    done = train_sweep(given, "fused", threads=1, memory_limit=1 << 30)
    assert [(len(group.lanes), group.how) for group in done.report.groups] == [(3, "fused"), (1, "serial")]


def test_why_lanes_cannot_be_one_is_no_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = sweep(tmp_path, 8)
    monkeypatch.setattr("bricolage.train.fuse.capacity.run_group", lambda *_: [Held(0, "it draws random numbers")])
    done = train_sweep(given, "fused", threads=1, memory_limit=1 << 30)
    (told,) = done.report.groups
    assert (told.how, told.reason, len(told.lanes)) == ("serial", "it draws random numbers", 4)


def test_small_models_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.train.fuse.capacity.fits_memory", lambda *_: pytest.fail("a dry run"))
    done = train_sweep(sweep(tmp_path, 8), "fused", threads=1)
    assert [one.how for one in done.report.groups] == ["fused"]
