"""A folder that shows a fault to another person: model, inputs, expected outputs, a script, and versions.

The script needs nothing of bricolage where the fault is that of another runtime that reads ONNX files.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from bricolage._version import __version__
from bricolage.backends import registry
from bricolage.errors import MissingBackend, NotWritable
from bricolage.graph.extract import write_whole
from bricolage.trust.case import describe_inputs
from bricolage.trust.model_reduction import Reduced
from bricolage.verify.named_arrays import save_tensors
from bricolage.verify.reference import evaluate

MODEL, INPUTS, EXPECTED, SCRIPT, README = "model.onnx", "inputs.npz", "expected.npz", "repro.py", "README.md"
_PACKAGES = ("numpy", "onnx", "onnxruntime", "openvino", "torch")

_ONNXRUNTIME = """
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = {threads}
session = ort.InferenceSession(str(here / "model.onnx"), options, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
answers = dict(zip(names, session.run(names, inputs)))
"""
_OPENVINO = """
import openvino as ov

core = ov.Core()
compiled = core.compile_model(
    str(here / "model.onnx"),
    "CPU",
    {{"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": "{threads}", "INFERENCE_PRECISION_HINT": "{config}"}},
)
results = compiled(inputs)
answers = {{port.get_any_name(): results[port] for port in compiled.outputs}}
"""
_BRICOLAGE = """
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.work.implementation import KernelConfig

{registered}region = RegionModel(here / "model.onnx")
kernel = registry.get({backend!r}).compile(region, KernelConfig({config!r}, {parameters!r}), Resources({threads}))
results = kernel.run([inputs[info.name] for info in region.inputs])
answers = {{info.name: result for info, result in zip(region.outputs, results)}}
"""
_RULE = """
import onnx_ir as ir
from bricolage.graph.prepare import simplify
from bricolage.rewrite.engine.apply import apply_everywhere
from bricolage.rewrite.catalogue import find_rule
from bricolage.verify.reference import evaluate

model = ir.load(here / "model.onnx")
apply_everywhere(model, find_rule({rule!r}), lambda _: True, lambda _: None)
simplify(model)
answers = evaluate(model, inputs)
"""
_HEAD = '''"""{title}

Exits with 1 as long as the answer is off, with 0 when it is right.
"""

import sys
from pathlib import Path

import numpy as np

here = Path(__file__).resolve().parent
inputs = dict(np.load(here / "inputs.npz"))
expected = dict(np.load(here / "expected.npz"))
'''
_TAIL = """
worst = 0.0
for name, reference in expected.items():
    answer, scale = np.asarray(answers[name]), np.linalg.norm(reference.astype(np.float64))
    if answer.shape != reference.shape:
        error = np.inf
    else:
        error = np.linalg.norm(answer.astype(np.float64) - reference) / (scale or 1.0)
    error = error if np.isfinite(error) else np.inf
    worst = max(worst, error)
    print(f"{{name}}: relative error {{error:.3e}}")
    print("  answer   ", answer.reshape(-1)[:8])
    print("  reference", reference.reshape(-1)[:8])
print("wrong" if worst > {bound!r} else "right")
sys.exit(1 if worst > {bound!r} else 0)
"""


def write_repro(found: Reduced, folder: Path, threads: int) -> tuple[Path, ...]:
    """Writes the files to an existing folder; their paths.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
        NoReference: the model cannot be evaluated in float64.
    """
    paths = tuple(folder / name for name in (MODEL, INPUTS, EXPECTED, SCRIPT, README))
    case = found.case
    write_whole(case.model, paths[0])
    try:
        _save(paths[1], dict(case.inputs))
        _save(paths[2], evaluate(case.model, case.inputs))
        paths[3].write_text(script(found, threads), encoding="utf-8")
        paths[4].write_text(readme(found), encoding="utf-8")
    except OSError as error:
        raise NotWritable(path=folder, reason=error.strerror or error) from error
    return paths


def _save(path: Path, values: dict[str, object]) -> None:
    """As plain arrays where numpy's own format has the types."""
    if all(isinstance(value, np.ndarray) and value.dtype.kind in "biufc" for value in values.values()):
        np.savez(path, **values)  # type: ignore[arg-type]
    else:
        save_tensors(path, values)


def script(found: Reduced, threads: int) -> str:
    """The program that shows the fault."""
    implementation, rule = found.suspect.implementation, found.suspect.rule
    facts: dict[str, object] = {
        "threads": threads,
        "backend": implementation.backend,
        "config": implementation.config.name,
        "parameters": implementation.config.parameters,
        "registered": "",
        "rule": rule.name if rule is not None else "",
    }
    added = registry.registered_references().get(implementation.backend)
    if added is not None:
        facts["registered"] = f"registry.register({implementation.backend!r}, {added!r})\n"
    body = {"onnxruntime": _ONNXRUNTIME, "openvino": _OPENVINO}.get(implementation.backend, _BRICOLAGE)
    if rule is not None:
        body = _RULE
    title = f"{culprit(found)}: {found.verdict}"
    return _HEAD.format(title=title) + body.format(**facts) + _TAIL.format(bound=found.verdict.bound)


def culprit(found: Reduced) -> str:
    """Who is at fault, with its version."""
    if found.suspect.rule is not None:
        return f"rule {found.suspect.rule.name} of bricolage {__version__}"
    name = found.suspect.implementation.backend
    try:
        return f"{registry.get(name).title or name} {registry.version(name)}"
    except MissingBackend:
        return name


def readme(found: Reduced) -> str:
    """What is there, in words."""
    kinds = ", ".join(node.op_type for node in found.case.model.graph)
    shapes = "\n".join(f"* {line}" for line in describe_inputs(found.case))
    packages = ", ".join(f"{name} {number}" for name in _PACKAGES if (number := _version(name)))
    return (
        f"# {culprit(found)}: {found.verdict.symptom}\n\n{kinds}: {found.verdict} (relative 2-norm against float64).\n\n"
        f"{shapes}\n\n`python {SCRIPT}` runs `{MODEL}` on `{INPUTS}` and compares with `{EXPECTED}`, which is computed in "
        f"float64.\n\nPython {platform.python_version()}, {packages}, bricolage {__version__}; {platform.platform()}.\n"
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
