"""Plans as C libraries: every bit that Python gives, from C, C++ and Rust, and an error code for whatever is wrong."""

from __future__ import annotations

import itertools
import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bricolage.cli.main import app
from bricolage.errors import BadOption, NotExportable
from bricolage.native.cpu.isa import needed_instructions
from bricolage.native.library import quote
from bricolage.plan.schedules import PlannedSchedule
from bricolage.runtime.c_library.export_model import export_model
from bricolage.runtime.c_library.instruction_sets import library_sets
from bricolage.runtime.c_library.targets import own_target
from tests.export.exported import Built, build, compile_c, need, write_artifact

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    """Of an artifact whose buckets have two regions."""
    return write_artifact(folder, regions=2)


@pytest.fixture(scope="module")
def built(folder: Path, path: Path) -> Built:
    """A static library."""
    return build(export_model(path, folder / "static").folder, folder / "static-build")


@pytest.fixture(scope="module")
def portable(folder: Path, path: Path) -> Built:
    """A shared library for every processor of this kind."""
    source = export_model(path, folder / "portable", portable=True).folder
    return build(source, folder / "portable-build", "-DBUILD_SHARED_LIBS=ON")


def test_the_library_gives_every_bit_that_python_gives(built: Built) -> None:
    ran = built.run("net_test", built.weights)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("every bit") == 4 and "other bits" not in ran.stdout
    assert built.run("net_example", built.weights).returncode == 0
    assert (built.source / "plan.json").exists() and "Apache License" in (built.source / "LICENSE").read_text()


def test_one_thread_gives_the_same_bits(tmp_path: Path) -> None:
    source = export_model(write_artifact(tmp_path, threads=1), tmp_path / "out").folder
    library = build(source, tmp_path / "build")
    ran = library.run("net_test", library.weights)
    assert ran.returncode == 0 and ran.stdout.count("every bit") == 4


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the sets are those of x86-64")
def test_a_portable_library_runs_on_older_processors(portable: Built) -> None:
    """It asks the processor, and refuses a set that is not there with a text."""
    here = portable.run("net_test", portable.weights)
    assert here.returncode == 0 and here.stdout.count("every bit") == 4
    need("qemu-x86_64")
    for processor, name in (("Nehalem", "x86_64"), ("Haswell", "avx2")):
        ran = portable.run("net_test", portable.weights, prefix=["qemu-x86_64", "-cpu", processor])
        assert ran.returncode == 0, (processor, ran.stderr[-500:])
        assert f"\n{name}, " in f"\n{ran.stdout}"
    ran = portable.run("net_test", portable.weights, "avx2", prefix=["qemu-x86_64", "-cpu", "Nehalem"])
    assert ran.returncode == 1 and "lacks the instructions" in ran.stderr


def test_nothing_but_the_model_s_names_is_visible(portable: Built) -> None:
    need("nm")
    told = subprocess.run(
        ["nm", "-D", "--defined-only", str(portable.folder / "libnet.so")], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1] for line in told.stdout.splitlines()]
    assert names and all(name.startswith("net_") and "shared" not in name for name in names)


def test_weights_may_be_a_part_of_the_library(path: Path, tmp_path: Path) -> None:
    library = build(export_model(path, tmp_path / "out", embed=True).folder, tmp_path / "build")
    ran = library.run("net_test", library.weights)
    assert ran.returncode == 0 and ran.stdout.count("every bit") == 4


