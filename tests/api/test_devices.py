"""Schedules on described devices: from a made plan to predictions, certificates, the trace and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.scheduling.simulation import main as validate
from bricolage.api.devices import simulate_devices
from bricolage.base.options import Options
from bricolage.cli.main import app
from bricolage.device.host import host
from bricolage.errors import BadDevices, UnsupportedType
from bricolage.plan import artifact
from bricolage.work.implementation import Assignment, Implementation
from tests.runtime.made_plans import graph_of_size, made_bucket, made_plan

pytestmark = pytest.mark.usefixtures("backends")
BODY = "a=Relu(x) b=Tanh(a) c=Neg(a) y=Add(b,c)"
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
TWO = '[[device]]\nname = "cpu"\nkind = "cpu"\n[[device]]\nname = "gpu"\nkind = "gpu"\n'
LINK = '[[link]]\nbetween = ["cpu", "gpu"]\ngbytes = 1.0\nlatency_us = 3.0\n'


def saved(tmp_path: Path) -> Path:
    """A plan of one region."""
    bucket = made_bucket(
        tmp_path / "run", graph_of_size(2, BODY), (Assignment(0b1111, Implementation("quick")),), {"n": 2}
    )
    plan = made_plan(tmp_path / "run", bucket, options=Options(threads=len(host().cores)), body=BODY)
    artifact.save(plan, tmp_path / "run", tmp_path / "made.bricolage")
    return tmp_path / "made.bricolage"


def described(tmp_path: Path, text: str) -> Path:
    (tmp_path / "devices.toml").write_text(text, encoding="utf-8")
    return tmp_path / "devices.toml"


def test_a_fork_is_divided_and_every_method_places_it(tmp_path: Path) -> None:
    found = simulate_devices(saved(tmp_path), described(tmp_path, TWO), {"x": X})
    assert [one.operators for one in found.sub_graphs] == ["0", "1", "2", "3"]
    assert {one.method for one in found.predicted} == {
        "HEFT",
        "PEFT",
        "CPOP",
        "DPOS",
        "m-ETF",
        "m-SCT",
        "BRKGA",
        "DUET",
        "exact",
    }
    best = next(one for one in found.predicted if one.method == "exact")
    assert best.proven and best.makespan_ms == min(one.makespan_ms for one in found.predicted)
    for one in found.predicted:
        assert found.lower_ms <= one.makespan_ms * (1 + 1e-9) and not one.moves
        assert one.upper_ms is not None and one.makespan_ms <= one.upper_ms * (1 + 1e-9)
        assert one.schedule.intervals[0].device == one.schedule.intervals[-1].device == "cpu"


def test_given_times_links_and_what_a_device_lacks_count(tmp_path: Path) -> None:
    path = saved(tmp_path)
    times = "".join(f"ms.{number} = 1e6\n" for number in range(1, 5))
    much = TWO.replace('kind = "cpu"\n', f'kind = "cpu"\n{times}') + "scale = 1e-3\n"
    found = simulate_devices(path, described(tmp_path, much + LINK), {"x": X})
    best = next(one for one in found.predicted if one.method == "exact")
    assert [one.device for one in best.schedule.intervals] == ["cpu", "gpu", "gpu", "gpu", "gpu", "cpu"]
    assert [(one.source, one.target) for one in best.moves] == [(0, 1), (4, 5)]
    assert best.upper_ms is None, "nothing is proven from above where something moves"
    assert best.moves[0].end_ms - best.moves[0].start_ms == pytest.approx(0.003 + 32 / 1e6)
    lacking = simulate_devices(path, described(tmp_path, much + 'without = ["Tanh"]\n' + LINK), {"x": X})
    exact = next(one for one in lacking.predicted if one.method == "exact")
    assert exact.schedule.intervals[2].device == "cpu" and exact.makespan_ms > 1e6
    only = TWO.replace('kind = "cpu"\n', 'kind = "cpu"\nwithout = ["Neg"]\n') + 'without = ["Neg"]\n'
    with pytest.raises(BadDevices, match=r"none of them runs sub-graph 3 \(Neg\)"):
        simulate_devices(path, described(tmp_path, only), {"x": X})


def test_samples_one_behind_another(tmp_path: Path) -> None:
    times = [1.0, 2.0, 3.0, 4.0]
    given = "".join(f"ms.{number} = {ms}\n" for number, ms in enumerate(times, 1))
    gpu = '[[device]]\nname = "gpu{0}"\nkind = "gpu"\n' + given
    link = LINK.replace("1.0", "1e6").replace("3.0", "500.0")
    both = '[[device]]\nname = "cpu"\nkind = "cpu"\nscale = 1e6\n' + gpu.format(1) + gpu.format(2)
    text = both + link.replace('"gpu"', '"gpu1"') + link.replace('"gpu"', '"gpu2"')
    found = simulate_devices(saved(tmp_path), described(tmp_path, text), {"x": X}).pipelined
    assert found is not None
    # 1 to 3 before 4, or 1 and 2 before 3 and 4: whatever is read on the other side costs half a ms on each.
    assert found.sample_ms == pytest.approx(7.0) == pytest.approx(found.bound_ms)
    assert len(set(found.devices)) == 2 and "cpu" not in found.devices
    unlike = text.replace("ms.2 = 2.0", "ms.2 = 2.5", 1)
    assert simulate_devices(saved(tmp_path), described(tmp_path, unlike), {"x": X}).pipelined is None


def test_operators_that_a_device_is_faster_at_are_weighted(tmp_path: Path) -> None:
    text = TWO.replace('kind = "gpu"\n', 'kind = "gpu"\nscale = 1e-4\noperators.Tanh = 1e4\noperators.Neg = 1e4\n')
    found = simulate_devices(saved(tmp_path), described(tmp_path, text), {"x": X})
    best = next(one for one in found.predicted if one.method == "exact")
    assert [one.device for one in best.schedule.intervals[1:5]] == ["gpu", "cpu", "cpu", "gpu"]


def test_a_shape_that_was_not_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedType, match="not planned"):
        simulate_devices(saved(tmp_path), described(tmp_path, TWO), {"x": np.vstack([X, X])})


def test_the_command_shows_placements_and_writes_a_trace(tmp_path: Path) -> None:
    path, devices, run = str(saved(tmp_path)), str(described(tmp_path, TWO + LINK)), CliRunner()
    words = ["schedule", path, "--devices", devices, "--simulate"]
    shown = run.invoke(app, [*words, "--trace", str(tmp_path / "t.json")])
    assert shown.exit_code == 0, shown.stderr
    assert "proven to be shortest" in shown.stdout and "no schedule" in shown.stdout
    assert "samples one behind another" in " ".join(shown.stdout.split())
    trace = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    calls = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {"inputs", "1 Relu", "2 Tanh", "3 Neg", "4 Add", "outputs"} <= {call["name"] for call in calls}
    rows = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {call["tid"] for call in calls} <= rows
    told = json.loads(run.invoke(app, [*words, "--json"]).stdout)
    assert len(told["sub_graphs"]) == 4 and told["predicted"][0]["schedule"]["intervals"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--devices", "DEVICES"], "add --simulate"),
        (["--devices", "DEVICES", "--simulate", "-o", "x.bricolage"], "no artifact is written"),
        (["--simulate"], "--devices FILE"),
        (["--trace", "t.json"], "--devices FILE"),
        (["-o", "x.bricolage"], "give a file of them"),
        ([], "give a file of them"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, words: list[str], reason: str) -> None:
    devices = str(described(tmp_path, TWO))
    ran = CliRunner().invoke(
        app, ["schedule", str(saved(tmp_path)), *[word.replace("DEVICES", devices) for word in words]]
    )
    assert ran.exit_code == 2 and reason in " ".join(ran.stderr.split())


def test_every_schedule_really_runs_for_the_simulators_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    validate([str(saved(tmp_path)), "--runs", "1", "--rounds", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["summary"]["rows"] == len(told["rows"]) >= 2
    for row in told["rows"]:
        assert row["sub_graphs"] == 4 and row["error"] == pytest.approx(row["predicted_ms"] / row["measured_ms"] - 1)
    assert told["summary"]["worst"] == max(abs(row["error"]) for row in told["rows"])
