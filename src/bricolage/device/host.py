"""The processor that this process runs on, read in one place."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from bricolage.base.options import available_cores, default_isa
from bricolage.device.arm_cores import ARM64, fastest_core, name_cores, read_cores, read_features
from bricolage.device.caches import host_caches
from bricolage.device.device import GENERAL_FLAGS, Device, Peaks, lanes
from bricolage.device.memory import total_bytes

_KNOWN = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip
"""The processor flags that kernels are chosen by, as Linux names them (x86-64 and 64-bit ARM)."""
_NUMPY_NAMES = {
    "ssse3": "SSSE3", "sse4_1": "SSE41", "sse4_2": "SSE42", "popcnt": "POPCNT", "avx": "AVX", "f16c": "F16C", "fma": "FMA3",
    "avx2": "AVX2", "bmi1": "BMI", "bmi2": "BMI2", "movbe": "MOVBE", "abm": "LZCNT",
    "avx512f": "AVX512F", "avx512cd": "AVX512CD", "avx512bw": "AVX512BW", "avx512dq": "AVX512DQ", "avx512vl": "AVX512VL",
    "avx512_vnni": "AVX512VNNI", "avx512_bf16": "AVX512BF16", "avx512_fp16": "AVX512FP16",
}  # fmt: skip
"""Processor flags as numpy names them, which asks the processor itself."""
_APPLE_FEATURES = {"DotProd": "asimddp", "I8MM": "i8mm", "BF16": "bf16"}
"""Processor flags by macOS's names for what Arm calls a feature."""
_CPUINFO = Path("/proc/cpuinfo")
_TOPOLOGY = Path("/sys/devices/system/cpu")
_NOMINAL_GHZ = 2.5
_NOMINAL_GBYTES = 10.0
_PRODUCTS_A_CYCLE = 2
"""Fused multiply-adds that a core starts in a cycle."""


def host() -> Device:
    """The whole processor as this process may use it: its affinity mask, and the instruction set of `$BRICOLAGE_ISA`.

    Raises:
        BadOption: that variable names no instruction set.
    """
    return unlimited().kept_to(default_isa())


def select_device(isa: str, cores: Sequence[int] | None = None) -> Device:
    """The part of the processor that a user names: kept to an instruction set (all where it is empty), on some cores.

    Raises:
        BadOption: there is no such instruction set, or no such core.
    """
    whole = unlimited().kept_to(isa)
    return whole if cores is None else whole.group(cores)


def unlimited() -> Device:
    """The same with every instruction that the processor has, whatever the environment says."""
    return _whole(available_cores())


