"""The C compiler: which one there is, and shared libraries made with it."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from bricolage.base import scratch
from bricolage.base.cache import cache_directory
from bricolage.device.arm_cores import ARM64
from bricolage.errors import Refused

FLAGS = (
    "-std=gnu11",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    "-fopenmp-simd",
    "-w",
)
_LONGEST_REASON = 300


FORCED_COMPILER_VARIABLE = "BRICOLAGE_NATIVE_CC"
"""Environment variable that forces one of `COMPILERS`, for tests of the generated code with another compiler."""
COMPILERS = ("cc", "gcc", "clang", "zig")
"""In the order in which they are looked for; the last is Clang from the `ziglang` wheel."""
LEVEL_VARIABLE = "BRICOLAGE_NATIVE_LEVEL"
"""Environment variable with how much the compiler optimises (0 to 3), for tests that compile much and time nothing."""
_LEVELS = ("0", "1", "2", "3")
_ZIG_BASELINE = {
    **dict.fromkeys(("x86_64", "AMD64"), ("-march=x86_64",)),
    **dict.fromkeys(ARM64, ("-mcpu=generic",)),
}
"""Without it, Zig's compiler takes all that the processor it runs on has; `Isa.flags` say what may be taken."""
_ARM_ARCHITECTURE = re.compile(r"-march=armv8(?:\.\d)?-a((?:\+\w+)*)")
"""Zig's compiler knows names of cores only, and features behind them."""


@cache
def compiler() -> tuple[str, ...] | None:
    """The command that compiles C: the system's compiler, or the one in the `ziglang` wheel; the forced one, if one is."""
    forced = os.environ.get(FORCED_COMPILER_VARIABLE)
    for name in (forced,) if forced else COMPILERS:
        if name == "zig" and importlib.util.find_spec("ziglang"):
            return (sys.executable, "-m", "ziglang", "cc", *_ZIG_BASELINE.get(platform.machine(), ()))
        if name != "zig" and name in COMPILERS and shutil.which(name):
            return (name,)
    return None


def spell_for_zig(flags: Iterable[str]) -> tuple[str, ...]:
    """Flags of GCC and Clang as Zig's compiler takes them: Arm's architectures by their features."""
    return tuple(_ARM_ARCHITECTURE.sub(r"-mcpu=generic\1", flag) for flag in flags)


@cache
def compiler_version() -> str | None:
    """First line of what the compiler says about itself; None when there is none or it is broken."""
    command = compiler()
    if command is None:
        return None
    try:
        ran = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=30, check=True, encoding="utf-8"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.splitlines()[0] if ran.stdout else None


def level() -> str | None:
    """The flag that says how much the compiler optimises; None where the variable names no level."""
    wanted = os.environ.get(LEVEL_VARIABLE, _LEVELS[-1])
    return f"-O{wanted}" if wanted in _LEVELS else None


def compile_library(text: str, flags: tuple[str, ...], library: Path, title: str, *objects: Path) -> None:
    """Compiles `text` to a shared library, with compiled objects. The C lies in the same folder.

    Raises:
        Refused: there is no compiler, or it does not take the text, which is then kept in the cache folder for a report.
    """
    behind = (*map(str, objects), "-lm")
    _compile(text, library.with_suffix(".c"), ("-shared", *flags, "-o", str(library)), behind, title)


_UNKEPT: dict[str, Path] = {}
"""Shared objects of this process where the cache folder cannot be written, by the digest of what they are made of."""


def compile_shared_object(text: str, title: str) -> Path:
    """Compiles what many libraries share. It is kept in the cache folder; where that cannot be written, as long as the process. A
    cache folder that was emptied meanwhile, or another compiler or level, has it compiled again.

    Raises:
        Refused: as `compile_library`.
    """
    words = "\0".join([text, compiler_version() or "", *FLAGS, level() or ""])
    digest = hashlib.sha256(words.encode()).hexdigest()[:16]
    kept = cache_directory() / "shared" / f"{digest}.o"
    if kept.exists():
        return kept
    if digest in _UNKEPT:
        return _UNKEPT[digest]
    folder = scratch.temporary()
    compiled = folder / kept.name
    _compile(text, compiled.with_suffix(".c"), ("-c", "-o", str(compiled)), (), title)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with scratch.write_whole(kept) as partial:
            shutil.copyfile(compiled, partial)
    except OSError:
        atexit.register(scratch.remove, folder)
        return _UNKEPT.setdefault(digest, compiled)
    scratch.remove(folder)
    return kept


class Objects:
    """A folder of compiled functions: what a library shares with an earlier one is not compiled again."""

    def __init__(self, folder: Path, jobs: int) -> None:
        """`jobs` compilers run at a time."""
        self._folder, self._jobs = folder, jobs
        self._failed: dict[str, Refused] = {}

    def add(self, texts: Mapping[str, str], flags: tuple[str, ...], title: str) -> dict[str, Refused]:
        """Compiles what is not there yet, by name; answers why those that do not compile do not."""

        def compile_object(name: str) -> None:
            arguments = ("-c", "-fvisibility=hidden", *flags, "-o", str(self._object(name)))
            try:
                _compile(texts[name], self._folder / f"{name}.c", arguments, (), title)
            except Refused as error:
                self._failed[name] = error

        missing = [name for name in texts if not self._object(name).exists() and name not in self._failed]
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(compile_object, missing))
        return {name: self._failed[name] for name in texts if name in self._failed}

    def link(
        self, main: str, names: Iterable[str], flags: tuple[str, ...], library: Path, title: str, *shared: Path
    ) -> None:
        """A shared library of compiled functions, of what libraries share, and of the text that calls them.

        Raises:
            Refused: it does not compile.
        """
        objects = [*map(str, shared), *(str(self._object(name)) for name in names)]
        _compile(main, library.with_suffix(".c"), ("-shared", *flags, "-o", str(library)), (*objects, "-lm"), title)

    def _object(self, name: str) -> Path:
        return self._folder / f"{name}.o"


def _compile(text: str, source: Path, before: tuple[str, ...], behind: tuple[str, ...], title: str) -> None:
    """Compiles `text`, with arguments before it and behind it.

    Raises:
        Refused: as `compile_library`.
    """
    command = compiler()
    if command is None:
        raise Refused(backend=title, reason="there is no C compiler")
    optimised = level()
    if optimised is None:
        raise Refused(backend=title, reason=f"{LEVEL_VARIABLE} is none of {', '.join(_LEVELS)}")
    source.write_text(text, encoding="utf-8")
    before = spell_for_zig(before) if "ziglang" in command else before
    arguments = [*command, *FLAGS, optimised, *before, str(source), *behind]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, encoding="utf-8")
    if ran.returncode != 0:
        # Not next to the library: that folder goes when nothing came of it.
        kept = cache_directory() / "failed" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.c"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, encoding="utf-8")
        # Of a linker the first line says what is wrong; the last one, with the word, that something is.
        lines = [line for line in ran.stderr.splitlines() if line.strip()] or [f"it ended with {ran.returncode}"]
        message = next((line for line in lines if "error" in line and "ld returned" not in line), lines[0])
        message = message[:_LONGEST_REASON]
        raise Refused(
            backend=title, reason=f"{command[0]} does not compile the generated C (kept in {kept}): {message}"
        )
