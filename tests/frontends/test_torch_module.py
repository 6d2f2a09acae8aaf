"""Modules as PyTorch's exporter gives them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bricolage.frontends import torch_module

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


def test_the_exporters_operators_are_read_once_and_again_when_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxscript.function_libs.torch_lib.registration import default_registry
    from torch.onnx._internal import _lazy_import

    apis, read = _lazy_import.onnxscript_apis, []
    original = apis.get_torchlib_ops

    def counted() -> list[object]:
        read.append(True)
        return list(original())

    monkeypatch.setattr(apis, "get_torchlib_ops", counted)
    torch_module._read_operators_once.__wrapped__()

    def export() -> bytes:
        torch.manual_seed(0)
        model = torch_module.from_torch(torch.nn.Linear(3, 4), torch.ones(2, 3))
        return ir.to_proto(model).SerializeToString(deterministic=True)

    first = export()
    assert export() == first and read == [True]
    same = next(name for name, one in default_registry.items() if one.overloads)
    overloads = default_registry[same].overloads
    overloads.append(overloads[0])
    try:
        assert export() == first and read == [True, True]
    finally:
        overloads.pop()
