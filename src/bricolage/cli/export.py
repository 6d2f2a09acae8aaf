"""`bricolage export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Folder = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="A new or empty folder.", show_default=False)
]
Name = Annotated[
    str, typer.Option("--name", metavar="WORD", help="What every name in C begins with; default: the artifact's.")
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="KIND|FILE",
        help="Cross-compiled for aarch64-linux, wasm32-wasi or the Arm device of a file, instead of for this processor.",
    ),
]
Portable = Annotated[
    bool, typer.Option("--portable", help="For every processor of this kind: the library chooses when it is opened.")
]
Embed = Annotated[bool, typer.Option("--embed", help="Weights become a part of the library, instead of files.")]


@guard_command
def export(
    artifact: a.Artifact,
    folder: Folder,
    name: Name = "",
    target: Target = "",
    portable: Portable = False,
    embed: Embed = False,
    as_json: a.Json = False,
) -> None:
    """Write a plan as a C library: sources, weights, CMake files, and a test with known answers."""
    from bricolage.api.export_library import export_model, find_export_target
    from bricolage.cli import output

    with output.stdout_kept():
        device = find_export_target(target)
        exported = export_model(artifact, folder, name, target=device, portable=portable, embed=embed)
    if as_json:
        output.show_json({**asdict(exported), "folder": str(exported.folder)})
        return
    sets = ", ".join(exported.sets)
    output.show_text(
        f"{exported.folder}: {exported.name}.h, {exported.source_bytes / 1e3:.0f} KB of C for {sets}, "
        f"{exported.weight_bytes / 1e6:.1f} MB of weights, {exported.buckets} bucket{'s' * (exported.buckets != 1)}"
    )
    toolchain = " --toolchain toolchain.cmake" if target else ""
    output.show_text(
        f"Build and test: cmake -S {folder} -B build{toolchain} && cmake --build build && ctest --test-dir build"
    )
