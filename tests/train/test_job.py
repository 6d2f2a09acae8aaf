"""A training step as a job: what is stopped and gone on with is what an undisturbed run gives, to the last bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from bricolage.train import job  # noqa: E402
from bricolage.train.step.spec import StepSpec, read_spec  # noqa: E402

CODE = """
import torch

def net(width):
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.0), torch.nn.Linear(width, 3))

def batch(size, seed):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=made), torch.randint(0, 3, (size,), generator=made)
"""
SPEC = 'module = "code.py:net"\narguments = { width = 5 }\nbatch = "code.py:batch"\n[optimiser]\nkind = "adam"\nlr = 0.01\n'


@pytest.fixture
def spec(tmp_path: Path) -> StepSpec:
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "step.toml").write_text(SPEC)
    return read_spec(tmp_path / "step.toml")


def trained(spec: StepSpec, folder: Path, *steps: int) -> dict[str, object]:
    """What the checkpoint holds after runs to these numbers of steps."""
    folder.mkdir()
    for number in steps:
        job.train_job(spec, folder, folder / "progress", number)
        assert (folder / "steps").read_text() == str(number)
    found: dict[str, object] = torch.load(folder / "state.pt", weights_only=True)
    return found


def test_a_run_in_parts_is_the_whole_run(spec: StepSpec, tmp_path: Path) -> None:
    whole, parts = trained(spec, tmp_path / "a", 9), trained(spec, tmp_path / "b", 2, 5, 9)
    assert whole["done"] == parts["done"] == 9
    for name, value in whole["module"].items():  # type: ignore[attr-defined]
        assert torch.equal(value, parts["module"][name])  # type: ignore[index]


def test_who_is_asked_to_end_saves(spec: StepSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = job._Training.run

    def once(training: job._Training) -> None:
        run(training)
        if training.done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(job._Training, "run", once)
    job.train_job(spec, tmp_path, tmp_path / "progress", 1000)
    assert (tmp_path / "steps").read_text() == "3"
