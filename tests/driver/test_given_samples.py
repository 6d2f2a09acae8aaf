"""Data for calibrating and judging: what is taken as samples, what is held back, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.api.bench import bench
from bricolage.base.options import Options
from bricolage.driver.given_samples import GivenData, samples_of
from bricolage.errors import (
    AlreadyQuantised,
    BadOption,
    BricolageError,
    MissingFile,
    UnusableCalibration,
    UnusableSamples,
)
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from tests.verify.models import F, make

LOW = Options(precision="low")
W = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)


def product(rows: int = 2) -> Graph:
    model: ir.Model = make(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F, [rows, 6])}, {"y": (F, [rows, 3])}, {"w": W}
    )
    return prepare(model, {})


def arrays(*shape: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32), **more}


@pytest.mark.parametrize(("shape", "count"), [((8, 2, 6), 8), ((8, 6), 4), ((3, 2, 6), 3)])
def test_the_first_axis_is_the_sample_or_rows_fill_samples(shape: tuple[int, ...], count: int) -> None:
    found = samples_of(product(), GivenData(arrays(*shape)), LOW)
    assert found is not None
    held = found.held_back.samples
    assert len(found.calibration) + len(held) == count and len(held) == max(1, round(count / 4))
    assert all(one["x"].shape == (2, 6) for one in (*found.calibration, *held))
    seen = {one["x"].tobytes() for one in found.calibration}
    assert not seen & {one["x"].tobytes() for one in held}, "nothing is judged on what calibration saw"


def test_data_for_judging_is_that_alone_and_may_hold_labels_for_a_function(tmp_path: object) -> None:
    path = f"{tmp_path}/metric.py"
    with open(path, "w") as file:
        file.write("def score(outputs, reference, samples): return 1.0")
    options = Options(precision="low", accuracy=f"{path}:score>=0.5")
    given = GivenData(arrays(4, 2, 6), arrays(3, 2, 6, label=np.arange(3)))
    found = samples_of(product(), given, options)
    assert found is not None and len(found.calibration) == 4
    assert [int(one["label"][0]) for one in found.held_back.samples] == [0, 1, 2]
    with pytest.raises(UnusableSamples, match="no input 'label'"):
        samples_of(product(), given, LOW)


WRONG: list[tuple[GivenData, type[BricolageError], str]] = [
    (GivenData(arrays(8, 2, 7)), UnusableSamples, r"'x' has the shape \[2, 7\]; the model takes \[2, 6\]"),
    (GivenData(arrays(1, 6)), UnusableSamples, "has the shape"),
    (GivenData(arrays(9, 6)), UnusableSamples, "has the shape"),
    (GivenData(arrays(2, 2, 6)), UnusableSamples, "it holds 2 samples; 3 are needed"),
    (GivenData(arrays(0, 2, 6)), UnusableSamples, "no sample"),
    (GivenData({"z": W}), UnusableSamples, "'x' is missing"),
    (GivenData(arrays(4, 2, 6, z=W)), UnusableSamples, "no input 'z'"),
    (GivenData({"x": np.full((4, 2, 6), np.nan, np.float32)}), UnusableSamples, "sample 0 holds NaN"),
    (GivenData({"x": np.ones((4, 2, 6), np.int64)}), UnusableSamples, "type"),
    (GivenData({"x": np.ones((4, 2, 6), np.float32)}), UnusableCalibration, "1 everywhere"),
]


@pytest.mark.parametrize(("given", "kind", "told"), WRONG)
def test_what_is_no_use_is_refused(given: GivenData, kind: type[BricolageError], told: str) -> None:
    with pytest.raises(kind, match=told):
        samples_of(product(), given, LOW)


def test_a_graph_of_integers_is_not_calibrated_again() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.1), "z": np.uint8(0)}
    graph = prepare(make(nodes, {"x": (TensorProto.FLOAT, [2, 6])}, {"y": (F, [2, 6])}, constants), {})
    with pytest.raises(AlreadyQuantised, match="optimize"):
        samples_of(graph, GivenData(arrays(4, 2, 6)), LOW)
    judged = samples_of(graph, GivenData(evaluate=arrays(4, 2, 6)), LOW)
    assert judged is not None and len(judged.held_back.samples) == 4


def test_options_and_data_go_together() -> None:
    with pytest.raises(BadOption, match="--calibrate cannot be 'given with --precision highest'"):
        GivenData(arrays(4, 2, 6)).check(Options())
    with pytest.raises(BadOption, match="--accuracy cannot be 'top1=0.9 without data'"):
        GivenData().check(Options(accuracy="top1=0.9"))
    with pytest.raises(BadOption, match="throughput"):
        GivenData(None, arrays(4, 2, 6)).check(Options(objective="throughput"))
    GivenData(None, arrays(4, 2, 6)).check(Options(accuracy="top1=0.9"))
    GivenData().check(Options())


def test_a_comparison_makes_no_other_model(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="--weights cannot be 'int4'"):
        bench(tmp_path / "none.onnx", Options(weights="int4"))
    with pytest.raises(BadOption, match="without data"):
        bench(tmp_path / "none.onnx", Options(accuracy="sqnr=10"))


def test_data_may_be_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays(4, 2, 6))
    assert GivenData.of(tmp_path / "data.npz", None).digest == GivenData(arrays(4, 2, 6)).digest
    with pytest.raises(MissingFile):
        GivenData.of(None, str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(BadOption, match="--evaluate"):
        GivenData.of(None, tmp_path / "text.npz")


def test_other_data_is_another_decision() -> None:
    one, other = GivenData(arrays(4, 2, 6)), GivenData(arrays(5, 2, 6))
    assert one.digest == GivenData(arrays(4, 2, 6)).digest != other.digest
    assert GivenData(None, arrays(4, 2, 6)).digest != one.digest
    assert GivenData().digest == ""
