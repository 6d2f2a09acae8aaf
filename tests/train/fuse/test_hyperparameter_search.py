"""Hyper-parameters found by search, on the digits of the demonstration."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.errors import BadTrainingCode, BadTrainingSpec
from bricolage.train.fuse.hyperparameter_search import tune
from bricolage.train.fuse.search_spec import Search, read_search
from tests.needed import needs

needs("sklearn")

torch = pytest.importorskip("torch")
pytest.importorskip("optuna")

CODE = Path(__file__).parents[3] / "examples" / "demo_train" / "digits.py"
HEAD = f"""data = "{CODE}:data"
epochs = 3
trials = 8
together = 4
"""
STEP = f"""[step]
module = "{CODE}:mlp"
batch = "{CODE}:batch"
batch_size = 32
[step.optimiser]
momentum = 0.9
"""


def read(
    tmp_path: Path, head: str = HEAD, ranges: str = "lr = { low = 1e-4, high = 1.0, log = true }", step: str = STEP
) -> Search:
    path = tmp_path / "search.toml"
    path.write_text(f"{head}[search]\n{ranges}\n{step}", encoding="utf-8")
    return read_search(path)


@pytest.mark.parametrize(("sampler", "pruner"), [("random", "none"), ("tpe", "asha"), ("tpe", "hyperband")])
def test_it_finds_what_learns(tmp_path: Path, sampler: str, pruner: str) -> None:
    search = read(tmp_path, f'{HEAD}sampler = "{sampler}"\npruner = "{pruner}"\n')
    done = tune(search, "fused", threads=1)
    report = done.report
    assert len(report.trials) == 8 and len({one.name for one in report.trials}) == 8
    assert all(1e-4 <= one.drawn["lr"] <= 1.0 for one in report.trials)  # type: ignore[operator]
    (best,) = [one for one in report.trials if one.name == report.best]
    assert best.stopped == "finished" and best.steps == 3 * (1400 // 32) and best.how == "fused"
    assert best.loss == min(one.loss for one in report.trials if one.loss is not None and one.stopped == "finished")
    assert best.accuracy is not None and best.accuracy > 0.8
    given_up = [one for one in report.trials if one.stopped == "given up"]
    assert all(one.steps < best.steps for one in given_up) and (pruner != "none" or not given_up)
    assert report.samples == 32 * sum(one.steps for one in report.trials)
    assert done.state is not None and done.state["1.weight"].shape == (32, 64)
    if sampler == "random":
        again = tune(search, "serial", threads=1).report
        assert [one.drawn for one in again.trials] == [one.drawn for one in report.trials]
        for one, other in zip(again.trials, report.trials, strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-2)


def test_trials_are_grouped_by_what_is_fusible(tmp_path: Path) -> None:
    ranges = """lr = { choices = [0.05, 0.1] }
[arguments]
width = { low = 8, high = 9, whole = true }"""
    search = read(tmp_path, f'{HEAD}sampler = "random"\npruner = "none"\n', ranges)
    report = tune(search, "fused", threads=1).report
    assert {one.drawn["arguments.width"] for one in report.trials} == {8, 9}
    assert {one.how for one in report.trials} <= {"fused", "serial"} and "fused" in {one.how for one in report.trials}


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ("", "empty"),
        ("lr = { low = 1.0, high = 0.1 }", "low is not below high"),
        ("lr = { low = 0.0, high = 0.1, log = true }", "above zero"),
        ("lr = { low = 0.1 }", "low is not below high"),
        ("lr = { choices = [0.1], low = 0.1, high = 0.2 }", "or choices"),
        ("batch_size = { low = 1.5, high = 3, whole = true }", "whole"),
        ("depth = { low = 1, high = 3 }", "no 'depth'"),
        ("name = { choices = ['a'] }", "no 'name'"),
    ],
)
def test_what_is_refused(tmp_path: Path, ranges: str, reason: str) -> None:
    with pytest.raises(BadTrainingSpec, match=reason):
        read(tmp_path, ranges=ranges)


def test_what_an_optimiser_does_not_have(tmp_path: Path) -> None:
    search = read(tmp_path, ranges="kind = { choices = ['adam'] }\nmomentum = { low = 0.1, high = 0.9 }")
    with pytest.raises(BadTrainingSpec, match="momentum"):
        tune(search)


def test_something_must_be_held_out(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text(
        "import torch\ndef data():\n    return (torch.zeros(64, 64), torch.zeros(64, dtype=torch.long)), None\n",
        encoding="utf-8",
    )
    with pytest.raises(BadTrainingCode, match="holds nothing out"):
        tune(read(tmp_path, HEAD.replace(str(CODE), str(code))))
