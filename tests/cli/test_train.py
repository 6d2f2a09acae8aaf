"""`bricolage train`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from bricolage.base.codec import decode
from bricolage.cli.main import app
from tests.needed import needs

needs("sklearn")

if TYPE_CHECKING:
    from click.testing import Result

torch = pytest.importorskip("torch")

SWEEP = Path(__file__).parents[2] / "examples" / "demo_train" / "cnn.toml"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What is set of PyTorch for the whole process is as it was."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def train(*words: str) -> Result:
    """In this process, which has imported PyTorch: a process of its own would do it for each command."""
    return CliRunner().invoke(app, ["train", *words])


def test_the_sweep_of_the_demonstration(tmp_path: Path) -> None:
    from bricolage.train.fuse.fuse import Swept

    short = (
        SWEEP.read_text(encoding="utf-8")
        .replace("epochs = 40", "epochs = 3")
        .replace('"digits.py', f'"{SWEEP.parent}/digits.py')
    )
    path = tmp_path / "sweep.toml"
    path.write_text(short, encoding="utf-8")
    found = train("fuse", str(path), "--how", "fused", "--threads", "1", "--json", "-o", str(tmp_path / "models"))
    assert found.exit_code == 0, found.stderr
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
    assert found.exit_code == 2 and reason in found.stderr, found.stderr


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "step.toml"
    code = SWEEP.parent / "digits.py"
    path.write_text(
        f'module = "{code}:cnn"\nbatch = "{code}:batch"\nbatch_size = 16\nloss = "cross_entropy"\n', encoding="utf-8"
    )
    return path


def test_a_prediction(spec: Path, tmp_path: Path) -> None:
    from bricolage.train.predict.prediction import Prediction

    losses, runs, page = tmp_path / "losses.csv", tmp_path / "runs.csv", tmp_path / "step.html"
    losses.write_text("\n".join(str(1 / (0.1 * step + 0.5) + 0.2) for step in range(1, 30)), encoding="utf-8")
    runs.write_text("\n".join(f"{w},0,64,{1 / (0.2 / w + 0.1)}" for w in (1, 2, 4, 8)), encoding="utf-8")
    words = [str(spec), "--what-if", "batch=32", "--what-if", "micro=3", "--seconds", "0.1", "--threads", "1"]
    more = ["--losses", str(losses), "--target", "0.3", "--runs", str(runs), "--memory", "100kB"]
    shown = train("predict", *words, *more, "--measure", "--html", str(page))
    assert shown.exit_code == 0, shown.stderr
    for part in (
        "batch=32",
        "3 equal parts",
        "aten::convolution_backward",
        "Really run",
        "reaches 0.3",
        "Workers",
        "Within",
    ):
        assert part in shown.stdout, (part, shown.stdout)
    html = page.read_text(encoding="utf-8")
    assert "<svg" in html and "batch=32" in html and "http://" not in html.replace("http://www.w3.org", "")
    found = train("predict", str(spec), "--what-if", "batch=32", "--seconds", "0.1", "--threads", "1", *more, "--json")
    told = json.loads(found.stdout)
    assert told.pop("convergence")["steps"] == pytest.approx(95, rel=0.1)
    speed = told.pop("speed")
    assert [one["workers"] for one in speed] == [1, 2, 4, 8, 16]
    assert speed[-1]["steps_s"] == pytest.approx(1 / (0.2 / 16 + 0.1), rel=0.05)
    assert [one.variant for one in decode(Prediction, told).predicted][:2] == ["as it is", "batch=32"]


def test_replicas(tmp_path: Path) -> None:
    code = Path(__file__).parents[1] / "train" / "replicas" / "code.py"
    spec = tmp_path / "replicas.toml"
    step = f'[step]\nmodule = "{code}:net"\nbatch = "{code}:batch"\nbatch_size = 32\n[step.optimiser]\nlr = 0.05\nmomentum = 0.9\n'
    spec.write_text(f'data = "{code}:data"\nsteps = 10\n[[method]]\nname = "fast"\n{step}', encoding="utf-8")
    shown = train("replicas", str(spec), "-o", str(tmp_path / "models"))
    assert shown.exit_code == 0, shown.stderr
    assert "fast" in shown.stdout and "2 workers" in shown.stdout
    assert torch.load(tmp_path / "models" / "fast.pt")["0.weight"].shape == (16, 8)
    found = train("replicas", str(spec), "--method", "local", "--seeds", "2", "--straggler", "2", "--json")
    rows = json.loads(found.stdout)
    assert [(row["method"]["kind"], row["seed"]) for row in rows] == [("local", 0), ("local", 1)]
    assert all(row["samples"] == 10 * 32 * 2 and row["samples_s"] > 0 and 0 < row["accuracy"] <= 1 for row in rows)
    described = ["--simulate", "--bandwidth", "0.1", "--latency", "50", "--step-ms", "2", "--workers", "8"]
    shown = train("replicas", str(spec), "--method", "asp", "--seeds", "2", "--to-loss", "9", *described)
    assert shown.exit_code == 0, shown.stderr
    assert "8 workers; means over 2 seeds; times are simulated" in shown.stdout and "To 9" in shown.stdout
    rows = json.loads(train("replicas", str(spec), *described, "--json").stdout)
    assert [(row["simulated"], row["samples"], row["steps"]) for row in rows] == [(True, 10 * 32 * 8, 80)]
    for words, reason in (
        (["--method", "magic"], "allreduce, bsp"),
        (["--method", "adpsgd", "--workers", "1"], "one worker"),
        (["--bandwidth", "1"], "add --simulate"),
        (["--step-ms", "1"], "add --simulate"),
        (["--simulate", "--latency", "1"], "Give --bandwidth"),
        (["--simulate", "--workers", "13", "--bandwidth", "1"], "too few"),
    ):
        bad = train("replicas", str(spec), *words)
        assert bad.exit_code == 2 and reason in bad.stderr, bad.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--what-if", "magic"], "magic"),
        (["--memory", "2 apples"], "2GB"),
        (["--target", "0.1"], "--losses"),
        (["--losses", "none.csv", "--target", "0.1"], "none.csv"),
        (["--runs", "none.csv"], "none.csv"),
        (["--html", "/none/there.html"], "there.html"),
    ],
)
def test_bad_predictions(spec: Path, words: list[str], reason: str) -> None:
    found = train("predict", str(spec), *words)
    assert found.exit_code == 2 and reason in found.stderr, found.stderr


def test_a_search(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    code = SWEEP.parent / "digits.py"
    path = tmp_path / "search.toml"
    step = f'[step]\nmodule = "{code}:mlp"\nbatch = "{code}:batch"\nbatch_size = 64\n'
    ranges = "[search]\nlr = { low = 0.01, high = 1.0, log = true }\n"
    path.write_text(f'data = "{code}:data"\nepochs = 2\ntrials = 4\ntogether = 4\n{ranges}{step}', encoding="utf-8")
    shown = train("tune", str(path), "--how", "fused", "--threads", "1", "-o", str(tmp_path / "best.pt"))
    assert shown.exit_code == 0, shown.stderr
    assert "trial 0" in shown.stdout and "* is the best" in shown.stdout and "fused" in shown.stdout
    assert torch.load(tmp_path / "best.pt")["1.weight"].shape == (32, 64)
    for words, reason in (
        (["--how", "processes"], 'pruner = "none"'),
        (["--how", "magic"], "auto"),
        (["--memory", "x"], "2GB"),
    ):
        bad = train("tune", str(path), *words)
        assert bad.exit_code == 2 and reason in bad.stderr, bad.stderr


def test_a_step_is_planned_and_run_on_processes_here(tmp_path: Path) -> None:
    from bricolage.train.run.document import TrainingPlan
    from bricolage.train.run.launch_plan import PlanResult

    spec, plan = tmp_path / "step.toml", tmp_path / "plan"
    code = Path(__file__).parents[1] / "train" / "run" / "code.py"
    words = f'module = "{code}:tied"\nbatch = "{code}:batch"\nbatch_size = 8\n[devices]\n'
    spec.write_text(f"{words}here = 2\ngbytes = 0.001\n", encoding="utf-8")
    done = train("plan", str(spec), "-o", str(plan), "--seconds", "0.1", "--json")
    assert done.exit_code == 0, done.stderr
    made = decode(TrainingPlan, json.loads(done.stdout))
    assert made.devices.here and made.ring is not None
    assert made.devices.link.gbytes <= 0.001 and made.ring.ms_per_byte >= 0.99e-3, "1 MB a second, both ways"
    assert len(made.layers) == 1 and made.way != "pipeline"
    assert made.notes[0] == "no stage begins between two uses of the weights 'words.weight'"
    assert made.layouts is None and made.notes[1].startswith("no divided operators: "), "a megabyte a second"
    assert made.data_parallel_ms is not None and made.data_parallel_ms > 20.0, "20 KB at 1 MB a second"
    first = (plan / "report.html").read_text(encoding="utf-8")
    assert "What other devices would bring" in first and "Measured" not in first
    done = train("run", str(plan), "--seconds", "0.1", "--json")
    assert done.exit_code == 0, done.stderr
    found = decode(PlanResult, json.loads(done.stdout))
    assert set(found.measured) == {"data parallel", "single process"} and found.kept in found.measured
    assert "95 % interval" in (plan / "report.html").read_text(encoding="utf-8")
    page = tmp_path / "again.html"
    assert train("report", str(plan), "-o", str(page)).exit_code == 0
    assert page.read_text(encoding="utf-8") == (plan / "report.html").read_text(encoding="utf-8")


def test_plans_that_cannot_be(tmp_path: Path) -> None:
    for words, told in (
        (["run", str(tmp_path)], "plan.json"),
        (["run", str(tmp_path / "nowhere")], "there is no file"),
        (["plan", str(SWEEP), "-o", str(tmp_path / "plan")], "unknown field"),
        (["plan", str(SWEEP), "-o", str(tmp_path / "plan"), "--schedule", "round"], "1f1b"),
    ):
        found = train(*words)
        assert found.exit_code == 2 and told in found.stderr, found.stderr
