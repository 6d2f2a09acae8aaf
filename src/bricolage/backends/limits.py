"""How libraries below several backends are kept to a device's instruction set."""

from __future__ import annotations

from bricolage.device.device import Device


def library_limits(device: Device) -> dict[str, str]:
    """Environment variables that keep PyTorch's own kernels and oneDNN to the device's instruction set."""
    match device.isa:
        case "avx2":
            return {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        case "avx512":
            return {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    return {}


def llvm_features(device: Device) -> str:
    """What LLVM is told to leave out of this very processor ("-avx512f": and all that needs it); empty without a limit."""
    return {"avx2": "-amx-tile,-avx512f", "avx512": "-amx-tile"}.get(device.isa, "")
