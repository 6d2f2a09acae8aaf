"""A process whose processor is a 64-bit Arm one, as far as the native engine can tell.

    BRICOLAGE_ARM=neon,cortex-a53 python -m pytest -p benchmarks.arm.emulation tests/native -n 0

`emulate` says so to the engine: `device.host` describes the Arm processor, the compiler is the cross compiler, and each compiled
region runs in a QEMU of its own (`qemu-aarch64`), which gets inputs and sends outputs through pipes (`runner.c`). Everything in
front of that is the product's own code. QEMU says whether an answer is right, and stops an instruction that the processor lacks. It
says nothing about time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path

import numpy as np

from bricolage.backends.interface import RegionEnds, Resources, StaticKernel
from bricolage.backends.kernel import Array, Call
from bricolage.backends.native import engine, kernel_space, loaded_library, region_builder
from bricolage.base import scratch
from bricolage.base.cache import cache_directory
from bricolage.device import host
from bricolage.device.caches import Cache, Caches
from bricolage.errors import Refused
from bricolage.native.c import read_header
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.toolchain import LEVEL_VARIABLE
from bricolage.native.library_files import LIBRARY, TITLE, WEIGHTS, weights_header

ARM_VARIABLE = "BRICOLAGE_ARM"
"""Environment variable with an instruction set and, behind a comma, a processor of QEMU, where pytest loads this as a plugin."""
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
ROOT = Path("/usr/aarch64-linux-gnu")
"""Arm's C library, of Debian's package libc6-dev-arm64-cross."""
_RUNNER = Path(__file__).with_name("runner.c")
_ANSWERS = 3
"""File descriptor on which the runner answers: a library may print."""
SETS: Mapping[str, frozenset[str]] = {
    "neon": frozenset(["asimd"]),
    "dotprod": frozenset(["asimd", "asimddp"]),
    "i8mm": frozenset(["asimd", "asimddp", "i8mm", "bf16"]),
}
"""The engine's instruction sets, and the flags by which it chooses each, as Linux names them."""
PROCESSORS: Mapping[str, str] = {"neon": "cortex-a53", "dotprod": "neoverse-n1", "i8mm": "max"}
"""The smallest processor of QEMU 7.2 that has each set."""


class EmulatorEnded(Exception):
    """The emulated process ended in the middle of a run; the text says how."""


@dataclass(frozen=True)
class Processor:
    """What the engine is to take this machine for."""

    isa: str
    """One of `SETS`: the best that the engine may take."""
    model: str = ""
    """As QEMU names it; empty: the smallest that has the set."""

    @property
    def command(self) -> tuple[str, ...]:
        """That runs a program on it."""
        return (EMULATOR, "-cpu", self.model or PROCESSORS[self.isa], "-L", str(ROOT))


def find_lacking_tool() -> str:
    """The program or the package that is missing here; empty where all are there."""
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    return missing[0] if missing else "" if ROOT.is_dir() else "libc6-dev-arm64-cross"


@cache
def compile_runner() -> Path:
    """The program that runs in the emulator, compiled once for all processes."""
    text = f"{read_header('model')}\0{_RUNNER.read_text(encoding='utf-8')}"
    program = cache_directory() / "arm" / f"runner-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder, scratch.write_whole(program) as partial_file:
            (Path(folder) / "model.h").write_text(read_header("model"), encoding="utf-8")
            words = [COMPILER, "-O1", "-std=gnu11", f"-I{folder}", str(_RUNNER), "-o", str(partial_file), "-ldl"]
            subprocess.run(words, check=True)
        program.chmod(0o755)
    return program


def _flushes_subnormals() -> bool:
    """Whether this thread's floating-point mode does, which a run takes over."""
    smallest = np.array([1], np.uint32).view(np.float32)
    return not (smallest * np.float32(1)).view(np.uint32)[0]


_compile_library = toolchain.compile_library
_SHARED_LIBRARIES = 8


@lru_cache(_SHARED_LIBRARIES)
def _compile_once(text: str, flags: tuple[str, ...], variables: tuple[str, ...], objects: tuple[Path, ...]) -> bytes:
    """A compiled library. Of the `variables` the first is the level of this process, the second the title in a refusal."""
    with scratch.using(scratch.temporary()) as folder:
        _compile_library(text, flags, folder / LIBRARY, variables[-1], *objects)
        return (folder / LIBRARY).read_bytes()


def share_library(text: str, flags: tuple[str, ...], library: Path, title: str, *objects: Path) -> None:
    """As `toolchain.compile_library`; what this process just compiled with the same flags is not compiled again. Sets differ in
    products of bytes and of bfloat16 alone, so that most libraries are the same for all, and compiling takes most of the time."""
    library.write_bytes(_compile_once(text, flags, (str(toolchain.level()), title), objects))


