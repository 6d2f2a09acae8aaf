"""Exported libraries by other compilers and from Go, and under valgrind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bricolage.device.host import host
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.isa import available_isas
from bricolage.runtime.c_library.export_model import export_model
from bricolage.runtime.load import load
from tests.export.exported import Built, build, compile_c, need, write_artifact, zig

FLAGS = available_isas()[0].flags
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")


LEVEL = "1"
"""At which both sides are compiled: at one level a compiler gives the same bits."""


@pytest.fixture(scope="module", autouse=True)
def quick_optimisation() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(toolchain.LEVEL_VARIABLE, LEVEL)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("compilers"), regions=2)


@pytest.fixture(scope="module")
def source(path: Path) -> Path:
    return export_model(path, path.parent / "c").folder


def words_of(compiler: str) -> list[str]:
    if compiler != "zig":
        need(compiler)
        return [compiler]
    return [zig(), "cc", "-mcpu=baseline"]


@pytest.mark.parametrize("compiler", ["gcc", "clang", pytest.param("zig", marks=pytest.mark.slow)])
def test_every_compiler_gives_the_known_answers(compiler: str, source: Path, tmp_path: Path) -> None:
    """A user's file with the header has no warning."""
    words = words_of(compiler)
    (user := tmp_path / "user.c").write_text("#include <net.h>\nint main(void) { return net_close(0) == NET_OK; }\n")
    checked = [
        *words,
        "-std=c99",
        *WARNINGS,
        f"-I{source / 'include'}",
        "-c",
        str(user),
        "-o",
        str(tmp_path / "user.o"),
    ]
    ran = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    program = compile_c(tmp_path, (source / "test.c").read_text(), source, *FLAGS, compiler=words)
    tested = Built(source, tmp_path).run(program.name, source / "share" / "net")
    assert tested.returncode == 0 and tested.stdout.count("bucket ") == 4, tested.stderr


@pytest.mark.parametrize("program", ["example", "test"])
def test_programs_of_the_export_have_no_warning(program: str, source: Path) -> None:
    need("gcc")
    words = ["gcc", "-std=c11", *WARNINGS, "-fsyntax-only", f"-I{source / 'include'}", str(source / f"{program}.c")]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


_SOME_RUNS = r"""
#include <net.h>
#include <stdlib.h>
int main(int count, char **words) {
  for (int opening = 0; opening < 3; opening++) {
    net_options options = {sizeof options};
    options.threads = (uint32_t)opening; /* 0: as many as the plan has */
    net_handle *model;
    if (net_open(words[count - 1], &options, &model)) return 1;
    for (uint32_t bucket = 0; bucket < net_buckets(); bucket++) {
      void *ends[4];
      for (uint32_t i = 0; i < 2; i++) ends[i] = calloc(1, net_input(bucket, i)->bytes);
      for (uint32_t i = 0; i < 2; i++) ends[2 + i] = malloc(net_output(bucket, i)->bytes);
      const void *inputs[] = {ends[0], ends[1]};
      for (int run = 0; run < 3; run++)
        if (net_run(model, bucket, inputs, ends + 2)) return 2;
      for (int i = 0; i < 4; i++) free(ends[i]);
    }
    if (net_close(model)) return 3;
  }
  return 0;
}
"""


@pytest.mark.slow
def test_valgrind_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows neither AVX-512 nor a matrix unit, so the plan is one for AVX2."""
    need("valgrind")
    monkeypatch.setenv("BRICOLAGE_ISA", "avx2" if "avx2" in host().instructions else "generic")
    source = export_model(write_artifact(tmp_path / "plan", regions=2), tmp_path / "c").folder
    flags = available_isas()[0].flags
    assert not any("avx512" in flag for flag in flags)
    program = compile_c(tmp_path, _SOME_RUNS, source, *flags)
    words = ["valgrind", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite,possible", str(program)]
    ran = subprocess.run([*words, str(source / "share" / "net")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "ERROR SUMMARY: 0 errors" in ran.stderr, ran.stderr[-3000:]


_GO = r"""
package main

// #include <net.h>
// #include <stdlib.h>
import "C"
import (
	"fmt"
	"os"
	"unsafe"
)

func check(code C.int32_t) {
	if code != C.NET_OK {
		panic(C.GoString(C.net_error(code)))
	}
}

// Memory of C, which may hold pointers to more of it.
func pointers(ends ...unsafe.Pointer) *unsafe.Pointer {
	array := (*[8]unsafe.Pointer)(C.calloc(8, 8))
	copy(array[:], ends)
	return &array[0]
}

func main() {
	folder := C.CString(os.Args[1])
	x, err := os.ReadFile(os.Args[2])
	if err != nil {
		panic(err)
	}
	for threads := 1; threads <= 2; threads++ {
		options := C.net_options{size: C.sizeof_net_options, threads: C.uint32_t(threads)}
		var model *C.net_handle
		check(C.net_open(folder, &options, &model))
		var bucket C.uint32_t
		rows := C.int64_t(40)
		check(C.net_find_bucket(&rows, &bucket))
		sizes := [2]C.size_t{C.net_output(bucket, 0).bytes, C.net_output(bucket, 1).bytes}
		y, hidden := C.malloc(sizes[0]), C.malloc(sizes[1])
		inputs := pointers(C.CBytes(x), C.calloc(40, 8))
		check(C.net_run(model, bucket, inputs, pointers(y, hidden)))
		check(C.net_close(model))
		written := append(C.GoBytes(y, C.int(sizes[0])), C.GoBytes(hidden, C.int(sizes[1]))...)
		if os.WriteFile(fmt.Sprintf("%s-%d", os.Args[3], threads), written, 0o644) != nil {
			panic("not written")
		}
	}
}
"""


def test_go_gives_every_bit_that_python_gives(path: Path, source: Path, tmp_path: Path) -> None:
    """By the flags that pkg-config tells of an installed library."""
    need("go", "cmake", "pkg-config")
    x = np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32)
    (tmp_path / "x.bin").write_bytes(x.tobytes())
    answers = load(path).run({"x": x, "ids": np.zeros((40, 1), np.int64)})
    library = build(_at_level(source, tmp_path / "c"), tmp_path / "build")
    prefix = tmp_path / "installed"
    subprocess.run(
        ["cmake", "--install", str(library.folder), "--prefix", str(prefix)], capture_output=True, check=True
    )
    (packages,) = prefix.rglob("pkgconfig")
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_text("module user\n\ngo 1.19\n")
    (module / "main.go").write_text(
        _GO.replace("// #include <net.h>", "// #cgo pkg-config: --static net\n// #include <net.h>")
    )
    settings = {
        "PKG_CONFIG_PATH": str(packages),
        "GOPROXY": "off",
        "GOFLAGS": "-mod=mod",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(tmp_path / "cache"),
        "GOPATH": str(tmp_path / "path"),
    }
    words = ["go", "build", "-o", "user", "."]
    compiled = subprocess.run(
        words, cwd=module, capture_output=True, text=True, check=False, env={**os.environ, **settings}
    )
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    run = [str(module / "user"), str(library.weights), str(tmp_path / "x.bin"), str(tmp_path / "y")]
    subprocess.run(run, check=True, timeout=60)
    expected = b"".join(np.asarray(answer).tobytes() for answer in answers.values())
    assert [(tmp_path / f"y-{threads}").read_bytes() == expected for threads in (1, 2)] == [True, True]


def _at_level(source: Path, folder: Path) -> Path:
    """A copy whose build has the level of this module."""
    shutil.copytree(source, folder)
    lists = folder / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("-O3", f"-O{LEVEL}"))
    return folder
