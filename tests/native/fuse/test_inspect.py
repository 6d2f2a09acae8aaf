"""What the native engine shows of its kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.native.cpu.isa import available_isas
from bricolage.work.implementation import KernelConfig, named
from tests.backends import regions


@pytest.mark.parametrize("config", named("f32", "bf16"), ids=str)
def test_every_operator_is_in_a_kernel_and_every_kernel_takes_time(config: KernelConfig, tmp_path: Path) -> None:
    if config.name == "bf16" and not available_isas()[0].multiplies_bfloat16(host()):
        pytest.skip("this processor has no products of bfloat16")
    model = regions.conv_net(tmp_path)
    made = Native().kernel_report(model, config, Resources(threads=2))
    names = {name for kernel in made.kernels for name in kernel.operators}
    assert names == {node.name or node.op_type for node in model.model.graph}
    assert [kernel.name for kernel in made.kernels] == [f"kernel_{i}" for i in range(len(made.kernels))]
    for kernel in made.kernels:
        assert kernel.ms is not None and kernel.ms > 0
        assert f"/* {kernel.name} */" in made.source
    assert made.peaks is not None and made.peaks.gflops > 1 and made.peaks.gbytes > 0.1
    assert made.peaks.floor_ms(2 * 10**9, 1) == pytest.approx(2e3 / made.peaks.gflops)


def test_work_is_counted_by_kernel(tmp_path: Path) -> None:
    w = regions.noise(16, 8)
    model = regions.region(
        tmp_path,
        "p = MatMul (x, w) \n q = Relu (p) \n y = Softmax <axis = -1> (q)",
        "float[4, 16] x",
        "float[4, 8] y",
        w=w,
    )
    product, softmax = Native().kernel_report(model, regions.F32, Resources(threads=1)).kernels
    assert (product.kind, softmax.kind) == ("matmul", "softmax")
    assert product.flops == 2 * 4 * 16 * 8 + 4 * 8
    assert product.bytes == 4 * (4 * 16 + 16 * 8 + 4 * 8)
    assert softmax.flops == 5 * 4 * 8
    assert softmax.bytes == 4 * (4 * 8 + 4 * 8)


def test_others_show_nothing_and_what_cannot_be_compiled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = regions.conv_net(tmp_path)
    assert registry.get("onnxruntime").kernel_report(model, regions.F32, Resources()) is None
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "generic")
    with pytest.raises(Refused, match="no products of bfloat16"):
        Native().kernel_report(model, KernelConfig("bf16"), Resources())
