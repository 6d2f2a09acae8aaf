"""Headers of the native engine: each is C by itself, without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bricolage.native.c import FOLDER, define, read_header
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.block_c import INTS
from bricolage.native.cpu.threads import RING

HEADERS = sorted(path.stem for path in FOLDER.glob("*.h"))
BEFORE = {
    "block_numbers": ("vectors", "block_ints"),
    "block_plain": ("vectors", "block_ints"),
    "byte_plain": ("vectors", "byte_sums"),
    "byte_runs": ("vectors", "maths"),
    "entry": ("vectors", "threads", "region", "program", "program_macros"),
    "library": ("model", "program", "tables"),
    "maths": ("vectors",),
    "narrow": ("vectors",),
    "onnxruntime_provider": ("model", "provider_macros"),
    "peaks": ("vectors", "threads", "peaks_macros"),
    "split_narrow": ("vectors",),
    "tables": ("model", "program"),
    "threads_none": (),
    "threads_places": (),
    "threads_waiting": (),
    "timed": ("threads",),
    "wide": ("vectors",),
    "wrappers": ("model", "program", "tables", "no_library"),
}
"""What the generator writes before a header: other headers, and what depends on a region, below."""
GENERATED = {
    "block_ints": INTS,
    "byte_sums": "typedef int32_t byte_sums __attribute__((vector_size(4 * LANES), aligned(4), may_alias));",
    "region": (
        "static void region(end_pointer *io, char *arena, const char *weights, char *own, char *shared, struct seat *at) {"
        " (void)io; (void)arena; (void)weights; (void)own; (void)shared; (void)at; }"
    ),
    "program_macros": define(PROGRAM="region_program", ARENA_BYTES="64ul", OWN_BYTES="64ul", SHARED_BYTES="64ul"),
    "provider_macros": define(PROVIDER='"netExecutionProvider"', INPUTS=2, OUTPUTS=1, SIZES=4),
    "no_library": "static const struct library library;",
    "peaks_macros": define(
        ELEMENT="float", SUMS="float", PLANES=1, ROWS=4, DEPTH=8, WIDE=16, PRODUCTS=10, STEPS=2, MULTIPLY="(void)tile;"
    ),
}
PARTS = ("locks", "threads_none", "threads_places", "threads_waiting")
"""They are compiled where others include them."""
ALONE = ("entry", "library", "threads")
"""They have another form where there are no threads."""


@pytest.mark.parametrize(
    ("name", "threads"), [*((name, 2) for name in HEADERS if name not in PARTS), *((name, 1) for name in ALONE)]
)
def test_a_header_is_c_without_a_warning(name: str, threads: int, tmp_path: Path) -> None:
    texts = [GENERATED.get(part) or read_header(part) for part in BEFORE.get(name, ())]
    macros = define(_GNU_SOURCE="", LANES=8, RING=RING, THREADS=threads, KERNELS=3)
    source = tmp_path / "header.c"
    source.write_text("\n".join([macros, "#include <stdint.h>", *texts, read_header(name), ""]), encoding="utf-8")
    compiler = toolchain.compiler()
    assert compiler is not None
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-psabi", "-fsyntax-only"]
    flags += ["-D__wasi__", "-U__linux__", "-U__unix__"] if threads == 1 else []
    ran = subprocess.run([*compiler, *flags, str(source)], capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr


def test_what_a_header_includes_is_written_into_it() -> None:
    assert '#include "' not in read_header("threads")
    assert read_header("threads_waiting") in read_header("threads")
