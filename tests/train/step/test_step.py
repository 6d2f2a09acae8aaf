"""Training steps from specs: the user's own Python, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bricolage.errors import BadTrainingCode
from bricolage.train.step.spec import Optimiser, StepSpec
from bricolage.train.step.step import build, find_function

torch = pytest.importorskip("torch")

CODE = """
import torch
from torch import nn

def net(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))

def batch(size, seed):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=made), torch.randint(2, (size,), generator=made)

def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)

def fails():
    raise RuntimeError("no weights today")

def text(*_):
    return "text"

number = 3
"""


@pytest.fixture
def spec(tmp_path: Path) -> StepSpec:
    (tmp_path / "code.py").write_text(CODE, encoding="utf-8")
    return StepSpec("code.py:net", "code.py:batch", optimiser=Optimiser(lr=0.1), folder=str(tmp_path))


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_step_learns(spec: StepSpec, kind: str) -> None:
    step = build(dataclasses.replace(spec, optimiser=Optimiser(kind, 0.05)))  # type: ignore[arg-type]
    optimiser = step.make_optimiser()
    losses = [float(step.run(optimiser)) for _ in range(30)]
    assert losses[-1] < losses[0]


def test_a_spec_gives_the_same_step_again(spec: StepSpec) -> None:
    spec = dataclasses.replace(spec, loss="code.py:loss")
    one, two = build(spec), build(dataclasses.replace(spec, loss="cross_entropy"))
    assert float(one.run(one.make_optimiser())) == float(two.run(two.make_optimiser()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"module": "code.py:nothing"}, "nothing"),
        ({"module": "code.py:number"}, "nothing to call"),
        ({"module": "code.py:fails"}, "no weights today"),
        ({"module": "code.py:text"}, "not a torch.nn.Module"),
        ({"module": "other.py:net"}, "there is no file"),
        ({"module": "no_such_package.code:net"}, "no_such_package"),
        ({"arguments": {"depth": 3}}, "depth"),
        ({"batch": "code.py:text"}, "no pair"),
        ({"batch": "code.py:net"}, "does not take these arguments"),
        ({"loss": "no_such_loss"}, "no such loss"),
    ],
)
def test_bad_code_is_named(spec: StepSpec, change: dict[str, object], reason: str) -> None:
    with pytest.raises(BadTrainingCode, match=reason):
        build(dataclasses.replace(spec, **change))  # type: ignore[arg-type]


def test_files_beside_a_spec_import_each_other(tmp_path: Path) -> None:
    """Each spec has its own, and a file that is named and imported runs once."""
    for word, width in (("one", 2), ("two", 5)):
        folder = tmp_path / word
        folder.mkdir()
        (folder / "parts_beside.py").write_text(f"WIDTH = {width}\nRUNS = []\n", encoding="utf-8")
        (folder / "nets_beside.py").write_text(
            "from parts_beside import WIDTH\nfrom torch import nn\ndef net():\n    return nn.Linear(3, WIDTH)\n",
            encoding="utf-8",
        )
        (folder / "batch_beside.py").write_text(
            CODE
            + "import nets_beside\ndef twice(size, seed):\n    import later_beside\n    return batch(size, seed)\n",
            encoding="utf-8",
        )
        (folder / "later_beside.py").write_text("", encoding="utf-8")
    for word, width in (("one", 2), ("two", 5), ("one", 2)):
        spec = StepSpec("nets_beside.py:net", "batch_beside.py:twice", folder=str(tmp_path / word))
        assert build(spec).module.out_features == width
        net, beside = (
            find_function("nets_beside.py:net", spec.folder),
            find_function("batch_beside.py:nets_beside.net", spec.folder),
        )
        assert net is beside
