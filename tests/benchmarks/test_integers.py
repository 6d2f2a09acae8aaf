"""What quantised files are judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.integers.__main__ import Entry, held_back
from benchmarks.integers.networks import Quantisable
from bricolage.backends import registry
from bricolage.device.host import host
from bricolage.plan.plan import ORIGINAL
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
    (bytes_error, _), (float_error, agreement) = found["native int8"], found["native f32"]
    assert float_error < 1e-5 < bytes_error < 0.1 and agreement == 1.0
