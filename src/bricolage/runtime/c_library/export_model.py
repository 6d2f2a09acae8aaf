"""An artifact as a C library: sources, weights, what builds them, and a test with known answers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bricolage.base import scratch
from bricolage.errors import BadOption, NotWritable
from bricolage.native.c import define
from bricolage.native.library import (
    InstructionSet,
    internal_header,
    model_source,
    public_header,
    shared_source,
)
from bricolage.native.library_files import weights_header
from bricolage.plan import artifact
from bricolage.runtime.c_library import project
from bricolage.runtime.c_library.instruction_sets import LibrarySet, library_sets
from bricolage.runtime.c_library.library_regions import (
    BucketSteps,
    RegionFile,
    compile_sets,
    dimension_names,
    read_steps,
)
from bricolage.runtime.executable import Executable
from bricolage.runtime.load import load
from bricolage.verify.inputs import draw_inputs

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TEST_SEED = 7


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


def export_model(path: Path, folder: Path, name: str = "", *, portable: bool = False, embed: bool = False) -> Exported:
    """Writes the plan of an artifact as a C library.

    Args:
        path: an artifact whose regions all run in our engine.
        folder: is made; it may be there if it is empty.
        name: what all names in C begin with; by default that of the artifact's file.
        portable: for every processor of this machine's kind, instead of this processor's instructions alone.
        embed: the weights become a part of the library's object, instead of files.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact: the artifact is not usable.
        ForeignArtifact: it was planned for another machine or other versions, so that its bits could not be compared.
        NotExportable: a region runs in another backend, or regions run side by side.
        BadOption: the name is none in C, or the folder has files.
        NotWritable: it cannot be written.
    """
    name = name or _name_of(path)
    if not _NAME.fullmatch(name):
        advice = "Give a lower-case letter, then letters, digits and _, 40 at most"
        raise BadOption(option="--name", value=name, advice=advice)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadOption(option="--output", value=folder, advice="It has files: give a folder that is new, or empty")
    executable = load(path)
    plan, directory = artifact.load_artifact(path)
    buckets = read_steps(path, plan, directory)
    sets = library_sets(portable=portable)
    tables, regions = compile_sets(path, name, plan, buckets, sets)
    tables = [replace(table, embedded=embed) for table in tables]
    answers = [_answers(executable, steps) for steps in buckets]
    bounds = [steps.bucket.verification.bound for steps in buckets]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch.write_whole(folder) as partial:
            partial.mkdir()
            _write_sources(partial, name, dimension_names(plan), tables, regions)
            _write_project(partial, name, sets, tables, regions, bounds, embed=embed)
            _write_data(partial, name, tables, answers)
            shutil.copyfile(directory / artifact.PLAN, partial / "plan.json")
            if folder.exists():
                folder.rmdir()
    except OSError as error:
        raise NotWritable(path=folder, reason=error.strerror or error) from error
    source_bytes = sum(file.stat().st_size for file in (folder / "src").iterdir())
    weight_bytes = sum(table.weights.nbytes for table in tables)
    return Exported(folder, name, tuple(each.name for each in sets), len(buckets), source_bytes, weight_bytes)


def _name_of(path: Path) -> str:
    """A name in C from that of a file."""
    word = re.sub(r"\W+", "_", path.name.split(".")[0].lower()).strip("_")[:40]
    return word if word and not word[0].isdigit() else f"model_{word}"[:40]


def _answers(executable: Executable, steps: BucketSteps) -> list[np.ndarray]:
    """Inputs of a bucket and what the plan answers, in the order of the library."""
    inputs = draw_inputs(steps.graph.model, _TEST_SEED)
    answers = executable.run(inputs)
    given = [np.asarray(inputs[info.name]) for info in steps.graph.inputs]
    return [np.ascontiguousarray(array) for array in (*given, *map(np.asarray, answers.values()))]


def _write_sources(
    folder: Path, name: str, dimensions: Sequence[str], tables: Sequence[InstructionSet], regions: Sequence[RegionFile]
) -> None:
    """The header, the C of regions, the tables, and what all models share."""
    (folder / "include").mkdir()
    (folder / "include" / f"{name}.h").write_text(public_header(name) + "\n", encoding="utf-8")
    source = folder / "src"
    source.mkdir()
    internal = f'#include "../include/{name}.h"\n\n{internal_header(name)}\n'
    (source / f"{name}_internal.h").write_text(internal, encoding="utf-8")
    include = f'#include "{name}_internal.h"'
    programs = "\n".join(f"extern const struct program {region.name};" for region in regions)
    visible = f'#define {name.upper()}_API __attribute__((visibility("default")))'
    model = "\n\n".join([visible, include, programs, model_source(name, dimensions, tables)])
    (source / f"{name}.c").write_text(model + "\n", encoding="utf-8")
    shared = "\n\n".join([define(_GNU_SOURCE=""), include, shared_source(name)])
    (source / f"{name}_shared.c").write_text(shared + "\n", encoding="utf-8")
    for region in regions:
        (source / f"{region.name}.c").write_text(region.text + "\n", encoding="utf-8")


def _write_project(
    folder: Path,
    name: str,
    sets: Sequence[LibrarySet],
    tables: Sequence[InstructionSet],
    regions: Sequence[RegionFile],
    bounds: Sequence[float],
    *,
    embed: bool,
) -> None:
    """What builds the library, and programs that use it."""
    sources: list[tuple[str, Sequence[str]]] = [(f"{name}.c", ()), (f"{name}_shared.c", ())]
    sources += [(f"{region.name}.c", region.flags) for region in regions]
    if embed:
        for table in tables:
            file = f"{name}_{table.name}_weights.c"
            text = project.embedding(name, table.name, table.file)
            (folder / "src" / file).write_text(text, encoding="utf-8")
            sources.append((file, ()))
    machine_set = next((each.name for each in sets if each.own), "")
    texts = {
        "CMakeLists.txt": project.cmake_lists(name, sources, [] if embed else [table.file for table in tables]),
        f"{name}Config.cmake.in": project.cmake_config(name),
        f"{name}.pc.in": project.pkg_config(name),
        "example.c": project.example_program(name, embedded=embed),
        "test.c": project.test_program(name, machine_set, bounds, embedded=embed),
        "LICENSE": project.licence(name),
    }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")


def _write_data(
    folder: Path, name: str, tables: Sequence[InstructionSet], answers: Sequence[Sequence[np.ndarray]]
) -> None:
    """Weights, and inputs with their answers."""
    share = folder / "share" / name
    share.mkdir(parents=True)
    for table in tables:
        with (share / table.file).open("wb") as file:
            file.write(weights_header(table.weights))
            table.weights.tofile(file)
    with (share / "test.bin").open("wb") as file:
        for arrays in answers:
            for array in arrays:
                array.tofile(file)
