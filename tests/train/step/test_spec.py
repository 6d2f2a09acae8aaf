"""Files that describe a training step: what is read, and what is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bricolage.base.codec import encode
from bricolage.errors import BadTrainingSpec, MissingFile
from bricolage.train.step.spec import Optimiser, StepSpec, read_spec

GOOD = """
module = "code.py:net"
arguments = { width = 4 }
batch = "code.py:batch"
batch_size = 8
[optimiser]
kind = "sgd"
lr = 0.1
momentum = 0.9
"""


def test_a_spec_is_read_and_knows_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(GOOD, encoding="utf-8")
    spec = read_spec(path)
    assert spec == StepSpec(
        "code.py:net",
        "code.py:batch",
        arguments={"width": 4},
        batch_size=8,
        optimiser=Optimiser("sgd", 0.1, 0.9),
        folder=str(tmp_path.resolve()),
    )
    as_json = {key: value for key, value in encode(spec).items() if key != "folder"}
    (tmp_path / "spec.json").write_text(json.dumps(as_json), encoding="utf-8")
    assert read_spec(tmp_path / "spec.json") == spec


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "module"),
        ("module = 3", "module"),
        (GOOD.replace("code.py:net", "net"), "place of a function"),
        (GOOD.replace("batch_size = 8", "batch_size = 0"), "batch_size"),
        (GOOD.replace("batch_size = 8", "batchsize = 8"), "batchsize"),
        (GOOD.replace('"sgd"', '"lamb"'), "none of sgd, adam, adamw"),
        (GOOD.replace("lr = 0.1", "lr = nan"), "lr"),
        (GOOD.replace('"sgd"', '"adam"') + "nesterov = true", "nesterov"),
        ('folder = "/"' + GOOD, "folder"),
        ("module = ", "TOML"),
    ],
)
def test_what_is_no_spec_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadTrainingSpec, match=reason):
        read_spec(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        read_spec(tmp_path / "none.toml")
