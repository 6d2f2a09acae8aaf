"""Files of training by replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.errors import BadTrainingSpec, MissingFile
from bricolage.train.replicas.replica_spec import Method, Replicas, read_replicas

STEP = '[step]\nmodule = "a.py:net"\nbatch = "a.py:batch"\n'


def read(tmp_path: Path, text: str, step: str = STEP) -> Replicas:
    path = tmp_path / "replicas.toml"
    path.write_text(text + step, encoding="utf-8")
    return read_replicas(path)


def test_methods_and_their_names(tmp_path: Path) -> None:
    found = read(tmp_path, 'data = "a.py:data"\nepochs = 2\nworkers = 4\ndecay_at = [0.75, 0.5]\n')
    assert found.methods == (Method(),) and found.workers == 4 and found.decay_at == (0.5, 0.75)
    assert Path(found.step.folder) == tmp_path
    labels = [
        Method().label,
        Method("ssp", staleness=2).label,
        Method("easgd", lr=0.5, name="mine").label,
        Method(compression="topk", density=0.5).label,
    ]
    assert labels == ["allreduce", "ssp staleness=2", "mine", "allreduce compression=topk density=0.5"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('data = "a.py:data"\n', "epochs or steps"),
        ('data = "a.py:data"\nepochs = 1\nsteps = 2\n', "epochs or steps"),
        ("epochs = 1\n", "data"),
        ('data = "a.py:data"\nepochs = 1\nworkers = 0\n', "workers"),
        ('data = "a.py:data"\nepochs = 1\nwrong = 0\n', "wrong"),
        ('data = "a.py:data"\nepochs = 1\nmethod = [{ kind = "magic" }]\n', "none of allreduce"),
        ('data = "a.py:data"\nepochs = 1\nmethod = [{ kind = "bsp", staleness = 2 }]\n', "bsp has no staleness"),
        (
            'data = "a.py:data"\nepochs = 1\nmethod = [{ kind = "asp", compression = "topk" }]\n',
            "asp has no compression",
        ),
        ('data = "a.py:data"\nepochs = 1\nmethod = [{ density = 0.5 }]\n', "density goes with"),
        ('data = "a.py:data"\nepochs = 1\nmethod = [{ accordion = 5 }]\n', "accordion goes with"),
        (
            'data = "a.py:data"\nepochs = 1\nmethod = [{ compression = "powersgd", similarity = 0.5 }]\n',
            "whole gradients",
        ),
        ('data = "a.py:data"\nepochs = 1\nworkers = 3\nmethod = [{ similarity = 0.5 }]\n', "not even"),
        ('data = "a.py:data"\nepochs = 1\nworkers = 1\nmethod = [{ kind = "adpsgd" }]\n', "one worker"),
        ('data = "a.py:data"\nepochs = 1\nworkers = 4\nmethod = [{ kind = "easgd", alpha = 0.5 }]\n', "runs away"),
        ('data = "a.py:data"\nepochs = 1\nmethod = [{}, {}]\n', "one name"),
        ('data = "a.py:data"\nepochs = 1\ndecay_at = [2.0]\n', "decay_at"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadTrainingSpec, match=reason):
        read(tmp_path, text)


def test_top_k_corrects_plain_sgd_alone(tmp_path: Path) -> None:
    text = 'data = "a.py:data"\nepochs = 1\nmethod = [{ compression = "topk" }]\n'
    with pytest.raises(BadTrainingSpec, match="plain SGD"):
        read(tmp_path, text, f'{STEP}[step.optimiser]\nkind = "adam"\n')


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        read_replicas(tmp_path / "none.toml")
