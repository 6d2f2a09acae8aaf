"""Any program, with all that it starts, as if this were a smaller processor.

    python -m benchmarks.processor                        which processors this one can be taken for
    python -m benchmarks.processor avx2 -- COMMAND ...

Linux lets the instruction CPUID fault. A preloaded library (`processor.c`) answers it, and `/proc/cpuinfo`, without the features
that the smaller processor lacks. Libraries that choose their code by CPUID (ONNX Runtime, OpenVINO, oneDNN, LLVM, numpy,
`gcc -march=native`) then run what they would run there. The model's name says so ("... as avx2"), so that figures do.

Three things it cannot do. It stops no instruction that the smaller processor lacks: what is executed unasked runs. XGETBV does
not fault, so it tells of registers that CPUID denies. Programs that the C library's loader does not start (statically linked
ones) see the real processor.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.base.cache import cache_directory
from bricolage.device.host import cpuinfo
from bricolage.errors import BricolageError, UsageError
from bricolage.native.cpu.toolchain import compile_library

PROCESSOR_VARIABLE = "BRICOLAGE_PROCESSOR"
"""Environment variable with the name of the processor that this process, and all that it starts, is to take this one for."""
_CPUID_VARIABLE, _FLAGS_VARIABLE = "BRICOLAGE_PROCESSOR_CPUID", "BRICOLAGE_PROCESSOR_FLAGS"
_SOURCE = Path(__file__).with_name("processor.c")

_FEATURES: Mapping[str, str] = {
    "fma": "1.0.c.12", "movbe": "1.0.c.22", "xsave": "1.0.c.26", "osxsave": "1.0.c.27", "avx": "1.0.c.28", "f16c": "1.0.c.29",
    "bmi1": "7.0.b.3", "avx2": "7.0.b.5", "bmi2": "7.0.b.8", "avx512f": "7.0.b.16", "avx512dq": "7.0.b.17",
    "avx512ifma": "7.0.b.21", "avx512cd": "7.0.b.28", "avx512bw": "7.0.b.30", "avx512vl": "7.0.b.31",
    "avx512vbmi": "7.0.c.1", "avx512_vbmi2": "7.0.c.6", "gfni": "7.0.c.8", "vaes": "7.0.c.9", "vpclmulqdq": "7.0.c.10",
    "avx512_vnni": "7.0.c.11", "avx512_bitalg": "7.0.c.12", "avx512_vpopcntdq": "7.0.c.14",
    "avx512_vp2intersect": "7.0.d.8", "amx_bf16": "7.0.d.22", "avx512_fp16": "7.0.d.23", "amx_tile": "7.0.d.24",
    "amx_int8": "7.0.d.25",
    "sha512": "7.1.a.0", "sm3": "7.1.a.1", "sm4": "7.1.a.2", "avx_vnni": "7.1.a.4", "avx512_bf16": "7.1.a.5",
    "amx_fp16": "7.1.a.21", "avx_ifma": "7.1.a.23",
    "avx_vnni_int8": "7.1.d.4", "avx_ne_convert": "7.1.d.5", "amx_complex": "7.1.d.8", "avx_vnni_int16": "7.1.d.10",
    "avx10": "7.1.d.19", "apx": "7.1.d.21",
    "abm": "80000001.0.c.5", "xop": "80000001.0.c.11", "fma4": "80000001.0.c.16",
}  # fmt: skip
"""Processor flags, as Linux names them, and where CPUID tells of them: leaf, sub-leaf, register, bit (Intel's Software Developer's
Manual, volume 2A, CPUID)."""
_LEAVES: Mapping[str, Sequence[str]] = {
    "avx": ("d.0.a=4",),
    "avx512f": ("d.0.a=e0",),
    "amx_tile": ("d.0.a=60000", "d.1.a=10", *(f"{leaf}.*.{r}=ffffffff" for leaf in ("1d", "1e") for r in "abcd")),
    "avx10": tuple(f"24.*.{r}=ffffffff" for r in "abcd"),
}
"""What else goes with a flag: bits of the registers' state that the system saves (leaf d), of tiles. The sizes of that state stay:
who saves all that XGETBV tells of, which is the truth, needs them."""
_GLIBC_NAMES = (
    "AVX", "AVX2", "FMA", "FMA4", "F16C", "AVX512F", "AVX512VL", "AVX512BW", "AVX512DQ", "AVX512CD", "AVX512_VNNI", "AVX512_BF16",
    "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16",
)  # fmt: skip
"""The C library's loader asks CPUID before any library is there, and is told by a variable of its own."""

_AMX = ("amx_bf16", "amx_tile", "amx_int8", "amx_fp16", "amx_complex")
_AFTER_AVX512 = (
    *_AMX, "avx512_fp16", "avx512_bf16", "avx512_vp2intersect", "avx10", "apx", "sha512", "sm3", "sm4",
    "avx_vnni", "avx_ifma", "avx_vnni_int8", "avx_ne_convert", "avx_vnni_int16",
)  # fmt: skip
_ICE_LAKE = (
    "avx512ifma",
    "avx512vbmi",
    "avx512_vbmi2",
    "gfni",
    "vaes",
    "vpclmulqdq",
    "avx512_bitalg",
    "avx512_vpopcntdq",
)
_AVX512 = ("avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")


