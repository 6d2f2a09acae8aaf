"""What backends are told of the instruction set that a device is kept to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.isa_limits import library_limits, llvm_target
from bricolage.device.device import Device
from bricolage.device.host import host

TOLD = ("torch", "inductor", "openvino")


@pytest.fixture
def device() -> Device:
    """One that has more than any limit."""
    instructions = frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
    return replace(host(), instructions=instructions, isa="")


def test_without_a_limit_nobody_is_told_anything(device: Device) -> None:
    for name in (*TOLD, "xla"):
        told = registry.get(name).environment(Resources(threads=2, device=device))
        assert not {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "XLA_FLAGS", "TORCHINDUCTOR_CPP_MARCH"} & told.keys()
    assert library_limits(device) == {}


@pytest.mark.parametrize(("isa", "onednn"), [("avx2", "AVX2"), ("avx512", "AVX512_CORE_BF16")])
def test_everybody_is_told_the_limit(isa: str, onednn: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=there")
    resources = Resources(threads=2, device=device.kept_to(isa))
    for name in TOLD:
        assert registry.get(name).environment(resources)["ONEDNN_MAX_CPU_ISA"] == onednn
    flags = registry.get("xla").environment(resources)["XLA_FLAGS"].split()
    assert flags[0] == "--xla_dump_to=there" and flags[1].startswith(f"--xla_cpu_max_isa={isa.upper()}")
    assert ("+avx512f" in llvm_target(resources.device).features) == (isa == "avx512")


@pytest.mark.parametrize("name", TOLD)
def test_bfloat16_is_offered_where_the_limit_leaves_it(name: str, device: Device) -> None:
    def offered(device: Device) -> bool:
        return any(config.name.startswith("bf16") for config in registry.get(name).configs("medium", device))

    assert offered(device.kept_to("avx512")) and not offered(device.kept_to("avx2"))
