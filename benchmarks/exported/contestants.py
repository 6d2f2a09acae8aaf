"""Programs of `benchmarks.exported`: how each is built and called."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from benchmarks.as_it_comes import Model

_PROGRAMS = Path(__file__).with_name("programs")
_COUNTED = ("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "mmap")
_NAME = "model"


class NotBuilt(Exception):
    """A contestant cannot be built, or ended with an error."""


@dataclass(frozen=True, eq=False)
class Contestant:
    """How a program is called: its command, then the folder, the threads, and `words`."""

    name: str
    command: tuple[str, ...]
    words: tuple[str, ...]
    code_bytes: int = 0
    exported: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def write_addition(folder: Path) -> Model:
    """A model that adds 1 to a number."""
    text = '<ir_version: 10, opset_import: ["" : 17]> net (float[1] x) => (float[1] y) <float one = {1.0}> { y = Add (x, one) }'
    onnx.save(onnx.parser.parse_model(text), path := folder / "addition.onnx")
    return Model("addition", path, {"x": np.full(1, 2, np.float32)})


def python_contestant(artifact: Path) -> Contestant:
    """The plan in Python."""
    return Contestant("python", (sys.executable, "-m", "benchmarks.exported.in_python"), (str(artifact),))


def exported_contestants(artifact: Path, folder: Path, *, weigh: bool) -> tuple[Contestant, Contestant]:
    """With weights that are copied, and mapped. Exports an artifact, builds the static library with its own CMake files, and links
    the program with it. To `weigh` the code, the shared library is built as well.

    Raises:
        NotBuilt: it is refused, or does not build.
    """
    sources, build = folder / "exported", folder / "build"
    _call([sys.executable, "-m", "bricolage.cli.main", "export", str(artifact), "-o", str(sources), "--name", _NAME])
    _call(["cmake", "-S", str(sources), "-B", str(build)])
    _call(["cmake", "--build", str(build), "-j2"])
    program = folder / "exported_program"
    wrapped = [f"-Wl,--wrap={name}" for name in _COUNTED]
    names = [f"-DMODEL={_NAME}", f'-DMODEL_HEADER="{_NAME}.h"', f"-I{sources / 'include'}", f"-I{_PROGRAMS}"]
    library = str(build / f"lib{_NAME}.a")
    _call(
        ["cc", "-O2", *names, str(_PROGRAMS / "exported.c"), library, *wrapped, "-lm", "-pthread", "-o", str(program)]
    )
    code_bytes = _weigh_shared_library(sources, folder) if weigh else 0
    weights = str(sources / "share" / _NAME)
    copied, mapped = (
        Contestant(name, (str(program),), (weights, word), code_bytes, exported=True)
        for name, word in (("exported", "copied"), ("exported, mapped", "mapped"))
    )
    return copied, mapped


def _weigh_shared_library(sources: Path, folder: Path) -> int:
    """Bytes of the stripped shared library."""
    build = folder / "build-shared"
    _call(["cmake", "-S", str(sources), "-B", str(build), "-DBUILD_SHARED_LIBS=ON"])
    _call(["cmake", "--build", str(build), "-j2"])
    shared = next(path for path in build.glob(f"lib{_NAME}.so*") if not path.is_symlink())
    _call(["strip", str(shared)])
    return shared.stat().st_size


def peers(model: Path, folder: Path, onnxruntime_include: Path | None, threads: int) -> list[Contestant]:
    """ONNX Runtime and OpenVINO, each with the file as it comes and with what it keeps for a faster start.

    Raises:
        NotBuilt: a program does not build.
    """
    contestants = []
    if onnxruntime_include is not None and importlib.util.find_spec("onnxruntime") is not None:
        contestants += _onnxruntime(model, folder, onnxruntime_include, threads)
    if importlib.util.find_spec("openvino") is not None:
        contestants += _openvino(model, folder)
    return contestants


def _onnxruntime(model: Path, folder: Path, include: Path, threads: int) -> list[Contestant]:
    import onnxruntime

    libraries = Path(onnxruntime.__file__).parent / "capi"
    library = next(libraries.glob("libonnxruntime.so*"))
    # The wheel's file has not the name by which a program looks for it.
    (linked := folder / "libonnxruntime.so.1").symlink_to(library)
    program = _build_peer("onnxruntime", folder, [f"-I{include}", str(linked), f"-Wl,-rpath,{folder.resolve()}"])
    options, kept = onnxruntime.SessionOptions(), folder / "optimised.onnx"
    options.optimized_model_filepath, options.intra_op_num_threads = str(kept), threads
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.data")
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    size = library.stat().st_size
    return [
        Contestant("onnxruntime", (program,), (str(model), "all"), size),
        Contestant("onnxruntime, optimised file", (program,), (str(kept), "none"), size),
    ]


def _openvino(model: Path, folder: Path) -> list[Contestant]:
    import openvino

    package = Path(openvino.__file__).parent
    libraries = package / "libs"
    library = next(libraries.glob("libopenvino_c.so*"))
    words = [f"-I{package / 'include'}", str(library), f"-Wl,-rpath,{libraries}"]
    program = _build_peer("openvino", folder, [*words, f"-Wl,-rpath-link,{libraries}"])
    parts = (
        "libopenvino.so",
        "libopenvino_c.so",
        "libopenvino_intel_cpu_plugin.so",
        "libopenvino_onnx_frontend.so",
        "libtbb.so",
    )
    size = sum(file.stat().st_size for part in parts for file in libraries.glob(f"{part}*") if not file.is_symlink())
    return [
        Contestant("openvino", (program,), (str(model), "none"), size),
        Contestant("openvino, cached", (program,), (str(model), str(folder / "openvino-cache")), size),
    ]


def _build_peer(name: str, folder: Path, words: Sequence[str]) -> str:
    program = folder / f"{name}_program"
    _call(["cc", "-O2", "-w", f"-I{_PROGRAMS}", str(_PROGRAMS / f"{name}.c"), *words, "-o", str(program)])
    return str(program)


def _call(command: Sequence[str]) -> None:
    """Runs a command.

    Raises:
        NotBuilt: it failed; the text is its last line.
    """
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NotBuilt(((ran.stderr or ran.stdout).strip().splitlines() or ["it failed"])[-1])
