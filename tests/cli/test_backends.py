from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bricolage.backends import registry
from bricolage.backends.interface import Backend, Claim, Missing, RegionModel, Resources, Status
from bricolage.backends.kernel import Kernel
from bricolage.cli.main import app
from bricolage.work.implementation import KernelConfig

run = CliRunner()


def test_backends_are_listed_with_version_and_configs() -> None:
    found = run.invoke(app, ["backends", "--json"])
    assert found.exit_code == 0, found.stderr
    by_name = {facts["name"]: facts for facts in json.loads(found.stdout)["backends"]}
    assert tuple(by_name) == registry.names()
    runtime = by_name["onnxruntime"]
    assert runtime["version"] == registry.version("onnxruntime") and runtime["configs"]["highest"]
    assert runtime["version"] in run.invoke(app, ["backends"]).stdout


class Absent(Backend):
    name = "iree"

    def status(self) -> Status:
        return Missing("the package thing is not installed", "pip install thing")

    def claims(self) -> list[Claim]:
        return []

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        raise NotImplementedError(region, config, resources)


def test_missing_backend_shows_reason_and_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.get
    monkeypatch.setattr(registry, "get", lambda name: Absent() if name == "iree" else real(name))
    text = run.invoke(app, ["backends"]).stdout
    assert "the package thing is not installed" in text and "pip install thing" in text
