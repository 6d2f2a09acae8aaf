"""A backend with a planted fault."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from bricolage.backends import registry
from bricolage.backends.interface import Available, Backend, Claim, Kernel, RegionModel, Resources, Status
from bricolage.work.implementation import KernelConfig


class Liar(Backend):
    """ONNX Runtime, but for Tanh, which it computes wrongly."""

    name, title = "liar", "liar"

    def status(self) -> Status:
        return Available("1")

    def claims(self) -> Iterable[Claim]:
        return registry.get("onnxruntime").claims()

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        for node in region.model.graph:
            if node.op_type == "Tanh":
                node.op_type = "Softsign"
        onnx.save(ir.to_proto(region.model), region.path)
        return registry.get("onnxruntime").compile(RegionModel(region.path), config, resources)
