"""What backends may use of the processor."""

from __future__ import annotations

import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.iree_compile import processor
from bricolage.device import isa as features
from bricolage.device import machine as hardware
from bricolage.device.isa import ISA_VARIABLE
from bricolage.errors import UsageError

TOLD = ("torch", "inductor", "openvino")


def limited(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv(ISA_VARIABLE, limit)
    monkeypatch.setattr(features, "processor_flags", lambda: frozenset(["avx2", "avx512f", "avx512_bf16", "amx_bf16"]))


def test_without_a_limit_nobody_is_told_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    for name in (*TOLD, "xla"):
        told = registry.get(name).environment(Resources(threads=2))
        assert not {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "XLA_FLAGS", "TORCHINDUCTOR_CPP_MARCH"} & told.keys()
    assert features.llvm_features() == "" and processor().endswith("=host")
    assert not features.beyond_limit()


@pytest.mark.parametrize(("limit", "onednn"), [("avx2", "AVX2"), ("avx512", "AVX512_CORE_BF16")])
def test_everybody_is_told_the_limit(limit: str, onednn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, limit)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=there")
    for name in TOLD:
        assert registry.get(name).environment(Resources(threads=2))["ONEDNN_MAX_CPU_ISA"] == onednn
    flags = registry.get("xla").environment(Resources(threads=2))["XLA_FLAGS"].split()
    assert flags[0] == "--xla_dump_to=there" and flags[1].startswith(f"--xla_cpu_max_isa={limit.upper()}")
    assert ("-avx512f" in features.llvm_features()) == (limit == "avx2")
    assert "x86-64-v" in processor()


def test_bfloat16_is_there_where_the_limit_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, "avx512")
    assert features.has_bfloat16() and features.beyond_limit()
    limited(monkeypatch, "avx2")
    assert not features.has_bfloat16() and features.beyond_limit()
    monkeypatch.setattr(features, "processor_flags", lambda: frozenset(["avx2"]))
    assert not features.beyond_limit()


def test_an_unknown_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "sse9")
    with pytest.raises(UsageError, match="sse9"):
        features.isa_limit()


def test_a_limit_makes_another_machine_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs, decisions and compiled code are kept under the fingerprint."""
    seen = set()
    for limit in ("", "avx512", "avx2"):
        monkeypatch.setenv(ISA_VARIABLE, limit)
        machine = hardware.this_machine.__wrapped__()
        assert machine.limit == limit and (f"kept to {limit}" in str(machine)) == bool(limit)
        assert limit != "avx2" or not any(name.startswith(("avx512", "amx")) for name in machine.instructions)
        seen.add(machine.fingerprint())
    assert len(seen) == 3
