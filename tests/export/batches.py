"""Cases of the ONNX suite as C libraries: many cases in one model, many models in one program."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import onnx_ir as ir

from bricolage.backends.interface import RegionModel
from bricolage.backends.native.region_source import generate_for
from bricolage.base import scratch
from bricolage.conformance.regions import write_region
from bricolage.conformance.suite import Case
from bricolage.errors import BricolageError
from bricolage.frontends import to_model
from bricolage.graph.extract import write_model
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare, symbolic_dimensions
from bricolage.graph.store import Store
from bricolage.native.cpu.isa import available_isas
from bricolage.native.cpu.target import CpuTarget
from bricolage.plan import artifact
from bricolage.plan.planned_interface import input_specs
from bricolage.runtime import signature
from bricolage.runtime.c_library.export_model import export_model
from bricolage.runtime.c_library.project import FLAGS_EVERYWHERE
from bricolage.runtime.load import load
from bricolage.work.implementation import Assignment
from tests.export.exported import NATIVE, c_compiler, save_plan
from tests.runtime.made_plans import made_bucket

_FIELDS = ("node", "input", "output", "initializer", "value_info")
LEVEL = "1"
"""At which both sides are compiled: a compiler gives the same bits at one level."""
_OPTIONS = re.compile(r'set_source_files_properties\(src/(\S+) PROPERTIES COMPILE_OPTIONS "(.*)"\)')
_OF_GCC = re.compile(r"\$<IF:\$<C_COMPILER_ID:GNU>,([^,]*),[^>]*>")
"""How CMake says a flag that GCC spells otherwise than Clang."""


@dataclass(frozen=True)
class PreparedCase:
    """A case that our engine takes whole, with its sizes bound."""

    case: Case
    model: onnx.ModelProto

    @property
    def opsets(self) -> tuple[tuple[str, int], ...]:
        """By domain."""
        return tuple(sorted((each.domain, each.version) for each in self.model.opset_import))


def prepare_case(case: Case) -> PreparedCase | str:
    """A case, or why our engine has no C for it."""
    if not case.inputs and not case.outputs:
        return "no tensors"
    if not all(isinstance(value, np.ndarray) for value in (*case.inputs, *case.outputs)):
        return "an end that is no tensor"
    try:
        model = to_model(case.model)
        arrays = dict(zip((spec.name for spec in input_specs(model)), map(np.asarray, case.inputs), strict=False))
        sizes = signature.bound_dimensions(input_specs(model), arrays) if symbolic_dimensions(model) else {}
        graph = prepare(model, sizes)
        if not graph.static:
            return "sizes that depend on values"
        with scratch.using(scratch.temporary()) as folder:
            region: RegionModel = write_region(graph.model.clone(), folder)
            generate_for(region, NATIVE.config, CpuTarget(available_isas()[0], 2), own=True)
        return PreparedCase(case, ir.to_proto(graph.model))
    except BricolageError as error:
        return str(error.facts.get("reason", error))


def merge(cases: Sequence[PreparedCase]) -> onnx.ModelProto:
    """The graphs of cases side by side."""
    merged = onnx.ModelProto()
    merged.CopyFrom(cases[0].model)
    merged.ir_version = max(each.model.ir_version for each in cases)
    for field in _FIELDS:
        merged.graph.ClearField(field)
    for number, each in enumerate(cases):
        graph = onnx.compose.add_prefix(each.model, f"t{number}_").graph
        for field in _FIELDS:
            getattr(merged.graph, field).extend(getattr(graph, field))
    return merged


def in_batches(cases: Iterable[PreparedCase], size: int) -> list[list[PreparedCase]]:
    """Cases of one opset in groups of a size."""
    by_opset: dict[tuple[tuple[str, int], ...], list[PreparedCase]] = {}
    for each in cases:
        by_opset.setdefault(each.opsets, []).append(each)
    return [group[start : start + size] for group in by_opset.values() for start in range(0, len(group), size)]


@dataclass(frozen=True)
class Model:
    """A batch as an exported library, with what Python answers."""

    name: str
    source: Path
    cases: tuple[PreparedCase, ...]
    inputs: tuple[np.ndarray, ...]
    answers: tuple[np.ndarray, ...]


def export_batch(cases: Sequence[PreparedCase], name: str, folder: Path, threads: int, target: str = "") -> Model:
    """A library of a batch, which is one region."""
    parts = folder / "parts"
    parts.mkdir(parents=True)
    merged = ir.from_proto(merge(cases))
    write_model(merged, parts / artifact.MODEL)
    Store(parts).share([merged])
    graph: Graph = prepare(merged, {})
    placement = (Assignment(graph.everything.bits, NATIVE),)
    path = folder / f"{name}.bricolage"
    save_plan(path, merged, [made_bucket(parts, graph, placement, {})], threads)
    values = [np.asarray(value) for each in cases for value in each.case.inputs]
    executable = load(path)
    given = dict(zip((spec.name for spec in executable.plan.inputs), values, strict=True))
    answers = tuple(np.asarray(answer) for answer in executable.run(given).values())
    source = export_model(path, folder / "c", name, target=target).folder
    with (source / "inputs.bin").open("wb") as file:
        for value in values:
            np.ascontiguousarray(value).tofile(file)
    return Model(name, source, tuple(cases), tuple(values), answers)


_MAIN = """
#include <stdio.h>
#include <stdlib.h>
HEADERS
#define RUNS(name)                                                                              \\
  static int run_##name(const char *root) {                                                     \\
    char path[4096];                                                                            \\
    snprintf(path, sizeof path, "%s/" #name "/c/share/" #name, root);                           \\
    name##_handle *model;                                                                       \\
    if (name##_open(path, NULL, &model)) return 1;                                              \\
    snprintf(path, sizeof path, "%s/" #name "/c/inputs.bin", root);                             \\
    FILE *in = fopen(path, "rb");                                                               \\
    const void **inputs = calloc(name##_inputs() + 1, sizeof *inputs);                          \\
    void **outputs = calloc(name##_outputs() + 1, sizeof *outputs);                             \\
    for (unsigned i = 0; i < name##_inputs(); i++) {                                            \\
      const size_t bytes = name##_input(0, i)->bytes;                                           \\
      void *data = malloc(bytes + 1);                                                           \\
      if (fread(data, 1, bytes, in) != bytes) return 2;                                         \\
      inputs[i] = data;                                                                         \\
    }                                                                                           \\
    fclose(in);                                                                                 \\
    for (unsigned i = 0; i < name##_outputs(); i++) outputs[i] = malloc(name##_output(0, i)->bytes + 1); \\
    if (name##_run(model, 0, inputs, outputs)) return 3;                                        \\
    snprintf(path, sizeof path, "%s/" #name "/c/outputs.bin", root);                            \\
    FILE *out = fopen(path, "wb");                                                              \\
    for (unsigned i = 0; i < name##_outputs(); i++) fwrite(outputs[i], 1, name##_output(0, i)->bytes, out); \\
    return fclose(out) || name##_close(model) ? 4 : 0;                                          \\
  }
DEFINITIONS
int main(int count, char **words) {
  int code = count != 2;
CALLS
  return code;
}
"""


def build_program(models: Sequence[Model], folder: Path, compiler: Sequence[str] = ()) -> Path:
    """A program that runs each model once; all are linked into it statically."""
    words = [*(compiler or [c_compiler()]), f"-O{LEVEL}", *FLAGS_EVERYWHERE, "-w"]
    names = [each.name for each in models]
    main = _MAIN.replace("HEADERS", "\n".join(f"#include <{name}.h>" for name in names))
    main = main.replace("DEFINITIONS", "\n".join(f"RUNS({name})" for name in names))
    main = main.replace("CALLS", "\n".join(f"  code = code ? code : run_{name}(words[1]);" for name in names))
    (folder / "main.c").write_text(main, encoding="utf-8")
    includes = [f"-I{each.source / 'include'}" for each in models]
    commands = [[*words, *includes, "-c", str(folder / "main.c"), "-o", str(folder / "main.o")]]
    for each in models:
        lists = (each.source / "CMakeLists.txt").read_text(encoding="utf-8")
        flags = dict(_OPTIONS.findall(_OF_GCC.sub(r"\1", lists)))
        for file in sorted((each.source / "src").glob("*.c")):
            more = flags.get(file.name, "").split(";") if file.name in flags else []
            commands.append([*words, *more, "-c", str(file), "-o", str(folder / f"{file.stem}.o")])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_run, commands))
    program = folder / "main"
    threads = [] if "wasm32-wasi" in compiler else ["-pthread"]
    _run([*words, *(command[-1] for command in commands), *threads, "-lm", "-o", str(program)])
    return program


def _run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (command, ran.stderr[-2000:])


def outputs_of(model: Model) -> list[np.ndarray]:
    """What the program has written."""
    block, arrays = (model.source / "outputs.bin").read_bytes(), []
    for answer in model.answers:
        arrays.append(np.frombuffer(block[: answer.nbytes], answer.dtype).reshape(answer.shape))
        block = block[answer.nbytes :]
    assert not block
    return arrays


def differing(model: Model) -> list[str]:
    """Names of the cases of which a bit is another one than in Python."""
    outputs, names = outputs_of(model), []
    for each in model.cases:
        count = len(each.model.graph.output)
        mine, outputs = outputs[:count], outputs[count:]
        start = len(model.answers) - len(outputs) - count
        theirs = model.answers[start : start + count]
        if any(a.tobytes() != b.tobytes() for a, b in zip(mine, theirs, strict=True)):
            names.append(each.case.name)
    return names
