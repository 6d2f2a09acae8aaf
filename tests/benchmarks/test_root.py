"""What lies in the root of the repository: what a tool leaves there by accident is not committed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.integers.peers import ort_static

ROOT = Path(__file__).parents[2]
TRACKED = frozenset(
    {
        *(".ci", ".gitignore", ".importlinter", ".pre-commit-config.yaml"),
        *(
            "CONTRIBUTING.md",
            "LICENSE",
            "Makefile",
            "README.md",
            "SECURITY.md",
            "constraints.txt",
            "mkdocs.yml",
            "pyproject.toml",
        ),
        *("benchmarks", "docs", "examples", "src", "tests"),
    }
)


def tracked_names() -> frozenset[str]:
    """First parts of the paths that git tracks; of an exported tree without git, what it holds of those that should be there."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--full-name", ":/"],
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    if listing.returncode != 0 or not (ROOT / ".git").exists():
        return frozenset(path.name for path in ROOT.iterdir()) & TRACKED
    return frozenset(path.partition("/")[0] for path in listing.stdout.split("\0") if path)


def test_the_root_holds_what_is_listed() -> None:
    assert tracked_names() == TRACKED


def test_a_quantiser_that_fails_leaves_nothing_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its symbolic inference writes a file into the current folder, and one of weights, where it does not finish."""
    symbolic = pytest.importorskip("onnxruntime.tools.symbolic_shape_infer").SymbolicShapeInference
    monkeypatch.setattr(symbolic, "_infer_impl", lambda self: setattr(self, "run_", False))
    folder, current = tmp_path / "written", tmp_path / "current"
    folder.mkdir()
    current.mkdir()
    monkeypatch.chdir(current)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w = {'
        + ", ".join(["0.5"] * 16)
        + "}> { y = MatMul (x, w) }"
    )
    onnx.save(model, "../float32.onnx")
    ort_static(Path("../float32.onnx"), [{"x": np.ones((2, 4), np.float32)}], Path("../written/bytes.onnx"), False)
    assert (folder / "bytes.onnx").exists() and not list(current.iterdir())
    assert not list(folder.glob("sym_shape_infer*")), "nor beside what was asked for"
