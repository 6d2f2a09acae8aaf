"""An artifact that was loaded before runs with numpy alone, and gives every bit that it gave then."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.late_imports import require_dependency
from bricolage.errors import IndexBeyond, MissingDependency
from bricolage.runtime.load import load
from tests.export.exported import write_artifact

WALL = """
import sys
allowed = {*sys.stdlib_module_names, "bricolage", "numpy", *sys.argv[1].split(",")}
class Wall:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named '{top}'", name=top)
sys.meta_path.insert(0, Wall())
del sys.argv[1]
"""
"""What a process says to any package of others but those that its first argument names."""
RUN = """
import json
import numpy as np
import bricolage
fast = bricolage.load(sys.argv[1])
answers = fast.run(dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **answers)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("bricolage."))))
"""
COMMAND = """
import atexit, json
atexit.register(lambda: print(json.dumps(sorted(name for name in sys.modules if name.startswith("bricolage.")))))
from bricolage.cli.main import main
sys.argv[:] = ["bricolage", "run", sys.argv[1], "--input", sys.argv[2], "--output", sys.argv[3]]
main()
"""
OPTIMISER = frozenset(
    [
        *(
            "cluster",
            "conformance",
            "costs",
            "driver",
            "dynamo",
            "egraph",
            "equations",
            "frontends",
            "lowering",
            "measure",
        ),
        *("quantization", "rewrite", "rulemaking", "search", "testing", "trust", "tune"),
    ]
)
"""Packages of ours that decide, or that read what is decided on."""


def modules_with_needs(*packages: str) -> str:
    """The modules of packages and of all that they need, with commas between them."""
    todo, needed = [*packages], set[str]()
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            lines = [line for line in importlib.metadata.requires(name) or () if "extra ==" not in line]
            found = [re.split(r"[^\w.-]", line)[0] for line in lines]
            todo += [each for each in found if importlib.util.find_spec(each.replace("-", "_"))]
    of_modules = importlib.metadata.packages_distributions()
    wanted = {re.sub(r"[-_.]+", "-", name).lower() for name in needed}
    return ",".join(
        module
        for module, names in of_modules.items()
        if any(re.sub(r"[-_.]+", "-", name).lower() in wanted for name in names)
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of our engine alone, in two regions; in the first bucket `n` is 1, in the second 40."""
    if not isinstance(registry.get("native").status(), Available):
        pytest.skip("there is no C compiler")
    return write_artifact(tmp_path_factory.mktemp("light"), regions=2)


def inputs(rows: int = 1, index: int = 3) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(rows)
    return {"x": draw.standard_normal((rows, 64)).astype(np.float32), "ids": np.full((rows, 1), index)}


