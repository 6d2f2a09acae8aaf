"""What libraries and compilers below several backends are told of a device's instruction set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.device.device import Device


def library_limits(device: Device) -> dict[str, str]:
    """Environment variables that keep PyTorch's own kernels and oneDNN to the device's instruction set."""
    match device.isa:
        case "avx2":
            return {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        case "avx512":
            return {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    return {}


LLVM_NAMES: Mapping[str, str] = {
    **{flag: flag for flag in ("ssse3", "popcnt", "cx16", "avx", "f16c", "fma", "avx2", "bmi2", "movbe", "avx512f")},
    **{flag: flag for flag in ("avx512cd", "avx512bw", "avx512dq", "avx512vl", "bf16", "i8mm", "sve", "sve2")},
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "lahf_lm": "sahf",
    "bmi1": "bmi",
    "abm": "lzcnt",
    "avx_vnni": "avxvnni",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "asimd": "neon",
    "asimddp": "dotprod",
}
"""Processor flags that LLVM may use, and its names for them. Those of matrix units are left out: no compiler here makes code for
them unasked, and a process has to ask the system for their registers first."""
_BASELINES = {"x86_64": "x86-64", "AMD64": "x86-64"}


@dataclass(frozen=True)
class LlvmTarget:
    """What LLVM is told of a processor: the architecture's baseline, and the features of this one. Never the processor's own
    name: that implies all features of the model, and a hypervisor may have taken some of it away."""

    cpu: str
    features: tuple[str, ...]
    """With a plus each, sorted."""

    def __str__(self) -> str:
        return f"{self.cpu},{','.join(self.features)}"


def llvm_target(device: Device) -> LlvmTarget:
    """For code that runs on a device: by its flags alone."""
    features = sorted(f"+{LLVM_NAMES[flag]}" for flag in device.instructions & LLVM_NAMES.keys())
    return LlvmTarget(_BASELINES.get(device.architecture, "generic"), tuple(features))