def test_cmake_and_pkg_config_find_an_installed_library(built: Built, tmp_path: Path) -> None:
    """From C++, in a folder whose name has a space."""
    need("c++")
    prefix = tmp_path / "in stalled"
    subprocess.run(["cmake", "--install", str(built.folder), "--prefix", str(prefix)], capture_output=True, check=True)
    user = tmp_path / "user"
    user.mkdir()
    (user / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(user CXX)\nset(CMAKE_CXX_STANDARD 11)\n"
        "find_package(net 1.0 REQUIRED CONFIG)\nadd_executable(main main.cpp)\ntarget_link_libraries(main net::net)\n"
    )
    main = user / "main.cpp"
    main.write_text(
        "#include <net.h>\n#include <iostream>\n#include <vector>\n"
        "int main(int, char **words) {\n"
        "  net_handle *model = nullptr;\n"
        "  if (int32_t code = net_open(words[1], nullptr, &model)) { std::cerr << net_error(code); return 1; }\n"
        "  int64_t size = 40; uint32_t bucket = 9;\n"
        "  if (net_find_bucket(&size, &bucket) != NET_OK || bucket != 1) return 2;\n"
        "  std::vector<float> x(40 * 64, 1.f), y(40 * 24), hidden(40 * 40);\n"
        "  std::vector<int64_t> ids(40, 3);\n"
        "  const void *inputs[] = {x.data(), ids.data()};\n"
        "  void *outputs[] = {y.data(), hidden.data()};\n"
        "  if (net_run(model, bucket, inputs, outputs) != NET_OK) return 3;\n"
        "  float sum = 0; for (float one : y) sum += one;\n"
        '  std::cout << net_input(bucket, 1)->name << " " << sum << std::endl;\n'
        "  return net_close(model);\n}\n"
    )
    options = [f"-DCMAKE_PREFIX_PATH={prefix}"]
    build(user, tmp_path / "user-build", *options)
    weights = prefix / "share" / "net"
    ran = subprocess.run(
        [str(tmp_path / "user-build" / "main"), str(weights)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran
    name, total = ran.stdout.split()
    assert name == "ids" and float(total) == pytest.approx(40, rel=1e-5)  # 40 rows of a softmax
    need("pkg-config")
    (folder,) = prefix.rglob("pkgconfig")
    asked = ["pkg-config", "--static", "--cflags", "--libs", "net"]
    words = subprocess.run(asked, capture_output=True, text=True, check=True, env={"PKG_CONFIG_PATH": str(folder)})
    assert "-lnet" in words.stdout and "-pthread" in words.stdout


_FAULTS = r"""
#include <net.h>
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
enum { ROWS = 1 };
static float x[ROWS * 64 + 1], y[ROWS * 24 + 1], hidden[ROWS * 40 + 1];
static int64_t ids[ROWS + 1];
static const char *folder;
static void *data(size_t *bytes) {
  char path[4096];
  snprintf(path, sizeof path, "%s/weights.bin", folder);
  FILE *file = fopen(path, "rb");
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  char *block = malloc(*bytes + 1);
  assert(fread(block, 1, *bytes, file) == *bytes);
  fclose(file);
  return block;
}
static void *runs(void *model) {
  static __thread float own[2][64], result[2][64];
  static __thread int64_t number[1];
  const void *in[] = {own[0], number};
  void *out[] = {result[0], result[1]};
  for (int i = 0; i < 200; i++) assert(net_run(model, 0, in, out) == NET_OK);
  return NULL;
}
int main(int count, char **words) {
  folder = words[count - 1];
  net_handle *model = NULL, *second = NULL;
  net_options options = {sizeof options};
  size_t bytes;
  char *block = data(&bytes);
  assert(net_abi_version() == NET_ABI_VERSION && net_buckets() == 2 && net_dimensions() == 1);
  assert(!strcmp(net_dimension_name(0), "n") && !net_dimension_name(1) && net_bucket_size(1, 0) == 40);
  assert(net_open(NULL, NULL, &model) == NET_NULL_ARGUMENT && net_open(folder, NULL, NULL) == NET_NULL_ARGUMENT);
  assert(net_open("/no/such/folder", NULL, &model) == NET_NO_FILE);
  assert(net_open_memory(block, bytes - 1, NULL, &model) == NET_TRUNCATED);
  assert(net_open_memory(block, 10, NULL, &model) == NET_TRUNCATED);
  block[30] ^= 1;
  assert(net_open_memory(block, bytes, NULL, &model) == NET_OTHER_BUILD);
  block[30] ^= 1;
  block[0] = 'x';
  assert(net_open_memory(block, bytes, NULL, &model) == NET_OTHER_BUILD);
  block[0] = 'B';
  options.size = 3;
  assert(net_open(folder, &options, &model) == NET_OPTIONS_VERSION);
  options.size = sizeof options + 8;
  assert(net_open(folder, &options, &model) == NET_OPTIONS_VERSION);
  options.size = sizeof options;
  options.map_weights = 7;
  assert(net_open(folder, &options, &model) == NET_BAD_OPTION);
  options.map_weights = 0;
  options.instructions = "sparc";
  assert(net_open(folder, &options, &model) == NET_NO_INSTRUCTIONS);
  options.instructions = NULL;
  assert(model == NULL);
  for (int code = -1; code < 14; code++) assert(strlen(net_error(code)));

  assert(net_open(folder, &options, &model) == NET_OK);
  options.team = net_team_of(model);
  options.map_weights = 1;
  options.leave_helpers = 1;
  assert(net_open_memory(block, bytes, &options, &second) == NET_OK);
  const void *inputs[] = {x, ids};
  void *outputs[] = {y, hidden};
  const void *none[] = {NULL, ids};
  assert(net_run(model, 0, NULL, outputs) == NET_NULL_ARGUMENT && net_run(model, 0, none, outputs) == NET_NULL_ARGUMENT);
  assert(net_run(model, 2, inputs, outputs) == NET_NO_SUCH_SIZES && net_run(NULL, 0, inputs, outputs) == NET_NULL_ARGUMENT);
  assert(net_run((net_handle *)block, 0, inputs, outputs) == NET_NOT_OPEN);
  int64_t size = 7;
  uint32_t bucket;
  assert(net_find_bucket(&size, &bucket) == NET_NO_SUCH_SIZES && net_find_bucket(NULL, &bucket) == NET_NULL_ARGUMENT);

  /* buffers of any alignment, and the second handle: the same bits */
  for (int i = 0; i < 64; i++) x[i] = (float)i / 64;
  assert(net_run(model, 0, inputs, outputs) == NET_OK);
  float kept[24], *shifted = (float *)((char *)y + 4);
  memcpy(kept, y, sizeof kept);
  memmove(x + 1, x, 64 * sizeof *x);
  const void *odd[] = {x + 1, ids};
  void *odder[] = {shifted, hidden};
  assert(net_run(second, 0, odd, odder) == NET_OK && !memcmp(kept, shifted, sizeof kept));

  /* runs from several threads take turns; a handle that runs is not closed */
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(threads + i, NULL, runs, i % 2 ? model : second);
  for (int i = 0; i < 50; i++) assert(net_close((net_handle *)&threads) == NET_NOT_OPEN);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);

#ifndef NO_FORK
  const pid_t child = fork();
  if (!child) {
    runs(model);
    _exit(net_close(model) || net_close(second));
  }
  int status = -1;
  assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
  assert(net_close(model) == NET_OK && net_close(model) == NET_NOT_OPEN);
  runs(second); /* the threads stay for whoever uses them */
  assert(net_run(model, 0, inputs, outputs) == NET_NOT_OPEN);
  assert(net_close(second) == NET_OK && net_close(NULL) == NET_NULL_ARGUMENT);
  for (int i = 0; i < OPENINGS; i++) {
    assert(net_open(folder, NULL, &model) == NET_OK && net_memory(model) > bytes);
    if (i % 50 == 0) assert(net_run(model, 0, inputs, outputs) == NET_OK);
    assert(net_close(model) == NET_OK);
  }
  net_team_release(net_team_make(2, 0));
  free(block);
  puts("fine");
  return 0;
}
"""


@pytest.mark.parametrize(
    "flags",
    [("-fsanitize=address,undefined", "-DOPENINGS=1000"), ("-fsanitize=thread", "-DOPENINGS=20", "-DNO_FORK")],
    ids=["addresses", "threads"],
)
def test_what_is_wrong_has_a_code_and_sanitizers_are_silent(
    flags: tuple[str, ...], built: Built, tmp_path: Path
) -> None:
    sets = library_sets(own_target(), portable=False)[0].isa.flags
    program = compile_c(tmp_path, _FAULTS, built.source, *flags, *sets)
    need("setarch")  # the thread sanitizer wants addresses where they always are
    command = ["setarch", "-R", str(program), str(built.weights)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0 and ran.stdout == "fine\n", ran.stderr[-3000:]
    assert "Sanitizer" not in ran.stderr and "runtime error" not in ran.stderr


def test_two_models_in_one_program_share_threads(path: Path, built: Built, tmp_path: Path) -> None:
    other = export_model(path, tmp_path / "other", "other").folder
    text = """
#include <net.h>
#include <other.h>
#include <stdio.h>
int main(int count, char **words) {
  net_handle *a; other_handle *b;
  if (net_open(words[1], NULL, &a)) return 1;
  other_options options = {sizeof options};
  options.team = (other_team *)net_team_of(a);
  if (other_open(words[2], &options, &b)) return 2;
  static float x[64], y[2][24], hidden[40];
  static int64_t ids[1];
  const void *inputs[] = {x, ids};
  void *first[] = {y[0], hidden}, *second[] = {y[1], hidden};
  if (net_run(a, 0, inputs, first) || net_close(a) || other_run(b, 0, inputs, second)) return 3;
  for (int i = 0; i < 24; i++) if (y[0][i] != y[1][i]) return 4;
  return other_close(b);
}
"""
    sets = library_sets(own_target(), portable=False)[0].isa.flags
    more = [str(file) for file in (other / "src").glob("*.c")]
    program = compile_c(tmp_path, text, built.source, f"-I{other / 'include'}", *sets, *more)
    ran = subprocess.run([str(program), str(built.weights), str(other / "share" / "other")], check=False, timeout=60)
    assert ran.returncode == 0


@pytest.mark.parametrize("standard", ["-std=c99", "-xc++ -std=c++11", "-xc++ -std=c++20"])
def test_the_header_is_c99_and_every_cpp(standard: str, built: Built, tmp_path: Path) -> None:
    need("gcc", "g++")
    (file := tmp_path / "header.c").write_text("#include <net.h>\n")
    words = ["gcc", *standard.split(), "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    ran = subprocess.run(
        [*words, f"-I{built.source / 'include'}", str(file)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_rust_calls_it(portable: Built, tmp_path: Path) -> None:
    need("rustc")
    (file := tmp_path / "main.rs").write_text(
        """
use std::ffi::{c_char, c_void, CStr, CString};
#[link(name = "net")]
extern "C" {
    fn net_open(path: *const c_char, options: *const c_void, handle: *mut *mut c_void) -> i32;
    fn net_run(handle: *mut c_void, bucket: u32, inputs: *const *const c_void, outputs: *const *mut c_void) -> i32;
    fn net_close(handle: *mut c_void) -> i32;
    fn net_error(code: i32) -> *const c_char;
}
fn main() {
    let folder = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    let mut model = std::ptr::null_mut();
    unsafe {
        assert_eq!(net_open(folder.as_ptr(), std::ptr::null(), &mut model), 0);
        let (x, ids) = (vec![1f32; 64], vec![2i64; 1]);
        let (mut y, mut hidden) = (vec![0f32; 24], vec![0f32; 40]);
        let inputs = [x.as_ptr() as *const c_void, ids.as_ptr() as *const c_void];
        let outputs = [y.as_mut_ptr() as *mut c_void, hidden.as_mut_ptr() as *mut c_void];
        assert_eq!(net_run(model, 0, inputs.as_ptr(), outputs.as_ptr()), 0);
        println!("{:.4} {}", y.iter().sum::<f32>(), CStr::from_ptr(net_error(9)).to_str().unwrap());
        assert_eq!(net_close(model), 0);
    }
}
"""
    )
    program, library = tmp_path / "main", str(portable.folder)
    words = ["rustc", "-L", library, "-C", f"link-arg=-Wl,-rpath,{library}", "-o", str(program), str(file)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    ran = subprocess.run([str(program), str(portable.weights)], capture_output=True, text=True, check=False)
    assert ran.stdout == "1.0000 the handle is not open\n"


def test_what_cannot_be_exported_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    mixed = write_artifact(tmp_path / "mixed", regions=2, other="onnxruntime")
    with pytest.raises(NotExportable, match=r"for n=1 runs in onnxruntime.*--backend native"):
        export_model(mixed, tmp_path / "out")
    beside = PlannedSchedule(((0,), (1,)), "by hand", 1.0, 1.0, 2.0)
    scheduled = write_artifact(tmp_path / "scheduled", regions=2, schedule=beside)
    with pytest.raises(NotExportable, match=r"regions for n=1 run side by side.*Decide it again"):
        export_model(scheduled, tmp_path / "out")
    for name in ("Net", "1net", "a-b", "x" * 41, "é"):
        with pytest.raises(BadOption, match="lower-case"):
            export_model(path, tmp_path / "out", name)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(BadOption, match="It has files"):
        export_model(path, tmp_path / "full")
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_wrote(path: Path, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["export", str(path), "-o", str(tmp_path / "out"), "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told["name"] == "net" and told["buckets"] == 2 and told["weight_bytes"] > 64 * 40 * 4
    again = CliRunner().invoke(app, ["export", str(path), "-o", str(tmp_path / "out")])
    assert again.exit_code != 0 and "It has files" in again.output


def test_every_set_asks_for_what_it_needs() -> None:
    sets = library_sets(own_target(), portable=True)
    assert [each.name for each in sets][-1] == "x86_64" and sum(each.own for each in sets) == 1
    for better, worse in itertools.pairwise(sets):
        assert needed_instructions(better.isa) >= needed_instructions(worse.isa)
        assert better.runs != worse.runs


@pytest.mark.parametrize("text", ["x", 'a"b', "a\\b", "??/", "ä\n", "*/ }", ""])
def test_names_of_a_model_are_c_strings(text: str, tmp_path: Path) -> None:
    need("gcc")
    (file := tmp_path / "name.c").write_text(
        f"#include <stdio.h>\nint main(void) {{ fputs({quote(text)}, stdout); }}\n"
    )
    subprocess.run(["gcc", "-trigraphs", "-o", str(tmp_path / "name"), str(file)], check=True, capture_output=True)
    ran = subprocess.run([str(tmp_path / "name")], capture_output=True, check=True)
    assert ran.stdout.decode() == text