@dataclass(frozen=True)
class Processor:
    """A smaller processor than this one may be."""

    words: str
    needs: Sequence[str]
    """Flags that it has and that this one must have."""
    lacks: Sequence[str]
    """Flags that are hidden where this one has them."""


_BEYOND_AVX2 = (*_AFTER_AVX512, *_ICE_LAKE, *_AVX512, "avx512_vnni")
PROCESSORS: Mapping[str, Processor] = {
    "sse": Processor(
        "SSE 4.2, no AVX (Nehalem)",
        ("sse4_2",),
        (
            "fma",
            "f16c",
            "avx",
            "avx2",
            "movbe",
            "bmi1",
            "bmi2",
            "abm",
            "xsave",
            "osxsave",
            "xop",
            "fma4",
            *_BEYOND_AVX2,
        ),
    ),
    "avx2": Processor("AVX2, FMA and F16C (Haswell)", ("avx2", "fma", "f16c"), _BEYOND_AVX2),
    "avx-vnni": Processor(
        "AVX2 and AVX-VNNI, no AVX-512 (Alder Lake)",
        ("avx2", "fma", "f16c", "avx_vnni"),
        tuple(flag for flag in _BEYOND_AVX2 if flag not in ("avx_vnni", "gfni", "vaes", "vpclmulqdq")),
    ),
    "avx512": Processor("AVX-512 F, CD, BW, DQ and VL (Skylake)", _AVX512, (*_AFTER_AVX512, *_ICE_LAKE, "avx512_vnni")),
    "avx512-vnni": Processor(
        "AVX-512 with VNNI, no bfloat16 (Cascade Lake)", (*_AVX512, "avx512_vnni"), (*_AFTER_AVX512, *_ICE_LAKE)
    ),
    "no-amx": Processor("all that this one has but AMX", _AVX512, _AMX),
}
"""By name. Each is what some real processor is, as far as kernels are chosen by it."""


def missing(name: str) -> str | None:
    """Why this machine cannot be taken for a processor; None where it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "CPUID can be made to fault by Linux on x86-64 alone"
    flags = set(_facts().get("flags", "").split())
    if current() not in ("", name):
        return f"this process takes it for '{current()}' already"
    if "cpuid_fault" not in flags:
        return "neither this processor nor its hypervisor lets CPUID fault (no flag cpuid_fault in /proc/cpuinfo)"
    absent = [flag for flag in PROCESSORS[name].needs if flag not in flags]
    return f"it has no {', '.join(absent)} itself" if absent else None


def current() -> str:
    """Name of the processor that this process takes this one for, as `/proc/cpuinfo` tells it; empty for what it is."""
    name = os.environ.get(PROCESSOR_VARIABLE, "")
    return name if name and _facts().get("model name", "").endswith(f" as {name}") else ""


def _facts() -> Mapping[str, str]:
    return cpuinfo(Path("/proc/cpuinfo"))


def masked(name: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables under which a program, and all that it starts, takes this machine for a processor.

    Raises:
        UsageError: this machine does not allow it.
        Refused: there is no C compiler.
    """
    reason = missing(name)
    if reason:
        raise UsageError(message=f"This machine cannot be taken for the processor '{name}': {reason}")
    lacks = PROCESSORS[name].lacks
    cpuid = [f"{where}={1 << int(bit):x}" for where, _, bit in (_FEATURES[flag].rpartition(".") for flag in lacks)]
    cpuid += [leaf for flag in lacks for leaf in _LEAVES.get(flag, ())]
    hwcaps = [f"-{known}" for known in _GLIBC_NAMES if known.lower() in lacks]
    tunables = [part for part in variables.get("GLIBC_TUNABLES", "").split(":") if part and "cpu.hwcaps" not in part]
    return {
        **variables,
        PROCESSOR_VARIABLE: name,
        _CPUID_VARIABLE: ",".join(cpuid),
        _FLAGS_VARIABLE: " ".join(lacks),
        "LD_PRELOAD": " ".join([str(_library()), *variables.get("LD_PRELOAD", "").split()]),
        "GLIBC_TUNABLES": ":".join([*tunables, "glibc.cpu.hwcaps=" + ",".join(hwcaps)]),
    }


def _library() -> Path:
    """The preloaded library; compiled once.

    Raises:
        UsageError: the loader does not take its path.
        Refused: there is no C compiler.
    """
    text = _SOURCE.read_text(encoding="utf-8")
    library = cache_directory() / "processor" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    if any(sign in str(library) for sign in " :"):
        raise UsageError(
            message=f"The loader takes no path with a space or a colon, and the cache is '{library.parent}'"
        )
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            compile_library(text, ("-Wl,-z,initfirst",), made, "processor")
            made.replace(library)
    return library


def main(given: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processor", description=__doc__.partition("\n")[0])
    parser.add_argument("processor", nargs="?", choices=PROCESSORS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    chosen = parser.parse_args(given)
    if chosen.processor is None:
        for name, processor in PROCESSORS.items():
            print(f"{name:12} {processor.words}: {missing(name) or 'yes'}")
        return 0
    command = chosen.command[chosen.command[:1] == ["--"] :]
    if not command:
        parser.error("which command? Give it after --")
    try:
        os.execvpe(command[0], command, masked(chosen.processor, os.environ))
    except (BricolageError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
