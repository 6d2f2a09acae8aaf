"""The example plugin, installed as a stranger would and used through the product."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bricolage.costs.database import Database
from bricolage.graph.extract import write_model
from bricolage.verify.reference import LIBRARY_VARIABLE
from tests.graph.models import parse

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    target = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", str(target), str(ROOT / "examples/plugin")], check=True)
    cache = tmp_path_factory.mktemp("cache")
    return {**os.environ, "PYTHONPATH": str(target), "BRICOLAGE_CACHE": str(cache), LIBRARY_VARIABLE: "onnx"}


def bricolage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with the few rounds that decisions of tests have."""
    command = [
        sys.executable,
        "-c",
        "import sys, tests.brief, bricolage.cli.main as m; tests.brief.decide_briefly(); sys.exit(m.main())",
        *arguments,
    ]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT, encoding="utf-8"
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {
        f"w{i}": rng.normal(0, 0.1, shape).astype(np.float32) for i, shape in enumerate([(64, 96), (96, 32)])
    } | {f"b{i}": rng.normal(size=size).astype(np.float32) for i, size in enumerate([96, 32])}
    text = """<ir_version: 8, opset_import: ["" : 18]> dense (float[16,64] x) => (float[16,32] y) {
        m0 = MatMul(x, w0) a0 = Add(m0, b0) r0 = Relu(a0) m1 = MatMul(r0, w1) y = Add(b1, m1) }"""
    path = tmp_path / "dense.onnx"
    write_model(parse(text, **weights), path)
    return path


def test_the_example_is_short() -> None:
    files = [path for path in (ROOT / "examples/plugin").iterdir() if path.suffix in (".py", ".toml")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 80


def test_it_is_listed(environment: dict[str, str]) -> None:
    shown = bricolage(environment, "backends", "--json")
    assert shown.returncode == 0, shown.stderr
    assert "blas" in {entry["name"] for entry in json.loads(shown.stdout)["backends"]}


def test_it_competes_and_is_right(
    environment: dict[str, str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = tmp_path / "dense.bricolage"
    done = bricolage(
        environment, "optimize", str(model), "-o", str(artifact), "--backend", "onnxruntime", "--backend", "blas",
        "--effort", "full", "--budget", "40s", "--no-rewrite", "--json",
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    monkeypatch.setenv("BRICOLAGE_CACHE", environment["BRICOLAGE_CACHE"])
    with Database() as database:
        outcomes = [
            (entry.cost.outcome, entry.cost.error) for entry in database.entries() if entry.key.backend == "blas"
        ]
    right = [error for outcome, error in outcomes if outcome == "ok"]
    assert len(right) >= 3, f"matmul, matmul+add and matmul+add+relu should be measured: {outcomes}"


def test_its_fused_pattern_is_a_candidate(environment: dict[str, str]) -> None:
    script = """
import numpy as np
from tests.graph.models import graph
from bricolage.backends import registry
from bricolage.backends.claim_matching import Matcher
g = graph("m=MatMul(x,w) a=Add(m,b) y=Relu(a)", "float[4,8] x", "float[4,8] y",
          w=np.ones((8,8),np.float32), b=np.ones(8,np.float32))
print(sorted(Matcher(g).regions(registry.get("blas").claims())))
"""
    shown = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        encoding="utf-8",
    )
    assert shown.stdout.strip() == "[1, 3, 7]"
