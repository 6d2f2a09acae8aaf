"""Optimus' models on curves that are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from bricolage.costs.models.worker_scaling import Run, fit_speed
from bricolage.errors import BadTrainingLog, MissingFile
from bricolage.train.predict.convergence import fit_loss, read_losses, read_runs


@pytest.mark.parametrize(("a", "b", "c"), [(0.01, 0.5, 0.2), (0.002, 0.4, 0.0), (0.1, 2.0, 1.0)])
def test_a_curve_comes_back_from_its_first_third(a: float, b: float, c: float) -> None:
    steps = np.arange(1, 400)
    losses = 1 / (a * steps + b) + c
    found = fit_loss(list(zip(steps.tolist(), losses.tolist(), strict=True)))
    assert found.error < 0.02
    end = 1 / (a * 1200 + b) + c
    assert found.loss(1200) == pytest.approx(end, rel=0.05)
    assert found.steps_to(end) == pytest.approx(1200, rel=0.25)
    assert found.steps_to(found.c * 0.5 - 1e-6) == math.inf or found.c == 0.0


def test_noise_does_not_harm_it_much() -> None:
    steps = np.arange(1, 600)
    made = np.random.default_rng(0)
    losses = 1 / (0.01 * steps + 0.5) + 0.3 + made.normal(0, 0.02, len(steps))
    found = fit_loss(list(zip(steps.tolist(), losses.tolist(), strict=True)))
    assert found.loss(2000) == pytest.approx(1 / 20.5 + 0.3, rel=0.15)


@pytest.mark.parametrize("synchronous", [True, False])
def test_speeds_come_back_from_short_runs(synchronous: bool) -> None:
    def seconds(workers: int, servers: int) -> float:
        if synchronous:
            return 0.01 * 512 / workers + 0.1 + 0.05 * workers / servers + 0.002 * workers
        return (0.3 + 0.05 * workers / servers + 0.002 * workers) / workers

    runs = [Run(w, q, 512, 1 / seconds(w, q)) for w in (1, 2, 4, 8) for q in (1, 2, 4)]
    model = fit_speed(runs, synchronous)
    for workers, servers in ((16, 4), (6, 3)):
        assert model.steps_s(workers, servers, 512) == pytest.approx(1 / seconds(workers, servers), rel=0.05)
    with pytest.raises(ValueError, match="workers"):
        fit_speed([Run(0, 1, 1, 1.0)])


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "losses.csv"
    file.write_text("step,loss\n1,2.0\n2, 1.5\n\n3 1.2\n4,1.1\n5,1.05\n", encoding="utf-8")
    assert read_losses(file) == [(1, 2.0), (2, 1.5), (3, 1.2), (4, 1.1), (5, 1.05)]
    file.write_text("\n".join(["2", "1.5", "1.2", "1.1", "1.0"]), encoding="utf-8")
    assert read_losses(file)[0] == (1.0, 2.0)
    for text in ("1,2\n2,x\n", "1,2,3\n", "1,nan\n", "1,2\n"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(BadTrainingLog):
            read_losses(file)
    with pytest.raises(MissingFile):
        read_losses(tmp_path / "none")
    file.write_text("workers,servers,batch,steps_s\n1,0,64,2.5\n2 0 64 4\n", encoding="utf-8")
    assert read_runs(file) == [Run(1, 0, 64, 2.5), Run(2, 0, 64, 4.0)]
    for text in ("", "1,0,64\n", "1.5,0,64,2\n", "0,0,64,2\n", "1,0,64,0\n"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(BadTrainingLog):
            read_runs(file)