class EmulatedLibrary:
    """A library that is open in an emulated process."""

    def __init__(self, processor: Processor, library: Path, weights: Path, name: str = "region") -> None:
        """Opens a library whose functions' names begin with `name`.

        Raises:
            Refused: it does not open; the reason is the library's.
            EmulatorEnded: the process ended before it said anything.
        """
        words = [*processor.command, str(compile_runner()), str(library), name, str(weights)]
        # The runner's own descriptor of answers, so that nothing that a library prints gets between them.
        move = ["sh", "-c", f'exec {_ANSWERS}>&1 1>&2; exec "$@"', "sh"]
        self._process = subprocess.Popen(
            [*move, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        code, size = struct.unpack("<iI", self._take(8))
        text = self._take(size).decode()
        if code:
            self.close()
            raise Refused(backend=TITLE, reason=text)
        self.instructions = text
        """The set that it runs."""

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], bucket: int = 0) -> None:
        """One run, which writes the outputs.

        Raises:
            EmulatorEnded: the process ended, by an instruction that the processor lacks or otherwise.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(struct.pack("<II", bucket, _flushes_subnormals()))
            for array in inputs:
                self._process.stdin.write(np.ascontiguousarray(array).tobytes())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        (code,) = struct.unpack("<i", self._take(4))
        if code:
            raise EmulatorEnded(f"the run answered {code}")
        for array in outputs:
            array.reshape(-1).view(np.uint8)[...] = np.frombuffer(self._take(array.nbytes), np.uint8)

    def close(self) -> int:
        """Ends the process; its exit code."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()

    def _take(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise self._ended()
        return data

    def _ended(self) -> EmulatorEnded:
        code = self._process.wait()
        return EmulatorEnded("an illegal instruction" if code in (-4, 132) else f"the process ended with {code}")


class EmulatedKernel(StaticKernel):
    """What `loaded_library.NativeKernel` is, in the emulator."""

    processor: Processor
    """Of this process."""

    def __init__(
        self,
        region: RegionEnds,
        folder: Path,
        resources: Resources,
        weights: np.ndarray | None = None,
        *,
        kept: bool = False,
    ) -> None:
        super().__init__(TITLE, region.inputs, region.outputs)
        del resources  # its threads are those that the library was made for
        self.kept = folder.name if kept else ""
        if weights is not None:
            (folder / WEIGHTS).write_bytes(weights_header(weights) + weights.tobytes())
        self._library = EmulatedLibrary(self.processor, folder / LIBRARY, folder / WEIGHTS)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return partial(self._library.run, tuple(inputs), tuple(outputs))


def emulate(processor: Processor, replace_attribute: Callable[[object, str, object], None] = setattr) -> None:
    """From here on this process's engine makes its libraries for an Arm processor and runs them there. `replace_attribute` sets an
    attribute of a module, as a test's `monkeypatch.setattr` does, which takes it back.

    Raises:
        Refused: a tool is missing.
    """
    lacking = find_lacking_tool()
    if lacking:
        raise Refused(backend=TITLE, reason=f"{lacking} is not here")
    described = replace(
        host.unlimited(),
        model=f"emulated {processor.model or PROCESSORS[processor.isa]}",
        instructions=SETS[processor.isa],
        architecture="aarch64",
        caches=Caches((Cache(1, 64 << 10), Cache(2, 1 << 20))),
    )
    kernel = type("EmulatedKernel", (EmulatedKernel,), {"processor": processor})
    changes: list[tuple[object, str, object]] = [
        (host, "_whole", lambda threads: replace(described, cores=tuple(range(threads)))),
        *((module, "NativeKernel", kernel) for module in (loaded_library, engine, kernel_space, region_builder)),
        (toolchain, "compiler", lambda: (COMPILER,)),
        (toolchain, "compile_library", share_library),
        # What these keep is of the compiler that was there before.
        (toolchain, "compiler_version", cache(toolchain.compiler_version.__wrapped__)),
        (engine, "_generation", cache(engine._generation.__wrapped__)),
    ]
    for module, attribute, value in changes:
        replace_attribute(module, attribute, value)


@contextmanager
def optimise_less() -> Iterator[None]:
    """Libraries compiled meanwhile have the compiler's first level, in half of the time, unless the environment names one."""
    if LEVEL_VARIABLE in os.environ:
        yield
        return
    os.environ[LEVEL_VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[LEVEL_VARIABLE]


if os.environ.get(ARM_VARIABLE):
    emulate(Processor(*os.environ[ARM_VARIABLE].split(",")))
