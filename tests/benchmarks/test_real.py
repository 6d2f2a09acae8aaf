"""What the benchmark of trained networks says of what was measured; the networks themselves are those of `make test-real`."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.real import __main__ as real
from benchmarks.real.__main__ import Row, figure, remark, slower, table
from benchmarks.real.catalogue import NETWORKS
from benchmarks.real.inputs import page, rows, speech
from benchmarks.real.packages import Network, Package, Unavailable
from benchmarks.real.written import Answer, check, truth
from bricolage.api.optimize import optimize
from bricolage.base.codec import decode
from bricolage.base.options import Options
from bricolage.plan.race_outcome import Contestant

RIGHT = Answer("1×16", error=3e-7, right=True)
GOOD = Row(
    "net",
    "package",
    operators=9,
    shipped="native",
    error=3e-7,
    right=True,
    written=(RIGHT, RIGHT),
    errors={"native": 3e-7},
    ms=1.0,
)


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
        "from the file at 3×16: WRONG": replace(GOOD, written=(RIGHT, Answer("3×16", error=0.5))),
        "from the file at 1×16: exit code 2": replace(GOOD, written=(Answer("1×16", failed="exit code 2"), RIGHT)),
        "openvino dropped": replace(GOOD, dropped={"openvino": "wrong: the relative error is 2e-05"}),
        "slower than ONNX Runtime": replace(GOOD, slower=True),
        "NoBackend": replace(GOOD, right=False, failed="NoBackend: none"),
    }
    for words, one in bad.items():
        assert not one.good and words in remark(one) and words in table([one])
    assert not replace(GOOD, written=(RIGHT,)).good, "one size is not two"
    told = figure([GOOD, *bad.values(), replace(GOOD, kind="int8")], ["other"])
    assert told.startswith("8 networks of 1 packages (1 of float16, int8 or ai.onnx.ml): 6 right, 6 from the file")
    assert "1 failed, 1 float32 backends dropped" in told and "1 skipped" in told


def test_a_row_survives_its_process() -> None:
    row = replace(GOOD, written=(RIGHT, Answer("3×16", failed="exit code 2")), kind="ai.onnx.ml")
    assert decode(Row, json.loads(json.dumps(asdict(row)))) == row


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [network.name for network in NETWORKS[:3]]
    monkeypatch.setattr(real, "NETWORKS", NETWORKS[:3])
    tried: list[str] = []

    def apart(network: Network, _: object) -> Row | str:
        tried.append(network.name)
        return "no wheel" if network.name == names[1] else replace(GOOD, network=network.name)

    monkeypatch.setattr(real, "_apart", apart)
    rows, skipped = real.rows_of("", [], tmp_path)
    assert tried == names and skipped == names[1:2]
    with (tmp_path / "networks.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"network": "cut')
    assert real.rows_of("", [], tmp_path) == (rows, skipped) and tried == [*names, names[1]]


def test_names_and_inputs_of_the_catalogue() -> None:
    assert len({network.name for network in NETWORKS}) == len(NETWORKS) >= 48
    assert len({network.package for network in NETWORKS}) >= 13
    assert sum(network.kind != "float32" for network in NETWORKS) >= 10
    for network in NETWORKS:
        first, again = network.inputs(0), network.inputs(0)
        for name, array in first.items():
            assert np.array_equal(array, again[name]) and np.isfinite(array).all(), (network.name, name)
        if network.other is not None:
            other = network.other(0)
            assert {n: (a.dtype, a.ndim) for n, a in first.items()} == {n: (a.dtype, a.ndim) for n, a in other.items()}
            assert any(first[name].shape != other[name].shape for name in first), network.name


def test_rows_of_a_table_are_within_their_bounds() -> None:
    table = rows("x", 50, ((0, 3), (0.1, 1.0)), np.float32)(0)["x"]
    assert table.shape == (50, 2) and set(table[:, 0]) == {0.0, 1.0, 2.0, 3.0}
    assert 0.1 <= table[:, 1].min() < table[:, 1].max() <= 1.0


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of open size, twice x, and its artifact."""
    folder = tmp_path_factory.mktemp("doubled")
    model, artifact = folder / "double.onnx", folder / "double.bricolage"
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    options = Options(backends=("onnxruntime",), threads=1, budget_s=1.0)
    optimize(model, options, inputs={"x": np.ones((2, 3), np.float32)}).save(artifact)
    return model, artifact


def test_an_artifact_is_judged_from_its_file_at_any_size(doubled: tuple[Path, Path]) -> None:
    model, artifact = doubled
    other = {"x": np.arange(15, dtype=np.float32).reshape(5, 3)}
    answer = check(model, artifact, other, Options())
    assert answer.right and answer.sizes == "5×3" and not answer.failed, answer


def test_wrong_answers_are_told_from_right_ones(doubled: tuple[Path, Path]) -> None:
    x = np.ones((2, 3), np.float32)
    right = truth(doubled[0], {"x": x}, Options())
    assert right.judge({"y": 2 * x}) == (0.0, True)
    assert right.judge({"y": x}) == (0.5, False)
    assert right.judge({"y": 2 * x[:1]}) == right.judge({"z": 2 * x}) == (np.inf, False)


def test_an_artifact_that_cannot_be_loaded_fails(doubled: tuple[Path, Path]) -> None:
    model, artifact = doubled
    broken = artifact.parent / "broken.bricolage"
    broken.write_bytes(artifact.read_bytes()[:200])
    told = check(model, broken, {"x": np.ones((2, 3), np.float32)}, Options())
    assert not told.right and told.failed.startswith("exit code") and "broken" in told.failed, told


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
