"""A policy at work on a Slurm of text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from bricolage.api import slurm_control
from bricolage.api.slurm_control import (
    SlurmOptions,
    SlurmStep,
    advise_slurm,
    apply_to_slurm,
    restore_slurm,
    watch_slurm,
)
from bricolage.cli.main import app
from bricolage.cluster.slurm.commands import CommandAnswer, SlurmClient
from bricolage.errors import USAGE, BadOption
from tests.cluster.test_slurm import NOW, Made, done, row


class Unaccounted(Made):
    """It keeps no accounts."""

    def __call__(self, words: Sequence[str]) -> CommandAnswer:
        if words[0] == "sacct":
            return CommandAnswer(1, "", "Slurm accounting storage is disabled\n")
        return super().__call__(words)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Unaccounted(
        row(2, name="long"), row(3), *(done(10 + n, 400 + n) for n in range(20)), done(90, 9000, name="long")
    )
    monkeypatch.setattr(slurm_control, "SlurmClient", lambda: SlurmClient(run=made, clock=lambda: NOW))
    return made


def test_advice_changes_nothing(slurm: Made) -> None:
    notes: list[str] = []
    step = advise_slurm(SlurmOptions("sjf"), why=["3"], note=notes.append)
    assert [job.job for job in step.advice.jobs] == ["3", "2"] and step.changes and step.applied is None
    assert [job.job for job in step.explained] == ["3"] and "accounting is off" in notes[0]
    assert not [words for words in slurm.calls if words[0] == "scontrol"]
    with pytest.raises(BadOption, match="that runs or waits"):
        advise_slurm(why=["4"])


def test_what_is_applied_is_restored(slurm: Made) -> None:
    step = apply_to_slurm(SlurmOptions("sjf"))
    assert step.applied is not None and step.applied.made == step.changes
    assert slurm.rows["3"]["time_limit"] == 8
    assert restore_slurm().made and slurm.rows["3"]["time_limit"] == 600


def test_looks_are_counted(slurm: Made) -> None:
    steps: list[SlurmStep] = []
    watch_slurm(SlurmOptions("sjf"), every_s=0.0, looks=2, show=steps.append)
    assert [bool(step.changes) for step in steps] == [True, False], "what is as advised is left alone"


def test_the_commands(slurm: Made) -> None:
    run = CliRunner()
    advised = run.invoke(app, ["cluster", "slurm", "advise", "--policy", "sjf", "--why", "3"])
    assert advised.exit_code == 0 and advised.stdout.splitlines()[-1] == "3 starts now", advised.output
    assert "jobs would be changed by `bricolage cluster slurm apply`" in advised.stderr
    assert run.invoke(app, ["cluster", "slurm", "advise", "--why", "4"]).exit_code == USAGE
    watched = run.invoke(app, ["cluster", "slurm", "watch", "--policy", "sjf", "--every", "0.2", "--times", "2"])
    assert "job 3: TimeLimit=8" in watched.stdout and watched.stdout.count("Advised") == 1, "the table stands once"
    restored = run.invoke(app, ["cluster", "slurm", "restore"])
    assert "job 3: TimeLimit=600" in restored.stdout and slurm.rows["3"]["time_limit"] == 600
