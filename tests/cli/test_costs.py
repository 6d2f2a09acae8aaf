from __future__ import annotations

import json
import time
from pathlib import Path

from typer.testing import CliRunner

from bricolage import errors
from bricolage.backends import registry
from bricolage.cli.main import app
from bricolage.costs.database import Cost, CostKey, Database
from bricolage.costs.latency import Latency
from bricolage.device.host import host

run = CliRunner()


def fill() -> None:
    def key(region: str, backend: str, device: str = host().fingerprint()) -> CostKey:
        return CostKey(region, backend, "1.0", "f32", device, threads=1, alone=False)

    with Database() as database:
        database.put(key("aaaa", "onnxruntime"), Cost("ok", Latency(1.0, 0.9, 1.1, 20), 1e-7))
        database.put(key("bbbb", "tvm"), Cost("crashed", reason="signal 11 [in a worker]"))
        database.put(
            key("cccc", "openvino", "elsewhere"),
            Cost("ok", Latency(2.0, 1.9, 2.1, 20), 1e-7, date=time.time() - 90 * 86400),
        )


def test_list_is_empty_at_first() -> None:
    assert run.invoke(app, ["costs", "list"]).stdout == "no measurements\n"


def test_list_and_failures() -> None:
    fill()
    narrow = run.invoke(app, ["costs", "list"], env={"COLUMNS": "80"}).stdout
    assert "onnxruntime 1.0" in narrow and "1.00 ms" in narrow and "tvm 1.0" in narrow
    assert "0.90-1.10 ms" in run.invoke(app, ["costs", "list"], env={"COLUMNS": "120"}).stdout
    failures = run.invoke(app, ["costs", "list", "--failures"]).stdout
    assert "signal 11 [in a worker]" in failures and "onnxruntime" not in failures
    one = run.invoke(app, ["costs", "list", "--backend", "openvino", "--json"])
    assert [entry["key"]["region"] for entry in json.loads(one.stdout)["costs"]] == ["cccc"]


def test_list_is_limited() -> None:
    fill()
    found = run.invoke(app, ["costs", "list", "--limit", "1"])
    assert len(found.stdout.splitlines()) == 2 and "there are more" in found.stderr


def test_export_and_import_round_trip(monkeypatch: object, tmp_path: Path) -> None:
    del monkeypatch
    fill()
    before = run.invoke(app, ["costs", "export"]).stdout
    assert run.invoke(app, ["costs", "export", "-o", "costs.jsonl"]).exit_code == 0
    assert Path("costs.jsonl").read_text(encoding="utf-8") == before and len(before.splitlines()) == 3
    other = {"BRICOLAGE_CACHE": str(tmp_path / "other")}
    found = run.invoke(app, ["costs", "import", "costs.jsonl", "--json"], env=other)
    assert json.loads(found.stdout) == {"added": 3, "improved": 0, "kept": 0, "bad": 0}
    assert run.invoke(app, ["costs", "export"], env=other).stdout == before


def test_import_of_something_else_is_refused() -> None:
    Path("x.txt").write_text("hello\nworld\n", encoding="utf-8")
    found = run.invoke(app, ["costs", "import", "x.txt"])
    assert found.exit_code == errors.USAGE and "line 1 was left out" in found.stderr


def test_prune() -> None:
    for name in ("onnxruntime", "tvm"):  # of which another version is installed than the one measured
        registry.version(name)
    fill()
    assert run.invoke(app, ["costs", "prune"]).stdout == "0 removed\n"
    assert run.invoke(app, ["costs", "prune", "--failures", "--json"]).stdout.split() == ["{", '"removed":', "1", "}"]
    assert run.invoke(app, ["costs", "prune", "--older-than", "30"]).stdout == "1 removed\n"
    fill()
    assert run.invoke(app, ["costs", "prune", "--other-hardware"]).stdout == "1 removed\n"
    assert run.invoke(app, ["costs", "prune", "--other-versions"]).stdout == "2 removed\n"
