"""An artifact as a C library: sources, weights, what builds them, and a test with known answers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bricolage.base import scratch
from bricolage.errors import BadOption, BricolageError, NotWritable
from bricolage.native.c import define
from bricolage.native.library import (
    InstructionSet,
    internal_header,
    model_source,
    public_header,
    shared_source,
)
from bricolage.native.library_files import HEADER_BYTES, weights_header
from bricolage.plan import artifact
from bricolage.plan.pack import PackTarget
from bricolage.runtime.c_library import project
from bricolage.runtime.c_library.conditions import resolve_conditions
from bricolage.runtime.c_library.instruction_sets import LibrarySet, library_sets
from bricolage.runtime.c_library.library_regions import (
    BucketSteps,
    RegionFile,
    compile_sets,
    dimension_names,
    read_steps,
)
from bricolage.runtime.c_library.onnxruntime_provider import write_provider
from bricolage.runtime.c_library.targets import TARGETS, ExportTarget, describe_target, own_target
from bricolage.runtime.load import load
from bricolage.verify.inputs import InputQuality, draw_inputs, judge
from bricolage.verify.reference import evaluate
from bricolage.verify.roles import saturating

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TEST_SEED, _TEST_DRAWS = 7, 6


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    name: str
    sets: tuple[str, ...]
    """Of instructions, best first."""
    buckets: int
    source_bytes: int
    weight_bytes: int
    """Of all sets together."""


@dataclass(frozen=True)
class _Layout:
    """What is written, and for what."""

    name: str
    target: ExportTarget
    sets: tuple[LibrarySet, ...]
    tables: tuple[InstructionSet, ...]
    regions: tuple[RegionFile, ...]
    embed: bool

    @property
    def weights(self) -> tuple[InstructionSet, ...]:
        """A set for each file of weights."""
        return tuple({table.file: table for table in reversed(self.tables)}.values())[::-1]


def export_model(
    path: Path,
    folder: Path,
    name: str = "",
    *,
    target: str | PackTarget = "",
    portable: bool = False,
    embed: bool = False,
) -> Exported:
    """Writes the plan of an artifact as a C library.

    Args:
        path: an artifact whose regions all run in our engine.
        folder: is made; it may be there if it is empty.
        name: what all names in C begin with; by default that of the artifact's file.
        target: one of `TARGETS`, or a described Arm device, to cross-compile for; empty: processors of this machine's kind.
        portable: for every processor of this machine's kind, instead of this processor's instructions alone.
        embed: the weights become a part of the library's object, instead of files.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact: the artifact is not usable.
        ForeignArtifact: it was planned for another machine or other versions, so that its bits could not be compared.
        NotExportable: a region runs in another backend, or regions run side by side.
        BadOption: the name is none in C, the folder has files, there is no such target, it has one set of instructions, or the
            plan is for a described device and `target` is this machine's kind.
        NotWritable: it cannot be written.
    """
    name = name or _name_of(path)
    if not _NAME.fullmatch(name):
        advice = "Give a lower-case letter, then letters, digits and _, 40 at most"
        raise BadOption(option="--name", value=name, advice=advice)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadOption(option="--output", value=folder, advice="It has files: give a folder that is new, or empty")
    compiled_for = _find_target(target, portable=portable)
    plan, directory = artifact.load_artifact(path)
    run = _run_here(path, directory, compiled_for)
    buckets = read_steps(path, plan, directory)
    sets = library_sets(compiled_for, portable=portable)
    tables, regions = compile_sets(path, name, plan, buckets, sets, compiled_for)
    tables = [replace(table, embedded=embed) for table in tables]
    layout = _Layout(name, compiled_for, sets, tuple(tables), tuple(regions), embed)
    answers = [_answers(run, steps) for steps in buckets]
    bounds = [steps.bucket.verification.bound for steps in buckets]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch.write_whole(folder) as partial:
            partial.mkdir()
            _write_sources(partial, layout, dimension_names(plan))
            _write_project(partial, layout, bounds)
            _write_data(partial, layout, answers)
            if compiled_for.has_threads:
                write_provider(partial, name, plan, tables)
            shutil.copyfile(directory / artifact.PLAN, partial / "plan.json")
            if folder.exists():
                folder.rmdir()
    except OSError as error:
        raise NotWritable(path=folder, reason=error.strerror or error) from error
    source_bytes = sum(file.stat().st_size for file in (folder / "src").iterdir())
    weight_bytes = sum(table.weights.nbytes for table in layout.weights)
    return Exported(folder, name, tuple(each.name for each in sets), len(buckets), source_bytes, weight_bytes)


Run = Callable[[BucketSteps, Mapping[str, np.ndarray]], Sequence[np.ndarray]]
"""Answers of a bucket to inputs, in the order of its outputs."""


def _run_here(path: Path, directory: Path, target: ExportTarget) -> Run:
    """What gives the answers with which the library is tested: the plan on this machine, or of one for a described device, whose
    instructions are not here, the model in float64.

    Raises:
        BadOption: the plan is for a described device, and the target is this machine's kind.
    """
    pack = artifact.read_pack(directory)
    entry = None if pack is None else next(entry for entry in pack.entries if entry.plan == artifact.PLAN)
    if entry is None or not entry.emulated:
        executable = load(path)
        return lambda _, inputs: [np.asarray(answer) for answer in executable.run(inputs).values()]
    if not target.name:
        advice = f"The plan is for the device '{entry.target.name}', which is not here: give the file that describes it"
        raise BadOption(option="--target", value="left out", advice=advice)
    return _run_in_float64


def _run_in_float64(steps: BucketSteps, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    values = evaluate(steps.graph.model, inputs)
    return [np.asarray(values[info.name]).astype(info.numpy) for info in steps.graph.outputs]


def _find_target(given: str | PackTarget, *, portable: bool) -> ExportTarget:
    """
    Raises:
        BadOption: as `export_model`.
    """
    if isinstance(given, PackTarget):
        if portable:
            advice = "--portable is for processors of this machine's kind: leave one of the two options out"
            raise BadOption(option="--target", value=given.name, advice=advice)
        return describe_target(given)
    name = given
    if name and name not in TARGETS:
        advice = f"Give one of {', '.join(TARGETS)}, or a file that describes a device, or leave it out"
        raise BadOption(option="--target", value=name, advice=advice)
    if name and portable:
        advice = "--portable is for processors of this machine's kind: leave one of the two options out"
        raise BadOption(option="--target", value=name, advice=advice)
    return TARGETS[name] if name else own_target()


def _name_of(path: Path) -> str:
    """A name in C from that of a file."""
    word = re.sub(r"\W+", "_", path.name.split(".")[0].lower()).strip("_")[:40]
    return word if word and not word[0].isdigit() else f"model_{word}"[:40]


def _answers(run: Run, steps: BucketSteps) -> list[np.ndarray]:
    """Inputs of a bucket and what the plan answers, in the order of the library: the first draw that the plan takes and whose
    answers tell right from wrong, or the best of some. In the last one integers are zero, as any index may be.

    Raises:
        BricolageError: the plan takes none of them.
    """
    model = steps.graph.model
    best: tuple[InputQuality, list[np.ndarray]] | None = None
    failure: BricolageError | None = None
    for attempt in range(_TEST_DRAWS):
        inputs = {name: np.asarray(value) for name, value in draw_inputs(model, _TEST_SEED, attempt).items()}
        if attempt == _TEST_DRAWS - 1:
            inputs = {name: np.zeros_like(x) if x.dtype.kind in "iu" else x for name, x in inputs.items()}
        try:
            answers = run(steps, inputs)
        except BricolageError as error:
            failure = error
            continue
        quality = judge(answers, saturating(model))
        if best is None or quality > best[0]:
            given = [inputs[info.name] for info in steps.graph.inputs]
            best = quality, [np.ascontiguousarray(array) for array in (*given, *answers)]
        if quality.good:
            break
    if best is None:
        assert failure is not None
        raise failure
    return best[1]


def _write_sources(folder: Path, layout: _Layout, dimensions: Sequence[str]) -> None:
    """The header, the C of regions, the tables, and what all models share."""
    name = layout.name
    (folder / "include").mkdir()
    (folder / "include" / f"{name}.h").write_text(public_header(name) + "\n", encoding="utf-8")
    include = f'#include "{name}_internal.h"'
    programs = "\n".join(f"extern const struct program {region.name};" for region in layout.regions)
    visible = f'#define {name.upper()}_API __attribute__((visibility("default")))'
    texts = {
        f"{name}_internal.h": f'#include "../include/{name}.h"\n\n{internal_header(name)}',
        f"{name}.c": "\n\n".join([visible, include, programs, model_source(name, dimensions, layout.tables)]),
        f"{name}_shared.c": "\n\n".join([define(_GNU_SOURCE=""), include, shared_source(name)]),
        **{f"{region.name}.c": region.text for region in layout.regions},
    }
    source = folder / "src"
    source.mkdir()
    for file, text in texts.items():
        resolved = resolve_conditions(text, layout.target.defines)
        (source / file).write_text(resolved + "\n", encoding="utf-8")


def _write_project(folder: Path, layout: _Layout, bounds: Sequence[float]) -> None:
    """What builds the library, and programs that use it."""
    name, embed, has_threads = layout.name, layout.embed, layout.target.has_threads
    sources: list[tuple[str, Sequence[str]]] = [(f"{name}.c", ()), (f"{name}_shared.c", ())]
    sources += [(f"{region.name}.c", region.flags) for region in layout.regions]
    if embed:
        for table in layout.weights:
            file = f"{name}_{table.name}_weights.c"
            text = project.embedding(name, table.symbol, table.file, HEADER_BYTES + table.weights.nbytes)
            text = resolve_conditions(text, layout.target.defines)
            (folder / "src" / file).write_text(text, encoding="utf-8")
            sources.append((file, ()))
    machine_set = next((each.name for each in layout.sets if each.own), "")
    weights = [] if embed else [table.file for table in layout.weights]
    texts = {
        "CMakeLists.txt": project.cmake_lists(
            name, sources, weights, layout.target.link_options, has_threads=has_threads
        ),
        f"{name}Config.cmake.in": project.cmake_config(name, has_threads=has_threads),
        f"{name}.pc.in": project.pkg_config(name, has_threads=has_threads),
        "example.c": project.example_program(name, embedded=embed),
        "test.c": project.test_program(name, machine_set, bounds, embedded=embed),
        "LICENSE": project.licence(name),
    }
    if layout.target.name:
        texts["toolchain.cmake"] = project.toolchain(layout.target.name)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")


def _write_data(folder: Path, layout: _Layout, answers: Sequence[Sequence[np.ndarray]]) -> None:
    """Weights, and inputs with their answers."""
    share = folder / "share" / layout.name
    share.mkdir(parents=True)
    for table in layout.weights:
        with (share / table.file).open("wb") as file:
            file.write(weights_header(table.weights))
            table.weights.tofile(file)
    with (share / "test.bin").open("wb") as file:
        for arrays in answers:
            for array in arrays:
                array.tofile(file)
