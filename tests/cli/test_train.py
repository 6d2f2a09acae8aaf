"""`bricolage train`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bricolage.codec import decode

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

SWEEP = Path(__file__).parents[2] / "examples" / "demo_train" / "cnn.toml"


def train(*words: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "bricolage.cli.main", "train", *words]
    return subprocess.run(call, capture_output=True, text=True, check=False, timeout=300)


def test_the_sweep_of_the_demonstration(tmp_path: Path) -> None:
    from bricolage.train.fuse.fuse import Swept

    short = SWEEP.read_text().replace("epochs = 40", "epochs = 3").replace('"digits.py', f'"{SWEEP.parent}/digits.py')
    path = tmp_path / "sweep.toml"
    path.write_text(short)
    found = train("fuse", str(path), "--how", "fused", "--threads", "1", "--json", "-o", str(tmp_path / "models"))
    assert found.returncode == 0, found.stderr
    told = decode(Swept, json.loads(found.stdout))
    assert len(told.lanes) == 8 and told.groups[0].how == "fused" and told.groups[0].ways
    assert max(lane.accuracy or 0.0 for lane in told.lanes) > 0.8
    state = torch.load(tmp_path / "models" / f"{told.lanes[0].name}.pt")
    assert state["0.weight"].shape == (8, 1, 3, 3)
    shown = train("fuse", str(path), "--how", "serial", "--threads", "1")
    assert "Accuracy" in shown.stdout and "8 lanes trained serial" in shown.stdout, shown.stdout


@pytest.mark.parametrize(
    ("words", "reason"), [(["none.toml"], "none.toml"), ([str(SWEEP), "--how", "magic"], "auto, serial, fused")]
)
def test_bad_commands(words: list[str], reason: str) -> None:
    found = train("fuse", *words)
    assert found.returncode == 2 and reason in found.stderr, found.stderr
