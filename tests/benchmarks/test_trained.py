"""Three trained networks of the catalogue, end to end, one of them with control flow. What is checked is what was written: the
artifact, run in a process that has nothing of this one's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bricolage
from benchmarks.real.catalogue import NETWORKS, Unavailable
from benchmarks.real.written import from_file
from bricolage.base.options import Options

NAMES = ("silero", "wake-alexa", pytest.param("attacut", marks=pytest.mark.slow))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    network = next(one for one in NETWORKS if one.name == name)
    try:
        path = network.path()
    except Unavailable as reason:
        pytest.skip(str(reason))
    options = Options(backends=("onnxruntime", "native"), threads=1, effort="instant")
    artifact, inputs = tmp_path / "net.bricolage", network.inputs(1)
    bricolage.optimize(path, options, inputs=network.inputs(0)).save(artifact)
    answers = from_file(artifact, inputs)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs), strict=True))
    assert set(answers) == set(expected)
    for output, wanted in expected.items():
        np.testing.assert_allclose(answers[output], wanted, rtol=1e-3, atol=1e-4)
