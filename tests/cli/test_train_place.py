"""`bricolage train place`, on a real instance and on a real training step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from bricolage.cli.main import app

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "device-placement"
BERT = DATA / "bert24_inference.json"
DEMO = ROOT / "examples" / "demo_plan" / "network.py"


def place(*words: object) -> Result:
    return CliRunner().invoke(app, ["train", "place", *map(str, words)])


def rows_of(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return {row["method"]: row for row in json.loads(result.stdout)["methods"]}


def test_a_real_instance_by_every_method_but_those_that_learn(tmp_path: Path) -> None:
    names = [
        "heft",
        "cpop",
        "peft",
        "dpos",
        "m-topo",
        "m-etf",
        "m-sct",
        "random-keys",
        "pipedream",
        "order",
        "dp",
        "ip",
        "blocks",
    ]
    options = [word for name in names for word in ("--method", name)]
    out = tmp_path / "placement.json"
    expert = DATA / "bert24_inference_expert.json"
    rows = rows_of(place(BERT, *options, "--limit", 1, "--goal", "load", "-o", out, "--by-hand", expert, "--json"))
    assert set(rows) == {*names, "by hand"}
    assert rows["dp"]["predicted_ms"] == rows["dp"]["bound_ms"] == pytest.approx(17.7899, abs=1e-4)
    assert rows["by hand"]["predicted_ms"] == pytest.approx(20.0840, abs=1e-4)
    assert all(row["bound_ms"] <= row["predicted_ms"] for row in rows.values() if not row["refused"])
    bounds = json.loads(place(BERT, "--method", "blocks", "--goal", "blocks", "--json").stdout)["bounds"]
    assert bounds["blocks"] == rows["blocks"]["bound_ms"] and 0.0 < rows["blocks"]["gap"] < 0.5
    kept = json.loads(out.read_text(encoding="utf-8"))
    best = min((row for row in rows.values() if not row["refused"]), key=lambda row: row["ms"]["load"])
    assert kept["ms"]["load"] == best["ms"]["load"] and len(kept["operators"]) == 32
    assert set(kept["operators"].values()) <= set(kept["memory"])


def test_a_table_of_two_accelerators_says_what_the_authors_program_gives() -> None:
    shown = place(BERT, "--method", "dp", "--method", "heft", "--accelerators", 2)
    assert shown.exit_code == 0, shown.stderr
    (row,) = [line.split() for line in shown.stdout.splitlines() if line.startswith("dp ")][:1]
    assert row[1:6] == ["44.9", "ms", "44.9", "ms", "0.0"], row
    assert "Kept: heft" in shown.stdout and "acc. 1" in shown.stdout


def test_bad_files_and_options_are_refused_in_words(tmp_path: Path) -> None:
    instance = json.loads(BERT.read_text(encoding="utf-8"))
    edges = instance["edges"]
    back = {**edges[0], "sourceId": edges[0]["destId"], "destId": edges[0]["sourceId"]}
    circle = tmp_path / "circle.json"
    circle.write_text(json.dumps({**instance, "edges": [*edges, back]}), encoding="utf-8")
    small = tmp_path / "small.json"
    small.write_text(json.dumps({**instance, "maxSizePerFPGA": 10.0, "maxCPUs": 0}), encoding="utf-8")
    other = tmp_path / "other.json"
    other.write_text('{"layers": []}', encoding="utf-8")
    out = tmp_path / "out.json"
    for words, reason in (
        ((circle,), "in a circle"),
        ((other,), "is no instance of device placement"),
        ((tmp_path / "nothing.json",), "nothing.json"),
        ((small, "--method", "heft"), "memories do not hold the operators"),
        ((BERT, "--method", "magic"), "--method cannot be 'magic'"),
        ((BERT, "--goal", "magic"), "--goal cannot be 'magic'"),
        ((BERT, "--by-hand", other), "lacks 'fpgas'"),
    ):
        refused = place(*words, "-o", out)
        assert refused.exit_code == 2 and reason in " ".join(refused.stderr.split()), refused.stderr
        assert not out.exists()


SPEC = """
module = "{network}:transformer"
arguments = {{ layers = 1, width = 16 }}
batch = "{network}:batch"
batch_size = 4

[devices]
device = [
    {{ name = "host", kind = "cpu", cores = 1, memory_gb = 4.0 }},
    {{ name = "gpu0", kind = "gpu", scale = 0.2, memory_gb = {memory} }},
    {{ name = "gpu1", kind = "gpu", scale = 0.2, memory_gb = {memory} }},
]
link = [
    {{ between = ["host", "gpu0"], gbytes = 12.0, latency_us = 10.0 }},
    {{ between = ["host", "gpu1"], gbytes = 12.0, latency_us = 10.0 }},
    {{ between = ["gpu0", "gpu1"], gbytes = 12.0, latency_us = 10.0 }},
]
"""


def test_a_real_step_on_devices_of_two_kinds(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path, out = tmp_path / "step.toml", tmp_path / "placement.json"
    path.write_text(SPEC.format(network=DEMO, memory=0.0002), encoding="utf-8")
    threads = torch.get_num_threads()
    options = [word for name in ("heft", "m-sct", "dp", "ip") for word in ("--method", name)]
    rows = rows_of(place(path, *options, "--seconds", 0.1, "--limit", 1, "-o", out, "--json"))
    assert torch.get_num_threads() == threads
    for row in rows.values():
        assert not row["refused"] and row["bound_ms"] <= row["predicted_ms"]
        assert max(row["memory"]["gpu0"], row["memory"]["gpu1"]) <= 200_000 < sum(row["memory"].values())
    kept = json.loads(out.read_text(encoding="utf-8"))
    assert set(kept["operators"].values()) <= {"host", "gpu0", "gpu1"} and len(kept["operators"]) > 20
    refused = place(path, "--accelerators", 2)
    assert refused.exit_code == 2 and "instances alone" in refused.stderr
