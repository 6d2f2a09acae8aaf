"""The instruction sets of 64-bit Arm in one library: chosen and refused by what the processor has, exact on bytes, and
indifferent to the size of pages and to whether a character has a sign."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bricolage.native.cpu.isa import ISAS
from bricolage.native.cpu.threads import THREADS
from bricolage.runtime.c_library.export_model import export_model
from bricolage.runtime.c_library.targets import TARGETS
from tests.export.exported import Built, build, need, write_artifact
from tests.export.test_targets import ARM

PROCESSORS = (
    ("cortex-a53", "", "neon"),
    ("cortex-a72", "", "neon"),
    ("neoverse-n1", "", "dotprod"),
    ("max", "", "i8mm"),
    ("max", "dotprod", "dotprod"),
    ("max", "neon", "neon"),
)
"""Of the emulator, the set that a program asks for, and the one that it gets."""


def _bytes_model() -> ir.Model:
    """Integer products whose weights reach -128, with depths that fill no vector, and a padding that is not zero."""
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> net (uint8[n, 67] x, uint8[n, 5, 6, 7] image)'
        " => (int32[n, 21] y, int32[n, 17, 6, 7] z) { y = MatMulInteger (x, w, seven)"
        " z = ConvInteger <pads = [1, 1, 1, 1]> (image, c, high) }"
    )
    proto, draw = onnx.parser.parse_model(text), np.random.default_rng(0)
    w = draw.integers(-128, 128, (67, 21)).astype(np.int8)
    w[:, :8] = -128
    constants = {
        "w": w,
        "c": draw.integers(-128, 128, (17, 5, 3, 3)).astype(np.int8),
        "seven": np.uint8(7),
        "high": np.uint8(255),
    }
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    parsed: ir.Model = ir.from_proto(proto)
    return parsed


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    need("cmake", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    folder = tmp_path_factory.mktemp("bytes")
    artifact = write_artifact(folder, symbolic=_bytes_model())
    source = export_model(artifact, folder / "c", target="aarch64-linux").folder
    options = ("--toolchain", "toolchain.cmake", "-DBUILD_SHARED_LIBS=ON")
    return build(source, folder / "build", *options)


def test_the_sets_of_the_target_are_those_of_the_engine_best_first() -> None:
    arm = [isa for isa in ISAS if isa.needs & {"asimd"}]
    assert [isa.name for isa in arm] == ["i8mm", "dotprod", "neon"] and tuple(arm) == TARGETS["aarch64-linux"].isas
    assert all(better.needs > worse.needs for better, worse in itertools.pairwise(arm))


@pytest.mark.parametrize(("processor", "asked", "instructions"), PROCESSORS)
def test_integer_products_have_every_bit(processor: str, asked: str, instructions: str, built: Built) -> None:
    words = [built.weights, *([asked] if asked else [])]
    ran = built.run("net_test", *words, prefix=(*ARM, "-cpu", processor))
    assert ran.returncode == 0, ran.stderr
    *outputs, last = ran.stdout.splitlines()
    assert last.startswith(f"{instructions}, ")
    assert len(outputs) == 4 and all(line.endswith(": every bit") for line in outputs), ran.stdout


@pytest.mark.parametrize(
    ("processor", "asked"), [("cortex-a53", "dotprod"), ("cortex-a72", "i8mm"), ("neoverse-n1", "i8mm")]
)
def test_a_set_that_the_processor_lacks_is_refused_with_its_name(processor: str, asked: str, built: Built) -> None:
    ran = built.run("net_test", built.weights, asked, prefix=(*ARM, "-cpu", processor))
    assert ran.returncode == 1 and ran.stderr.startswith(f"{asked}: the processor lacks the instructions")


def test_segments_begin_where_the_largest_pages_do(built: Built) -> None:
    need("readelf")
    told = subprocess.run(
        ["readelf", "-lW", str(built.folder / "libnet.so")], capture_output=True, text=True, check=True
    )
    loads = [line.split() for line in told.stdout.splitlines() if line.split()[:1] == ["LOAD"]]
    assert loads and all(line[-1] == "0x10000" for line in loads)


def test_code_and_weights_that_sets_share_are_there_once(tmp_path: Path) -> None:
    """Of a model in float32 they are all that there is."""
    source = export_model(write_artifact(tmp_path), tmp_path / "c", target="aarch64-linux").folder
    assert sorted(path.name for path in (source / "share" / "net").glob("*.bin")) == ["test.bin", "weights.bin"]
    assert sorted(path.name for path in (source / "src").glob("net_*_*_*.c")) == ["net_i8mm_0_0.c", "net_i8mm_1_0.c"]


def test_no_code_depends_on_the_sign_of_characters(built: Built, tmp_path: Path) -> None:
    names = ("net_i8mm_0_0.c", "net_neon_0_0.c", "net_shared.c", "net.c")
    for path in ((built.source / "src") / name for name in names):
        flags = ["-march=armv8.2-a+dotprod+i8mm+bf16", "-std=gnu11", "-O0", "-w", f"-I{built.source / 'include'}"]
        texts = []
        for sign in ("-fsigned-char", "-funsigned-char"):
            words = ["aarch64-linux-gnu-gcc", *flags, sign, "-S", str(path), "-o", str(tmp_path / "code.s")]
            subprocess.run(words, check=True)
            texts.append((tmp_path / "code.s").read_text())
        assert texts[0] == texts[1], path.name


_PAGES = r"""
#include <unistd.h>
static long page_bytes;
#define sysconf(name) page_bytes
#include "net_shared.c"
int main(void) {
  static const size_t pages[] = {4096, 16384, 65536}, sizes[] = {100, 3 << 20, 40 << 20, (size_t)600 << 20};
  for (int p = 0; p < 3; p++)
    for (int s = 0; s < 4; s++) {
      page_bytes = (long)pages[p];
      const size_t bytes = sizes[s] + 5, large = pages[p] / 8 * pages[p];
      char *memory = take_memory(bytes);
      if (!memory) return 1;
      if ((uintptr_t)memory % 64 || (bytes >= large && (uintptr_t)memory % large)) return 2;
      memory[0] = memory[bytes - 1] = 1;
      give_back(memory, bytes);
    }
  return 0;
}
"""


def test_memory_begins_at_a_large_page_of_any_kernel(built: Built, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(_PAGES)
    words = ["aarch64-linux-gnu-gcc", "-std=gnu11", "-O1", "-w", "-pthread", f"-I{built.source / 'src'}"]
    subprocess.run([*words, str(tmp_path / "main.c"), "-o", str(tmp_path / "main")], check=True)
    assert subprocess.run([*ARM, str(tmp_path / "main")], check=False).returncode == 0


_MODE = r"""
enum { PIECES = 64, SHARES = 3 };
static uint32_t modes[PIECES];
static int flushed[PIECES], rounded_up[PIECES];
static _Atomic uint32_t threads;
static void work(const uintptr_t *with, struct seat *at) {
  (void)with;
  for (long piece; (piece = take(at, PIECES)) >= 0;) {
    volatile float tiny = 1e-40f, one = 1, small = 1e-9f;
    modes[piece] = floats_mode();
    flushed[piece] = tiny * one == 0;
    rounded_up[piece] = one + small > 1;
    atomic_fetch_or(&threads, 1u << at->tid);
    usleep(2000); /* so that all threads get some */
  }
}
int main(void) {
  struct team *team = team_make(SHARES);
  const uint32_t usual = floats_mode(), special = usual | 1u << 24 | 1u << 22; /* to zero; towards plus infinity */
  for (int turn = 0; turn < 2; turn++) {
    const uint32_t mode = turn ? usual : special;
    floats_use(mode);
    const struct run run = {work, {0}, SHARES, 0, floats_mode()};
    team_run(team, &run);
    for (int i = 0; i < PIECES; i++)
      if (modes[i] != mode || flushed[i] == turn || rounded_up[i] == turn) return 1;
  }
  team_free(team);
  return threads == (1u << SHARES) - 1 ? 0 : 2;
}
"""


def test_helpers_round_as_their_caller_does(tmp_path: Path) -> None:
    need("aarch64-linux-gnu-gcc", "qemu-aarch64")
    (tmp_path / "main.c").write_text(f"#define _GNU_SOURCE\n{THREADS}\n{_MODE}")
    words = ["aarch64-linux-gnu-gcc", "-std=gnu11", "-O1", "-w", "-pthread", str(tmp_path / "main.c")]
    subprocess.run([*words, "-o", str(tmp_path / "main")], check=True)
    for processor in ("cortex-a53", "max"):
        ran = subprocess.run([*ARM, "-cpu", processor, str(tmp_path / "main")], check=False, timeout=60)
        assert ran.returncode == 0, processor
