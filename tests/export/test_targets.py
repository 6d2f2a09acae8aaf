"""Libraries for other kinds of processors: what their sources hold, and what they answer in an emulator."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bricolage.errors import BadOption, NotExportable
from bricolage.runtime.c_library.conditions import resolve_conditions
from bricolage.runtime.c_library.export_model import export_model
from bricolage.runtime.c_library.targets import TARGETS
from tests.export.exported import Built, build, compile_c, need, write_artifact, zig

X86 = re.compile(r"cpuid|immintrin|xgetbv|x86|ia32|\b_mm|__m\d|AVX|-mavx|__FMA__|__i386__", re.IGNORECASE)
ARM = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
LINES = 4
"""That the test program writes of outputs: two buckets have two."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("targets"), regions=2)


@pytest.fixture(scope="module")
def arm(path: Path) -> Path:
    return export_model(path, path.parent / "arm", target="aarch64-linux").folder


@pytest.fixture(scope="module")
def wasm(path: Path) -> Built:
    """Built by CMake with the toolchain file of the export."""
    need("cmake")
    source = export_model(path, path.parent / "wasm", target="wasm32-wasi").folder
    return _in_toolchain(source, path.parent / "wasm-build", f"-DZIG={zig()}")


def _in_toolchain(source: Path, folder: Path, *options: str) -> Built:
    return build(source, folder, "--toolchain", "toolchain.cmake", *options)


def run_wasi(
    program: Path, share: Path, output: Path, *words: str, simd: bool = True, writes: bool = False
) -> tuple[int, str]:
    """Exit code and standard output of a WASI command that sees one folder, as `/share`."""
    wasmtime = pytest.importorskip("wasmtime")
    config = wasmtime.Config()
    config.wasm_relaxed_simd = False
    config.wasm_simd = simd
    engine = wasmtime.Engine(config)
    linker, store, wasi = wasmtime.Linker(engine), wasmtime.Store(engine), wasmtime.WasiConfig()
    linker.define_wasi()
    wasi.argv = [program.name, *words]
    wasi.preopen_dir(str(share), "/share", fs_mutable=writes)
    wasi.stdout_file = str(output)
    store.set_wasi(wasi)
    instance = linker.instantiate(store, wasmtime.Module.from_file(engine, str(program)))
    try:
        instance.exports(store)["_start"](store)
        code = 0
    except wasmtime.ExitTrap as trap:
        code = trap.code
    return code, output.read_text()


@pytest.mark.parametrize("target", ["aarch64-linux", "wasm32-wasi"])
def test_sources_have_no_word_of_another_processor(target: str, path: Path, arm: Path, tmp_path: Path) -> None:
    source = arm if target == "aarch64-linux" else export_model(path, tmp_path / "out", target=target).folder
    texts = {file.name: file.read_text() for file in source.rglob("*") if file.suffix in (".c", ".h", ".txt", ".in")}
    assert not {name: X86.findall(text) for name, text in texts.items() if X86.search(text)}
    code = "".join(texts.values())
    if target == "wasm32-wasi":
        assert not re.search(r"pthread|Threads|mmap|fork\(|__linux__|fpcr", code)
    else:
        assert '("isb")' in code and "fpcr" in code and "__wasi__" not in code


_THREADS = r"""
#include <net.h>
#include <stdio.h>
#include <string.h>
int main(int count, char **words) {
  static float x[40 * 64], y[3][40 * 24], hidden[40 * 40];
  static int64_t ids[40];
  for (int i = 0; i < 40 * 64; i++) x[i] = (float)(i % 97) / 97;
  const void *inputs[] = {x, ids};
  for (uint32_t threads = 1; threads < 3; threads++) {
    net_options options = {sizeof options};
    options.threads = threads;
    net_handle *model;
    if (net_open(words[count - 1], &options, &model)) return 1;
    void *outputs[] = {y[threads], hidden};
    for (int run = 0; run < 20; run++)
      if (net_run(model, 1, inputs, outputs)) return 2;
    if (net_close(model)) return 3;
  }
  puts(memcmp(y[1], y[2], sizeof y[1]) || y[1][0] == 0 ? "other bits" : "every bit");
  return 0;
}
"""


def test_a_library_for_arm_gives_the_known_answers(arm: Path, tmp_path: Path) -> None:
    """By the toolchain file of the export, whose tests run in the emulator."""
    need("cmake", "ctest", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    library = _in_toolchain(arm, tmp_path / "build")
    for processor, instructions in (("cortex-a53", "neon"), ("cortex-a72", "neon"), ("max", "i8mm")):
        ran = library.run("net_test", library.weights, prefix=(*ARM, "-cpu", processor))
        assert ran.returncode == 0, ran.stderr
        told = f"{instructions}, for which the plan was not decided\n"
        assert ran.stdout.count("\n") == LINES + 1 and ran.stdout.endswith(told)
    words = ["ctest", "--test-dir", str(library.folder)]
    assert "100% tests passed" in subprocess.run(words, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("zig", marks=pytest.mark.slow)])
