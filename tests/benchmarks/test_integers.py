"""What quantised files are judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.integers import measures
from benchmarks.integers.__main__ import Entry, held_back
from benchmarks.integers.images import line, words
from benchmarks.integers.networks import CALIBRATION, GROUPS, QUANTISABLES, Quantisable
from bricolage.backends import registry
from bricolage.device.host import host
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.verify.accuracy_measures import AccuracyDemand
from bricolage.work.implementation import Implementation
from tests.graph.models import parse


def test_answers_on_samples_that_calibration_has_not_seen(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    model = parse(
        """<ir_version: 10, opset_import: ["" : 17]> net (float[4, 32] x) => (float[4, 16] y) { y = MatMul (x, w) }""",
        w=draw.normal(size=(32, 16)).astype(np.float32),
    )
    file = tmp_path / "net.onnx"
    onnx.save(ir.to_proto(model), str(file))
    network = Quantisable(
        "net", lambda: file, lambda seed: {"x": np.random.default_rng(seed).normal(size=(4, 32)).astype(np.float32)}
    )
    configs = {str(one.name): one for one in registry.get("native").configs("low", host())}
    entries = [
        Entry(f"native {name}", name, Implementation("native", configs[name]), ORIGINAL, file)
        for name in ("int8", "f32")
    ]
    found = held_back(network, network.fixed(tmp_path / "float32.onnx"), entries, 1, tmp_path)
    in_bytes, in_float = found["native int8"], found["native f32"]
    assert in_float.error < 1e-5 < in_bytes.error < 0.1
    assert in_float.agreement == 1.0 and in_float.met


def test_letters_are_classes_without_repetitions_and_blanks() -> None:
    steps = [3, 3, 0, 3, 5, 5, 0, 0, 1]
    read = np.eye(6)[steps]
    assert measures.letters(read) == [3, 3, 5, 1]
    blank_earlier = np.eye(6)[[0, 3, 0, 3, 5, 0, 0, 1, 1]]
    answers = [{"y": read[None]}, {"y": read[None]}]
    assert measures.same_text(answers, [{"y": blank_earlier[None]}, {"y": np.eye(6)[[3, 5, 1]][None]}]) == 0.5


def test_boxes_are_the_same_where_half_of_them_overlaps() -> None:
    def answer(*boxes: tuple[float, float, float, float, int, float]) -> dict[str, np.ndarray]:
        """Of YOLOv8, with two classes: centre, size, class, score."""
        found = np.zeros((1, 6, 8))
        for at, (x, y, width, height, kind, score) in enumerate(boxes):
            found[0, :4, at], found[0, 4 + kind, at] = (x, y, width, height), score
        return {"y": found}

    two = answer((50, 50, 20, 20, 0, 0.9), (52, 50, 20, 20, 0, 0.8), (150, 80, 40, 20, 1, 0.5))
    assert len(measures.objects(two)) == 2, "of two that overlap the likelier one stays"
    moved = answer((52, 51, 20, 20, 0, 0.7), (150, 80, 40, 20, 0, 0.5))
    assert measures.same_objects([moved], [two]) == 0.5, "one has another class"
    assert measures.same_objects([answer()], [two]) == 0.0 and measures.same_objects([answer()], [answer()]) == 1.0


def test_faces_and_regions_lie_where_the_maps_say() -> None:
    heat, size, offset = np.zeros((1, 1, 20, 20)), np.zeros((1, 2, 20, 20)), np.zeros((1, 2, 20, 20))
    heat[0, 0, 5, 10], size[0, :, 5, 10], offset[0, :, 5, 10] = 0.9, (np.log(4.0), np.log(3.0)), (0.25, -0.25)
    (face,) = measures.faces({"heat": heat, "size": size, "offset": offset})
    assert np.allclose(face[:4], (41 - 6, 23 - 8, 41 + 6, 23 + 8))
    text = np.zeros((1, 1, 20, 30))
    text[0, 0, 4:8, 3:12], text[0, 0, 15, 2:9] = 0.8, 0.9
    assert measures.regions({"y": text})[:, :4].tolist() == [[3, 4, 12, 8]], "a stroke is no text"


def test_networks_have_data_of_two_kinds_and_a_measure() -> None:
    assert {name for group in GROUPS.values() for name in group} == set(QUANTISABLES)
    for network in QUANTISABLES.values():
        demand = AccuracyDemand(network.measure.word, 0.1)
        assert demand.at_least and demand.limit >= 0.95
        assert not set(network.held_back) & set(CALIBRATION)
    rng = np.random.default_rng
    ours = {words(rng(seed), 12, seen=True) for seed in range(60)}
    assert not ours & {words(rng(seed), 12, seen=False) for seed in range(60)} - {"the", "a", "and"}
    drawn = line(rng(0), 48, 320, seen=False)
    assert drawn.shape[0] == 48 and 48 <= drawn.shape[1] <= 320 and drawn.std() > 20
    assert np.array_equal(drawn, line(rng(0), 48, 320, seen=False))
