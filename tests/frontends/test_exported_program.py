"""`.pt2` files: read as they are, and nothing of them run."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.api.optimize import optimize
from bricolage.base.options import Options
from bricolage.errors import BadTorchModel, BricolageError, MissingFile, NotAModel
from bricolage.frontends import to_model
from bricolage.frontends.exported_program import _is_size, load_program

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

WROTE = "written by what was opened"


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = self.linear(x).reshape(2 * x.shape[0], -1)
        return torch.nn.functional.softmax(y, -1)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("programs") / "small.pt2"
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    made = torch.export.export(Small().eval(), (torch.randn(6, 8),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(made, path)
    return path


def changed(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


class Wicked:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, WROTE)


def test_a_program_is_a_model_with_its_open_dimension(program: Path) -> None:
    model = to_model(program)
    (x,) = model.graph.inputs
    assert x.shape is not None and isinstance(x.shape[1], int) and not isinstance(x.shape[0], int)


def test_what_is_compressed_is_refused(program: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(tmp_path / "small.pt2", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(NotAModel, match="compressed"):
        load_program(tmp_path / "small.pt2")


def test_it_is_optimised_for_the_sizes_of_its_examples(program: Path) -> None:
    fast = optimize(program, Options(budget_s=4.0, backends=("native",)))
    assert fast.plan.model == "small" and list(fast.plan.buckets[0].program.sizes.values()) == [6]
    assert fast.plan.buckets[0].verification.inputs_from == "example inputs"
    module = torch.export.load(program).module()
    for rows in (6, 4):
        x = torch.randn(rows, 8)
        np.testing.assert_allclose(fast(x), module(x).detach(), rtol=1e-5, atol=1e-6)


def test_what_is_not_there_or_no_program_is_told(tmp_path: Path, program: Path) -> None:
    with pytest.raises(MissingFile):
        load_program(tmp_path / "none.pt2")
    other = tmp_path / "other.pt2"
    other.write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(NotAModel, match="damaged"):
        load_program(other)
    torch.save({"weight": torch.ones(3)}, other)
    with pytest.raises(NotAModel, match=r"torch\.export\.save"):
        load_program(other)
    other.write_bytes(program.read_bytes()[:-300])
    with pytest.raises(NotAModel):
        load_program(other)


@pytest.mark.parametrize("where", ["weights", "constants", "inputs"])
def test_pickles_are_not_opened(tmp_path: Path, program: Path, where: str) -> None:
    wrote = tmp_path / "wrote.txt"
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}

    def poison(name: str, content: bytes) -> bytes:
        if where == "inputs" and name.endswith("sample_inputs/model.pt"):
            return pickle.dumps(Wicked(wrote))
        if name.endswith(f"model_{where}_config.json"):
            config = json.loads(content)
            return json.dumps({"config": {**config["config"], "linear.bias": entry}}).encode()
        return content

    poisoned = changed(program, tmp_path / "poisoned.pt2", poison)
    with zipfile.ZipFile(poisoned, "a") as archive:
        archive.writestr(f"small/data/{where}/opaque_obj_0", pickle.dumps(Wicked(wrote)))
    with pytest.raises(BadTorchModel):
        load_program(poisoned)
    assert not wrote.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target", "torch.hub.load"),
        ("target", "torch.ops.load_library"),
        ("target", "math.__loader__.load_module"),
        ("expr_str", "__import__('os').getcwd()"),
        ("expr_str", "S('__import__(1)')"),
    ],
)
def test_functions_that_are_no_operators_are_not_called(tmp_path: Path, program: Path, key: str, value: str) -> None:
    def poison(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        text = json.loads(content)
        if key == "target":
            text["graph_module"]["graph"]["nodes"][0]["target"] = value
        else:
            sizes = text["graph_module"]["graph"]["sym_int_values"]
            next(iter(sizes.values()))["as_expr"]["expr_str"] = value
        return json.dumps(text).encode()

    with pytest.raises(BadTorchModel, match="which is"):
        load_program(changed(program, tmp_path / "poisoned.pt2", poison))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Symbol('s77', positive=True, integer=True)", True),
        ("Mul(Integer(2), Symbol('s77', positive=True))", True),
        ("Add(Float('0.5'), s0 * 2 - u1 // 3)", True),
        ("Pow(Symbol('s0', integer=True), Integer(2))", True),
        ("Add(Mul(Integer(-1), s0), Max(Integer(1), FloorDiv(Symbol('s1'), Integer(2))))", True),
        ("Pow(Integer(9), Integer(9))", False),
        ("Pow(Symbol('s0'), Integer(1000000000))", False),
        ("Pow(Pow(Symbol('s0'), Integer(9)), Integer(9))", False),
        ("9 ** 9 ** 9", False),
        ("1 << 99999999999", False),
        ("factorial(Integer(9))", False),
        ("Function('f')", False),
        ("Symbol('s0').func", False),
        ("exec('x')", False),
        ("Lambda(x, x)", False),
        ("Symbol(open('x'))", False),
        ("(lambda: 1)()", False),
        ("[1, 2]", False),
        ("", False),
    ],
)
def test_sizes_are_arithmetic(text: str, plain: bool) -> None:
    assert _is_size(text) == plain


def test_the_environment_is_as_before(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    load_program(program)
    import os

    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_cut_anywhere_it_is_refused_by_name(tmp_path: Path, program: Path) -> None:
    whole = program.read_bytes()
    for part in range(1, 8):
        cut = tmp_path / "cut.pt2"
        cut.write_bytes(whole[: len(whole) * part // 8])
        with pytest.raises(BricolageError):
            load_program(cut)