def test_threads_change_no_bit_on_arm(compiler: str, arm: Path, tmp_path: Path) -> None:
    need("qemu-aarch64")
    if compiler == "gcc":
        need("aarch64-linux-gnu-gcc")
        words = ["aarch64-linux-gnu-gcc"]
    else:
        words = [zig(), "cc", "-target", "aarch64-linux-gnu"]
    program = compile_c(tmp_path, _THREADS, arm, compiler=words)
    ran = Built(arm, tmp_path).run(program.name, arm / "share" / "net", prefix=ARM)
    assert (ran.returncode, ran.stdout) == (0, "every bit\n"), ran.stderr


def test_a_library_for_webassembly_gives_the_known_answers(wasm: Built, tmp_path: Path) -> None:
    code, text = run_wasi(wasm.folder / "net_test.wasm", wasm.weights, tmp_path / "out", "/share")
    assert code == 0 and text.count("\n") == LINES + 1, text
    assert text.endswith("simd128, for which the plan was not decided\n")
    with pytest.raises(pytest.importorskip("wasmtime").WasmtimeError, match="(?i)simd"):
        run_wasi(wasm.folder / "net_test.wasm", wasm.weights, tmp_path / "out", "/share", simd=False)


def test_a_wrong_answer_is_told(wasm: Built, tmp_path: Path) -> None:
    share = tmp_path / "share"
    shutil.copytree(wasm.weights, share)
    answers = bytearray((share / "test.bin").read_bytes())
    answers[-2] ^= 64  # in the exponent of the last float
    (share / "test.bin").write_bytes(answers)
    assert run_wasi(wasm.folder / "net_test.wasm", share, tmp_path / "out", "/share")[0] == 1
    (share / "test.bin").write_bytes(answers[:-4])
    assert run_wasi(wasm.folder / "net_test.wasm", share, tmp_path / "out", "/share")[0] == 2
    (share / "weights.bin").write_bytes((share / "weights.bin").read_bytes()[:-1])
    assert run_wasi(wasm.folder / "net_test.wasm", share, tmp_path / "out", "/share") == (1, "")


def test_weights_may_be_a_part_of_a_program_for_webassembly(path: Path, tmp_path: Path) -> None:
    need("cmake")
    source = export_model(path, tmp_path / "c", target="wasm32-wasi", embed=True).folder
    library = _in_toolchain(source, tmp_path / "build", f"-DZIG={zig()}")
    (library.weights / "weights.bin").unlink()
    code, text = run_wasi(library.folder / "net_test.wasm", library.weights, tmp_path / "out", "/share")
    assert code == 0 and "simd128" in text


def test_a_target_that_is_none_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="aarch64-linux, wasm32-wasi"):
        export_model(path, tmp_path / "out", target="arm")
    with pytest.raises(BadOption, match="--target cannot be .aarch64-linux.. --portable"):
        export_model(path, tmp_path / "out", target="aarch64-linux", portable=True)
    assert not (tmp_path / "out").exists()


def test_weights_that_a_target_cannot_address_are_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(TARGETS["wasm32-wasi"], address_bytes=1 << 10)
    monkeypatch.setitem(TARGETS, "wasm32-wasi", small)
    with pytest.raises(NotExportable, match=r"a process of wasm32-wasi has 1024.*Quantise"):
        export_model(path, tmp_path / "out", target="wasm32-wasi")


NOTHING: Callable[[str], bool | None] = {"A": True, "B": False}.get


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#if defined(A)\nx\n#else\ny\n#endif\nz", "x\nz"),
        ("#ifdef B\nx\n#elif defined(A)\ny\n#else\nw\n#endif\nz", "y\nz"),
        ("#ifndef B\nx\n#endif", "x"),
        ("#if defined(C)\nx\n#elif defined(A)\ny\n#else\nw\n#endif", "#if defined(C)\nx\n#else\ny\n#endif"),
        ("#if defined(B)\nx\n#elif defined(C)\ny\n#else\nw\n#endif", "#if defined(C)\ny\n#else\nw\n#endif"),
        ("#if defined(B) || defined(C)\nx\n#endif", "#if defined(B) || defined(C)\nx\n#endif"),
        ("#if (N == 2 && defined(B)) || (N == 4 && defined(B))\nx\n#endif\ny", "y"),
        ("#if N == 2 || defined(A) /* why */\nx\n#endif", "x"),
        ("#ifdef B\n#ifdef C\nx\n#else\ny\n#endif\n#endif\nz", "z"),
        ("#ifdef C\n#ifdef A\nx\n#else\ny\n#endif\n#endif\nz", "#ifdef C\nx\n#endif\nz"),
        ("#ifndef C\n#define C 1\n#endif", "#ifndef C\n#define C 1\n#endif"),
    ],
)
def test_branches_that_a_compiler_leaves_out_are_not_written(text: str, expected: str) -> None:
    assert resolve_conditions(text, NOTHING) == expected
