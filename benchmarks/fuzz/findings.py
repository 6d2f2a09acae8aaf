"""A finding: the smallest model that still shows it, its inputs, and a script."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bricolage.graph.inference import infer
from bricolage.verify.reference import Evaluator

Feeds = dict[str, Any]
Shows = Callable[[onnx.ModelProto, Feeds], bool]
"""Whether a model shows what was found; it may raise anything, which means that it does not."""

_LONGEST_S = 120.0
"""For making one finding smaller."""


@dataclass(frozen=True)
class Finding:
    """What is wrong where."""

    campaign: str
    seed: int
    subject: str
    """A backend with its version, or a rule."""
    what: str
    """`value`, `shape`, `type`, `fails`, `crashes`, `hangs`, `refused`, `reference`."""
    text: str
    environment: Mapping[str, str]
    """Variables that must stand."""


def store(folder: Path, finding: Finding, model: onnx.ModelProto, feeds: Mapping[str, Any], script: str) -> Path:
    """Writes a finding to a folder of its own below `folder`; that folder."""
    own = folder / f"{finding.campaign}-{finding.seed}-{finding.subject.split()[0]}"
    own.mkdir(parents=True, exist_ok=True)
    onnx.save(model, own / "model.onnx")
    with zipfile.ZipFile(own / "inputs.npz", "w") as file:  # by hand: `savez` takes some names for options
        for name, value in feeds.items():
            with file.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(value))
    (own / "finding.json").write_text(json.dumps(asdict(finding), indent=1) + "\n", encoding="utf-8")
    (own / "script.py").write_text(script, encoding="utf-8")
    return own


def script(backend: str, finding: Finding, config: str = "f32") -> str:
    """Python that shows it; without bricolage where the backend takes ONNX files by itself."""
    run = _RUNS.get(backend, _OURS.format(backend=backend, config=config))
    return _SCRIPT.format(text=finding.text.replace('"""', "'''"), environment=dict(finding.environment), run=run)


_SCRIPT = '''"""{text}"""

import os

os.environ.update({environment})

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

model, inputs = onnx.load("model.onnx"), dict(np.load("inputs.npz"))
expected = ReferenceEvaluator(model).run(None, inputs)
{run}
for info, right, value in zip(model.graph.output, expected, found):
    right, value = np.asarray(right), np.asarray(value)
    same = right.shape == value.shape
    error = np.abs(right.astype(np.float64) - value.astype(np.float64)).max(initial=0) if same else "-"
    print(info.name, "expected", right.dtype, right.shape, "found", value.dtype, value.shape, "largest difference", error)
'''
_RUNS = {
    "onnxruntime": """import onnxruntime

found = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, inputs)""",
    "openvino": """import openvino

compiled = openvino.Core().compile_model("model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
found = list(compiled([inputs[port.get_any_name()] for port in compiled.inputs]).values())""",
}
_OURS = """import onnx_ir as ir

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.conformance.regions import answers
from bricolage.work.implementation import KernelConfig

told = answers(registry.get("{backend}"), ir.from_proto(model), inputs, KernelConfig("{config}"), Resources(threads=2))
found = [told[0][info.name] for info in model.graph.output]"""


def smaller(model: onnx.ModelProto, feeds: Feeds, shows: Shows) -> tuple[onnx.ModelProto, Feeds]:
    """The model cut down as long as it shows the finding: one output if that is enough, then values in between as inputs, the
    latest first, or as the output. Greedy, and for two minutes at most."""
    end = time.monotonic() + _LONGEST_S
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate, given in _cuts(model, feeds):
            if time.monotonic() > end:
                break
            if _shown(shows, candidate, given):
                model, feeds, changed = candidate, given, True
                break
    return model, feeds


def _shown(shows: Shows, model: onnx.ModelProto, feeds: Feeds) -> bool:
    try:
        return shows(model, feeds)
    except Exception:  # a cut model may fail in any way; then it does not show what was found
        return False


def _cuts(model: onnx.ModelProto, feeds: Feeds) -> Iterator[tuple[onnx.ModelProto, Feeds]]:
    outputs = [value.name for value in model.graph.output]
    given = set(feeds)
    for output in outputs if len(outputs) > 1 else ():
        yield _part(model, [output], given), feeds
    typed = ir.from_proto(model)
    infer(typed)
    known = {value.name: value for node in typed.graph for value in node.outputs if value.name and value.dtype}
    inner = [name for name, value in known.items() if name not in outputs and value.shape is not None]
    if not inner:
        return
    values = Evaluator(typed, keep=inner)(feeds)
    infos = {name: ir.serde.serialize_value(known[name]) for name in inner}
    for name in reversed(inner):
        dtype = known[name].dtype
        assert dtype is not None
        found = np.asarray(values[name]).astype(dtype.numpy())
        cut = _part(model, outputs, given | {name}, {name: infos[name]})
        if len(cut.graph.node) < len(model.graph.node):
            kept = {value.name for value in cut.graph.input}
            yield cut, {n: v for n, v in {**feeds, name: found}.items() if n in kept}
    for name in inner:
        cut = _part(model, [name], given, infos)
        if len(cut.graph.node) < len(model.graph.node):
            kept = {value.name for value in cut.graph.input}
            yield cut, {n: v for n, v in feeds.items() if n in kept}


def _part(
    model: onnx.ModelProto,
    outputs: Collection[str],
    given: Collection[str],
    infos: Mapping[str, onnx.ValueInfoProto] | None = None,
) -> onnx.ModelProto:
    """The operators that `outputs` need, where the values `given` are there already."""
    graph, needed, kept = model.graph, set(outputs), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if any(name in needed and name not in given for name in node.output):
            kept.append(node)
            needed.update(_read(node))
    part = onnx.ModelProto()
    part.CopyFrom(model)
    for field in ("node", "input", "output", "initializer", "value_info"):
        part.graph.ClearField(field)
    part.graph.node.extend(reversed(kept))
    known = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)} | dict(infos or {})
    starts = {value.name for value in graph.input}
    part.graph.input.extend(known[name] for name in sorted(needed & (set(given) | starts)) if name in known)
    part.graph.output.extend(known[name] for name in outputs)
    part.graph.initializer.extend(constant for constant in graph.initializer if constant.name in needed)
    return part


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for inner in attribute.g.node:
                yield from _read(inner)
            yield from (value.name for value in attribute.g.output)
