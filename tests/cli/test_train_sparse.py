"""`bricolage train sparse`: two processes really run, counted and compared; what cannot be is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.sparse import save_npz
from typer.testing import CliRunner

from bricolage.cli.main import app
from bricolage.errors import INACCURATE, BadSparseNetwork, WrongExchange
from bricolage.train.sparse.sparse_plan import ARRAYS, HEADER, read_sparse_plan
from bricolage.train.sparse.sparse_runs import ExchangeOutcome, SparseOutcome, check_outcome
from tests.needed import needs
from tests.train.sparse.networks import draw_matrix

if TYPE_CHECKING:
    from click.testing import Result

SIZES = (24, 30, 18)


def sparse(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["train", "sparse", *map(str, words)])


@pytest.fixture(scope="module")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two layers between 24 inputs and 18 outputs."""
    folder = tmp_path_factory.mktemp("matrices")
    paths = [folder / "first.npz", folder / "second.npz"]
    for number, path in enumerate(paths):
        save_npz(path, draw_matrix(SIZES[number + 1], SIZES[number], number, 0.1))
    return paths


def test_a_plan_is_made_run_and_run_again(matrices: list[Path], tmp_path: Path) -> None:
    needs("torch")
    plan = tmp_path / "plan"
    words = ("--processes", "2", "--method", "alternate", "--samples", "3")
    made = sparse(*matrices, *words, "-o", plan, "--json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    partitions = {part["method"]: part for part in document["partitions"]}
    assert list(partitions) == ["alternate", "blocks", "residues", "random"]
    assert partitions["alternate"]["words"] <= min(partitions[name]["words"] for name in ("blocks", "residues"))
    assert all(part["words"] == sum(layer["words"] for layer in part["layers"]) for part in partitions.values())
    each, fewer = document["run"]["modes"]
    assert (each["backward"], fewer["backward"]) == (True, False)
    assert each["sent_bytes"] == each["predicted_bytes"] == 2 * partitions["alternate"]["words"] * 3 * 4 > 0
    assert each["messages"] == each["predicted_messages"] == 2 * partitions["alternate"]["messages"]
    assert fewer["messages"] == document["exchanges"][1]["messages"] < document["exchanges"][0]["messages"]
    assert fewer["operations"] > each["operations"] == 2 * sum(layer["non_zeros"] for layer in document["layers"])
    assert max(each["error"], fewer["error"]) <= document["run"]["limit"]
    again = sparse(plan, "--no-run", "--json")
    assert json.loads(again.stdout) == {**document, "run": None}
    shown = sparse(plan, "--no-run")
    assert "up to 2 layers" in shown.stdout and f"{partitions['random']['words']:,}" in shown.stdout


def test_a_plan_of_others_is_not_run(matrices: list[Path], tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    made = sparse(*matrices, "--method", "blocks", "--no-run", "-o", plan)
    assert made.exit_code == 0 and "Rows by" in made.stdout, made.stderr
    refused = sparse(plan, "--processes", "3", "--no-run")
    assert refused.exit_code == 2 and "The plan is for 2" in refused.stderr
    header = (plan / HEADER).read_text(encoding="utf-8")
    with np.load(plan / ARRAYS) as stored:
        arrays = dict(stored)
    for name, text, changed in (
        ("another version", header.replace('"format": 1', '"format": 2'), {}),
        ("no such process", header, {"owned1": arrays["owned1"] + 2}),
        ("too few owners", header, {"owned1": arrays["owned1"][1:]}),
        ("columns beyond the inputs", header, {"indices0": arrays["indices0"] + 24}),
        ("exchanges end early", header.replace('"ends": [', '"ends": [0,'), {}),
        ("cut", header[:-9], {}),
    ):
        (plan / HEADER).write_text(text, encoding="utf-8")
        np.savez(plan / ARRAYS, **{**arrays, **changed})
        with pytest.raises(BadSparseNetwork, match="its plan is damaged"):
            pytest.fail(f"{name}: {read_sparse_plan(plan)}")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--processes", "19"), "Give at most 18: each process needs one of the 18 rows of 'second'"),
        (("--method", "stars"), "--method cannot be 'stars'"),
        (("--inputs", "random"), "--inputs cannot be 'random'"),
        (("--activation", "gelu"), "Give one of: relu, tanh, sigmoid, none"),
        (("--repeat", "2"), "takes 24 inputs, and 'second' before it has 18 rows"),
    ],
)
def test_options_that_do_not_fit(matrices: list[Path], words: tuple[str, ...], reason: str) -> None:
    refused = sparse(*matrices, "--no-run", "--method", "blocks", *words)
    assert refused.exit_code == 2 and reason in " ".join(refused.stderr.split()), refused.stderr


@pytest.mark.apart
def test_hypergraphs_send_less_than_chance(tmp_path: Path) -> None:
    """Rows that read one of two halves of the inputs, shuffled: found again."""
    pytest.importorskip("mtkahypar")
    from scipy.sparse import block_diag

    draw = np.random.default_rng(0)
    halves = block_diag([draw_matrix(20, 20, 5, 0.4)] * 2, "csr")
    order = draw.permutation(40)
    save_npz(tmp_path / "first.npz", halves[order])
    save_npz(tmp_path / "second.npz", halves[:, order])
    ran = sparse(tmp_path / "first.npz", tmp_path / "second.npz", "--no-run", "--json")
    assert ran.exit_code == 0, ran.stderr
    partitions = {part["method"]: part["words"] for part in json.loads(ran.stdout)["partitions"]}
    assert partitions["hypergraph"] == 0 < min(partitions[name] for name in ("blocks", "residues", "random"))


def test_a_run_that_is_off_is_an_error() -> None:
    mode = ExchangeOutcome("each layer", 1, False, 8, 4, 2, 2, 16, 16, 0, 1.0, 0.5, None, 1e-7)
    right = SparseOutcome(2, 1, 1e-6, 1.0, (mode,))
    check_outcome(right)
    for wrong in (
        replace(mode, error=1e-3),
        replace(mode, error=float("nan")),
        replace(mode, messages=3),
        replace(mode, sent_bytes=20),
    ):
        with pytest.raises(WrongExchange) as raised:
            check_outcome(replace(right, modes=(wrong,)))
        assert raised.value.exit_code == INACCURATE