@contextmanager
def bound_to(device: Device) -> Iterator[None]:
    """Where the device is a group of cores: within it the calling thread, and every thread that it starts, runs on them;
    afterwards where it ran before. Does nothing for a whole processor, and where the system binds no threads (macOS)."""
    if not device.is_group or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    if before == set(device.cores):
        yield
        return
    os.sched_setaffinity(0, device.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def current_core() -> int | None:
    """Number of the logical processor on which the calling thread is; None where the system does not say."""
    find = _getcpu()
    core = -1 if find is None else find()
    return core if core >= 0 else None


@cache
def _getcpu() -> Callable[[], int] | None:
    getcpu = getattr(ctypes.CDLL(None), "sched_getcpu", None) if platform.system() == "Linux" else None
    return getcpu if getcpu is None else lambda: int(getcpu())


@cache
def _whole(threads: int) -> Device:
    facts = cpuinfo(_CPUINFO)
    is_arm = platform.machine() in ARM64
    # In an emulator Linux's table is another processor's: what it says counts where it is of this kind.
    arm_cores = read_cores(_TOPOLOGY, _read_cpuinfo()) if is_arm else ()
    facts = facts if not is_arm or arm_cores else {}
    flags = set(facts.get("flags", facts.get("features", "")).split()) or _sysctl_flags()
    flags = set(read_features()) or flags if is_arm else flags
    instructions = usable_flags(flags & {*_KNOWN, *GENERAL_FLAGS}, _numpy_features())
    core = fastest_core(arm_cores)
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else tuple(range(threads))
    return Device(
        name="cpu",
        kind="cpu",
        model=name_cores(arm_cores) or model_name(facts),
        instructions=instructions,
        cores=cores,
        physical_cores=count_physical_cores() or os.cpu_count() or 1,
        memory_bytes=total_bytes(),
        peaks=nominal_peaks(
            instructions,
            len(cores),
            float(facts.get("cpu mhz", 0) or 0) / 1e3 or _highest_ghz() or _NOMINAL_GHZ,
            _PRODUCTS_A_CYCLE if core is None else core.products_a_cycle,
        ),
        caches=host_caches(),
        system=platform.system(),
        architecture=platform.machine(),
    )


def count_physical_cores() -> int | None:
    """Cores of the machine, each counted once, however many threads it runs at a time; None where the system does not say."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        siblings = {path.read_text(encoding="ascii").strip() for path in _TOPOLOGY.glob(f"cpu[0-9]*/topology/{name}")}
        if siblings:
            return len(siblings)
    packages = dict(_read_packages())
    if packages:
        return sum(packages.values())
    import psutil  # here: Linux says it in files, and what runs artifacts does without

    return psutil.cpu_count(logical=False)  # type: ignore[no-any-return]


def _read_packages() -> Iterator[tuple[int, int]]:
    """The package of each of Linux's processors, by number, and how many cores that has."""
    for section in _read_cpuinfo().split("\n\n"):
        facts = {name.strip(): value for name, _, value in (line.partition(":") for line in section.splitlines())}
        if {"physical id", "cpu cores"} <= facts.keys():
            yield int(facts["physical id"]), int(facts["cpu cores"])


def usable_flags(flags: set[str], seen: Mapping[str, bool]) -> frozenset[str]:
    """Those of the system's processor flags that this process can use. In an emulator `/proc/cpuinfo` tells of the real processor.

    Args:
        flags: as Linux names them.
        seen: what the processor itself answers, as numpy names it; what it does not name is believed.
    """
    usable = {flag for flag in flags if seen.get(_NUMPY_NAMES.get(flag, ""), True)}
    return frozenset(usable if "avx512f" in usable or "avx512f" not in flags else {f for f in usable if f[:3] != "amx"})


def _numpy_features() -> Mapping[str, bool]:
    """What the processor answered numpy, but for what numpy was told to leave out: that says nothing of the processor."""
    features = getattr(getattr(getattr(np, "_core", None), "_multiarray_umath", None), "__cpu_features__", {})
    left_out = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").replace(",", " ").split()
    return {name: there for name, there in features.items() if name not in left_out}


def nominal_peaks(
    instructions: frozenset[str], cores: int, ghz: float, products_a_cycle: int = _PRODUCTS_A_CYCLE
) -> Peaks:
    """What cores of that clock do at best by their vector width: enough to rank work, no measurement."""
    return Peaks(2.0 * products_a_cycle * lanes(instructions) * ghz * cores, _NOMINAL_GBYTES)


def _highest_ghz() -> float:
    """Highest clock of the processors, as Linux's frequency scaling has it; 0 where it says none."""
    try:
        return max(
            (int(p.read_text(encoding="ascii")) / 1e6 for p in _TOPOLOGY.glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq")),
            default=0.0,
        )
    except (OSError, ValueError):
        return 0.0


def _read_cpuinfo() -> str:
    try:
        return _CPUINFO.read_text(errors="replace", encoding="utf-8")
    except OSError:
        return ""


def cpuinfo(path: Path) -> dict[str, str]:
    """Fields of the first processor in Linux's cpuinfo, names in lower case; empty elsewhere."""
    try:
        text = path.read_text(errors="replace", encoding="utf-8")
    except OSError:
        return {}
    facts: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        facts[name.strip().lower()] = value.strip()
    return facts


def model_name(facts: dict[str, str]) -> str:
    """Model name; where the system gives a brand only (virtual machines do), family and model tell it apart."""
    name = facts.get("model name") or _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()
    numbers = [facts[field] for field in ("cpu family", "model", "stepping") if field in facts]
    return f"{name} (family {'/'.join(numbers)})" if numbers else name


def _sysctl(name: str) -> str:
    """A value of macOS's sysctl; empty elsewhere."""
    if platform.system() != "Darwin":
        return ""
    completed = subprocess.run(
        ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False, timeout=5, encoding="utf-8"
    )
    return completed.stdout.strip()


def _sysctl_flags() -> set[str]:
    """Instruction sets on macOS; every 64-bit Arm processor has asimd."""
    if platform.machine() in ARM64:
        words = {f"hw.optional.arm.FEAT_{feature}": flag for feature, flag in _APPLE_FEATURES.items()}
        return {"asimd", *(flag for name, flag in words.items() if _sysctl(name) == "1")}
    return set(f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}".lower().split())