def in_a_process(script: str, artifact: Path, given: dict[str, np.ndarray], folder: Path, others: str = "") -> Path:
    """Runs a script on an artifact behind the wall; the file with its answers.

    Raises:
        AssertionError: it failed, with what it said.
    """
    np.savez(folder / "given.npz", **given)  # type: ignore[arg-type]
    answers = folder / "answers.npz"
    command = [sys.executable, "-c", WALL + script, others, str(artifact), str(folder / "given.npz"), str(answers)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr
    modules = json.loads(ended.stdout.splitlines()[-1])
    assert [name for name in modules if name.split(".")[1] in OPTIMISER] == []
    assert "bricolage.runtime.kept_program" in modules
    return answers


def assert_same_bits(answers: Path, expected: dict[str, np.ndarray]) -> None:
    with np.load(answers) as stored:
        assert {name: stored[name].tobytes() for name in stored.files} == {
            name: array.tobytes() for name, array in expected.items()
        }


@pytest.mark.parametrize(("script", "others"), [(RUN, ()), (COMMAND, ("typer", "rich"))], ids=["load", "command"])
def test_it_runs_without_other_packages(
    script: str, others: tuple[str, ...], cache: Path, written: Path, tmp_path: Path
) -> None:
    fast, given = load(written), inputs()
    assert list(cache.glob("compiled/*/*/program-*")), "it is kept at the first load"
    assert_same_bits(in_a_process(script, written, given, tmp_path, modules_with_needs(*others)), fast.run(given))


def test_every_bucket_that_ran_is_kept(cache: Path, written: Path, tmp_path: Path) -> None:
    given = inputs(rows=40)
    with pytest.raises(AssertionError, match="to compile an artifact at its first run"):
        in_a_process(RUN, written, given, tmp_path)
    expected = load(written).run(given)
    assert_same_bits(in_a_process(RUN, written, given, tmp_path), expected)


def test_a_copied_cache_serves(cache: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of a container is made so, or a machine of the same kind."""
    expected = load(written).run(inputs())
    shutil.copytree(cache, tmp_path / "copy")
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "copy"))
    assert_same_bits(in_a_process(RUN, written, inputs(), tmp_path), expected)


def test_the_command_says_what_it_lacks() -> None:
    script = WALL + "from bricolage.__main__ import main\nmain()"
    ended = subprocess.run([sys.executable, "-c", script, ""], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == MissingDependency.exit_code
    assert (
        ended.stderr
        == "bricolage: typer is needed for the command line, and is not installed. Install it: pip install typer.\n"
    )


def test_the_first_load_says_what_it_lacks(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "empty"))
    with pytest.raises(AssertionError, match=r"needed to look at an artifact's graphs.*pip install onnx-ir"):
        in_a_process(RUN, written, inputs(), tmp_path)


def test_other_sizes_say_what_they_lack(cache: Path, written: Path, tmp_path: Path) -> None:
    load(written)
    with pytest.raises(AssertionError, match=r"onnx_ir is needed to run sizes that were not planned"):
        in_a_process(RUN, written, inputs(rows=7), tmp_path)


def test_indices_are_looked_at(cache: Path, written: Path, tmp_path: Path) -> None:
    """The table has seven rows: what ONNX allows of indices is known without the graph, what it forbids is told by it."""
    load(written)
    again = load(written)
    below = again.run(inputs(index=-7))
    assert {name: array.tobytes() for name, array in below.items()} == {
        name: array.tobytes() for name, array in again.run(inputs(index=0)).items()
    }
    assert_same_bits(in_a_process(RUN, written, inputs(index=-7), tmp_path), below)
    for index in (-8, 7):
        with pytest.raises(IndexBeyond, match=rf"{index}"):
            again.run(inputs(index=index))
    with pytest.raises(AssertionError, match=r"to judge indices in 'ids' that are not from -7 to 6"):
        in_a_process(RUN, written, inputs(index=7), tmp_path)


@pytest.mark.parametrize("damaged", ["record", "code", "region"])
def test_what_is_damaged_is_made_again(
    damaged: str, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    expected = load(written).run(inputs())
    copy = tmp_path / "cache"
    shutil.copytree(cache, copy)
    os.chmod(copy, 0o700)
    monkeypatch.setenv("BRICOLAGE_CACHE", str(copy))
    patterns = {
        "record": "compiled/*/*/program-*/program.json",
        "code": "compiled/*/*/native-*/region.so",
        "region": "artifacts/*/region-*",
    }
    files = list(copy.glob(patterns[damaged]))
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:-7])
    answers = load(written).run(inputs())
    assert {name: array.tobytes() for name, array in answers.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
    assert_same_bits(in_a_process(RUN, written, inputs(), tmp_path), expected)


def test_other_threads_are_another_program(cache: Path, written: Path) -> None:
    """What is opened is what was compiled for as many threads."""
    fast = load(written)
    before = set(cache.glob("compiled/*/*/program-*"))
    fast._programs.threads = 1
    fast._programs._buckets.clear()
    fast.prepare()
    assert len(set(cache.glob("compiled/*/*/program-*")) - before) == 1


def test_only_what_we_depend_on_is_named() -> None:
    expected = pytest.raises(MissingDependency, match=r"ml_dtypes is needed to try.*pip install ml-dtypes")
    with expected, require_dependency("to try"):
        raise ModuleNotFoundError("No module named 'ml_dtypes.x'", name="ml_dtypes.x")
    with pytest.raises(ModuleNotFoundError, match="a_stranger"), require_dependency("to try"):
        raise ModuleNotFoundError("No module named 'a_stranger'", name="a_stranger")
