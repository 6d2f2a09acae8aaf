"""Backends with a planted fault each. They run any region, slowly, but for the wrapped native engine."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar
from unittest import mock

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import Anatomy, Available, Backend, Claim, Growth, RegionModel, Resources, Status
from bricolage.backends.interface import any_operator as anything
from bricolage.backends.kernel import Call, Kernel, StaticKernel
from bricolage.backends.native.engine import Native
from bricolage.graph.graph import Graph, Operator
from bricolage.native.cpu import emit, gemm_tiles
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import Index
from bricolage.native.ir.tensors import Pointwise
from bricolage.verify.reference import evaluate
from bricolage.work.implementation import KernelConfig


class _Evaluated(StaticKernel):
    def __init__(self, title: str, region: RegionModel, factors: dict[str, float]) -> None:
        super().__init__(title, region.inputs, region.outputs)
        self._model, self._factors = region.model, factors

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Call:
        def call() -> None:
            given = {info.name: array for info, array in zip(self.inputs, inputs, strict=True)}
            found = evaluate(self._model, given, dtype=np.float32)
            for info, target in zip(self.outputs, outputs, strict=True):
                np.copyto(target, found[info.name] * self._factors.get(info.name, 1.0))

        return call


def _accepts(_graph: Graph, _operator: Operator) -> str | None:
    return None


class Sound(Backend):
    """Right about everything."""

    name: ClassVar[str] = "sound"
    crooked: ClassVar[str] = ""
    """Type of the operators whose outputs are off, wherever they lie in a region."""

    def status(self) -> Status:
        return Available("1.0")

    def table_version(self) -> str | None:
        return None

    def claims(self) -> Iterable[Claim]:
        return [Claim("all", anything(), growth=Growth(_accepts, maximal=True))]

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        del resources
        kinds = {node.op_type for node in region.model.graph}
        wrong = self.crooked in kinds and self.applies(config)
        if wrong:
            self.when_wrong()
        return _Evaluated(self.name, region, {info.name: 1.01 for info in region.outputs} if wrong else {})

    def applies(self, config: KernelConfig) -> bool:
        del config
        return True

    def when_wrong(self) -> None:
        pass


class Crooked(Sound):
    """Is off by 1 % where there is a Tanh."""

    name: ClassVar[str] = "crooked"
    crooked: ClassVar[str] = "Tanh"


class Crashing(Sound):
    """Writes to address 1 where there is a Tanh."""

    name: ClassVar[str] = "crashing"
    crooked: ClassVar[str] = "Tanh"

    def when_wrong(self) -> None:
        ctypes.memset(1, 0, 1)


class Hanging(Sound):
    """Never comes back where there is a Tanh."""

    name: ClassVar[str] = "hanging"
    crooked: ClassVar[str] = "Tanh"

    def when_wrong(self) -> None:
        ctypes.PyDLL(None).pause()


class Detuned(Sound):
    """Is off where its parameter "b.cut" is 3."""

    name: ClassVar[str] = "detuned"
    crooked: ClassVar[str] = "Tanh"

    def applies(self, config: KernelConfig) -> bool:
        return dict(config.parameters).get("b.cut") == 3


class _Planted(Native):
    """The native engine with a fault in its generator."""

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        yield

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        with self.planted():
            return super().compile(region, config, resources)

    def kernel_report(
        self, region: RegionModel, config: KernelConfig, resources: Resources, *, timed: bool = True
    ) -> Anatomy:
        with self.planted():
            return super().kernel_report(region, config, resources, timed=timed)


class Misfused(_Planted):
    """Scales what a product gives where a Tanh is fused behind it."""

    name: ClassVar[str] = "misfused"

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        right = emit.epilogue

        def wrong(
            kernel: PlannedKernel, plan: FusionPlan, memory: object, coords: tuple[Index, ...], value: str, runs: object
        ) -> list[str]:
            fused = isinstance(kernel.result, Pointwise) and kernel.result.function == "tanh"
            return right(kernel, plan, memory, coords, f"({value} * 1.01f)" if fused else value, runs)  # type: ignore[arg-type]

        with mock.patch.object(gemm_tiles, "epilogue", wrong):
            yield


ALL: tuple[type[Backend], ...] = (Sound, Crooked, Crashing, Hanging, Detuned, Misfused)


def register_all() -> None:
    for backend in ALL:
        registry.register(backend.name, f"{__name__}:{backend.__name__}")


def forget_all() -> None:
    """Other tests must not meet them."""
    registry._sources.cache_clear()
    registry.get.cache_clear()
