"""What the benchmark of trained networks says of what was measured; the networks themselves are those of `make test-real`."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real.__main__ import Row, figure, remark, slower, table
from benchmarks.real.catalogue import NETWORKS, Network, Package, Unavailable, page, speech
from bricolage.plan.plan import Contestant

GOOD = Row("net", "package", operators=9, shipped="native", error=3e-7, right=True, errors={"native": 3e-7}, ms=1.0)


def contestant(
    name: str, ms: float, *, accepted: bool = True, speedup: tuple[float, float] | None = None
) -> Contestant:
    return Contestant(name, "baseline", ms, (0.95 * ms, 1.05 * ms), 1e-7, accepted, speedup_ci=speedup)


def test_slower_means_beyond_the_noise() -> None:
    ours, rival = contestant("native f32", 1.0), contestant("onnxruntime f32", 1.0)
    assert not slower(ours, rival) and not slower(rival, rival)
    assert slower(contestant("native f32", 1.2), rival)
    assert not slower(contestant("native f32", 1.2), replace(rival, accepted=False)), "who is wrong is no rival"
    paired = contestant("native f32", 1.2, speedup=(0.98, 1.03)), replace(rival, speedup_ci=(1.0, 1.0))
    assert not slower(*paired), "paired rounds say more than times of different minutes"
    assert slower(replace(paired[0], speedup_ci=(0.7, 0.8)), paired[1])


def test_what_fails_is_said_and_counted() -> None:
    assert GOOD.good and not remark(GOOD)
    bad = {
        "WRONG": replace(GOOD, right=False),
        "openvino dropped": replace(GOOD, dropped={"openvino": "wrong: the relative error is 2e-05"}),
        "slower than ONNX Runtime": replace(GOOD, slower=True),
        "NoBackend": replace(GOOD, right=False, failed="NoBackend: none"),
    }
    for words, one in bad.items():
        assert not one.good and words in remark(one) and words in table([one])
    told = figure([GOOD, *bad.values()], ["other"])
    assert (
        told.startswith("5 networks of 1 packages: 3 right, 1 failed, 1 float32 backends dropped")
        and "1 skipped" in told
    )


def test_names_and_inputs_of_the_catalogue() -> None:
    assert len({network.name for network in NETWORKS}) == len(NETWORKS)
    assert len({network.package for network in NETWORKS}) >= 13
    for network in NETWORKS:
        first, again = network.inputs(0), network.inputs(0)
        for name, array in first.items():
            assert np.array_equal(array, again[name]) and np.isfinite(array).all(), (network.name, name)


def test_made_up_speech_and_pages_are_in_range() -> None:
    sound, image = speech(0, 16000), page(0, 64, 96)
    assert sound.dtype == image.dtype == np.float32 and 0.1 < np.abs(sound).max() < 0.6
    assert image.shape == (64, 96, 3) and image.min() >= 0 and image.max() <= 1 and image.std() > 0.1


def test_a_model_is_taken_from_a_wheel_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_PACKAGES", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "some_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some_package/model.onnx", b"model")
    package = Package("some-package", "1.0", "MIT")
    assert Network("one", package, "some_package/model.onnx", lambda _: {}).path().read_bytes() == b"model"
    with pytest.raises(Unavailable, match="other.onnx"):
        Network("two", package, "some_package/other.onnx", lambda _: {}).path()
