"""Well-formed inputs to start from: two small models, their plans and artifacts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from bricolage.base.codec import encode
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.extract import data_files, write_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.plan import artifact
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.decision_record import DecisionRecord
from bricolage.plan.number_sets import format_numbers
from bricolage.plan.plan import Bucket, Plan, Provenance
from bricolage.plan.planned_interface import input_specs, output_specs
from bricolage.plan.race_outcome import Contestant, Quality, RaceOutcome
from bricolage.plan.shipped_program import PlannedRegion, ShippedProgram
from bricolage.work.implementation import Implementation, KernelConfig

_CHAIN = """
<ir_version: 8, opset_import: ["" : 18]>
chain (float[n, 16] x) => (float[n, 16] y) {
  a = MatMul (x, w)
  b = Add (a, c)
  d = Relu (b)
  y = Softmax <axis = -1> (d)
}
"""
_BRANCHES = """
<ir_version: 8, opset_import: ["" : 18]>
branches (float[2, 3, 8, 8] x, bool p) => (float[2, 4, 4, 4] y, float[2, 3] z) {
  a = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, v)
  y = If (p) <
    then_branch = g1 () => (float[2, 4, 4, 4] r) { r = Relu (a) },
    else_branch = g2 () => (float[2, 4, 4, 4] s) { s = Tanh (a) }
  >
  m = GlobalAveragePool (x)
  shape = Constant <value = int64[2] {2, 3}> ()
  z = Reshape (m, shape)
}
"""


@dataclass(frozen=True)
class Sample:
    """A model and what was made of it."""

    proto: onnx.ModelProto
    """As a user gives it, with its weights in `weights` beside it."""
    weights: bytes
    members: dict[str, bytes]
    """Of an artifact, but for the manifest."""
    plan: Any
    """Its plan as JSON."""


WEIGHTS = "weights.data"


def samples(folder: Path) -> list[Sample]:
    """Made in a folder that is empty."""
    draw = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    return [
        _sample(folder / "chain", _CHAIN, [{"n": 1}, {"n": 4}], w=weight(16, 16) * 2, c=weight(16)),
        _sample(folder / "branches", _BRANCHES, [{}], v=weight(4, 3, 3, 3) + 1),
    ]


def _sample(folder: Path, text: str, sizes: list[dict[str, int]], **weights: np.ndarray) -> Sample:
    folder.mkdir(parents=True)
    proto = onnx.parser.parse_model(text)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = to_model(proto)
    graphs = [prepare(model, one) for one in sizes]
    store = Store(folder)
    store.share([model, *(graph.model for graph in graphs)])
    write_model(model, folder / artifact.MODEL)
    chosen = Implementation("native", KernelConfig("f32").tuned({"0.tile": 2}))
    winner = Contestant(str(chosen), "baseline", 1.0, (0.9, 1.1), 1e-7, True, implementation=chosen)
    buckets = []
    for graph, bound in zip(graphs, sizes, strict=True):
        half = len(graph) // 2
        parts = (tuple(range(half)), tuple(range(half, len(graph))))
        regions = tuple(
            PlannedRegion(chosen, format_numbers(part), len(part), "part", "0" * 16, 8, 8, 1.0, True)
            for part in parts
            if part
        )
        buckets.append(
            Bucket(
                ShippedProgram(bound, store.graph(graph), len(graph), regions),
                RaceOutcome(winner.name, (winner,), winner.name, 1.0, (1.0, 1.0), False, Quality(None, 0.0, 0.0)),
                Verification(1e-7, 1e-6),
                DecisionRecord(None),
            )
        )
    device = host()
    origin = Provenance(
        "0", {"native": "0"}, device.fingerprint(), str(device), Options(threads=1, isa=""), "2026-01-01"
    )
    specs = [input_specs(model), output_specs(model)]
    plan = Plan(folder.name, "0" * 32, specs[0], specs[1], tuple(buckets), origin)
    names = [artifact.MODEL, *dict.fromkeys(bucket.program.graph for bucket in buckets)]
    names += sorted(set[str]().union(*(data_files(folder / name) for name in names)))
    members = {name: (folder / name).read_bytes() for name in names}
    given: onnx.ModelProto = ir.to_proto(model)
    return Sample(given, members.get(WEIGHTS, b""), members, json.loads(json.dumps(encode(plan))))
