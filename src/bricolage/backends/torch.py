"""PyTorch eager on oneDNN: one library call for each operator, with nothing decided at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.interface import Backend, Claim, Kind, RegionModel, Resources, Status, installed
from bricolage.backends.kernel import Array, Call, Kernel
from bricolage.backends.limits import library_limits
from bricolage.backends.suitability import nodes_of, reads_floats
from bricolage.device.device import Device
from bricolage.errors import Refused, UnsupportedOperator
from bricolage.graph.graph import Region, describe
from bricolage.graph.operator_kinds import category
from bricolage.options import Precision
from bricolage.work.implementation import KernelConfig, named

_CHANNELS_LAST = "-nhwc"
_WITH_LAYOUTS = frozenset({"convolution", "transposed convolution", "pool"})
_MORE_WITH_LAYOUTS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "Resize", "Upsample"}
    | {"GlobalAveragePool", "GlobalMaxPool", "GridSample"}
)
_SPINS = 2000
"""How long an idle OpenMP thread of ours watches for work, in loop turns (some 10 µs), where other runtimes wait for cores."""


class Torch(Backend):
    """Eager execution of the lowered graph, in the layout as exported or channels-last."""

    name: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch eager"
    kind: ClassVar[Kind] = "kernels"
    tries_whole: ClassVar[bool] = True
    dynamic: ClassVar[bool] = True

    def status(self) -> Status:
        return installed("torch", "torch", "torch")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self)

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        narrow = ("bf16", "bf16-nhwc") if precision in ("medium", "low") and device.bfloat16 else ()
        return named("f32", "f32-nhwc", *narrow)

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """Channels come last where something is computed that has images, and bfloat16 takes the place of wider floats."""
        if config.bfloat16 and not reads_floats(region):
            return False
        return not config.base.name.endswith(_CHANNELS_LAST) or any(map(_has_layouts, nodes_of(region)))

    def environment(self, resources: Resources) -> dict[str, str]:
        return {**openmp(resources), **library_limits(resources.device)}

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        import torch

        if config.name.endswith(_CHANNELS_LAST) and not any(map(_has_layouts, region.model.graph.all_nodes())):
            raise Refused(backend=self.title, reason="nothing in it has images, so there is no other layout")
        torch.set_num_threads(resources.threads)
        return _TorchKernel(lowered(region, self.title, config))


def _has_layouts(node: ir.Node) -> bool:
    """Whether a node is a convolution, a pool or the like over images of two or three dimensions: with channels last a library
    computes it otherwise."""
    if category(node.op_type) not in _WITH_LAYOUTS and node.op_type not in _MORE_WITH_LAYOUTS:
        return False
    shapes = [describe(value).shape for value in node.inputs[:1] if value is not None]
    return any(shape is None or len(shape) in (4, 5) for shape in shapes)


def openmp(resources: Resources) -> dict[str, str]:
    """Settings of the OpenMP runtime, which it reads once, when it is loaded."""
    settings = {"OMP_NUM_THREADS": str(resources.threads)}
    if not resources.alone:
        settings["GOMP_SPINCOUNT"] = str(_SPINS)
    return settings


def lowered(region: RegionModel, title: str, config: KernelConfig) -> Any:
    """The region as a torch module in the configuration asked for.

    Raises:
        Refused: an operator has no lowering.
    """
    import torch

    from bricolage.lowering.torch import lower

    try:
        return lower(
            region.model,
            float_dtype=torch.bfloat16 if config.bfloat16 else None,
            channels_last=config.name.endswith(_CHANNELS_LAST),
        )
    except UnsupportedOperator as error:
        raise Refused(backend=title, reason=error.sentence) from error


class _TorchKernel(Kernel):
    """A callable on torch tensors that returns a tuple of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return bound(self._function, inputs, outputs)

    def replica(self, resources: Resources) -> Kernel:
        import torch

        torch.set_num_threads(resources.threads)  # OpenMP has a team, and its size, for each thread that calls
        return self

    def run(self, inputs: Sequence[object]) -> list[object]:
        import torch

        # Copies, since a result may be a view of an input.
        with torch.inference_mode():
            results = self._function(*[tensor_of(np.array(value, order="C")) for value in inputs])
        return [array_of(result) for result in results]


def bound(function: Callable[..., Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
    """A call of a function on torch tensors, on these buffers."""
    import torch

    arguments = [tensor_of(array) for array in inputs]
    targets = [tensor_of(array) for array in outputs]
    inference = torch.inference_mode

    def call() -> None:
        with inference():
            for target, result in zip(targets, function(*arguments), strict=True):
                target.copy_(result)

    return call


def tensor_of(array: Array) -> Any:
    """A tensor over the array's own memory (bfloat16 and the 8-bit floats by their bits)."""
    import torch

    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    bits = array.view(np.uint8 if array.dtype.itemsize == 1 else np.int16)
    return torch.from_numpy(bits).view(getattr(torch, array.dtype.name))


def array_of(tensor: Any) -> Array:
    """A contiguous array with the tensor's values."""
    import ml_dtypes
    import torch

    tensor = tensor.contiguous()
    try:
        array: Array = tensor.numpy()
    except TypeError:
        bits = tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16).numpy()
        array = bits.view(getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch.")))
    return array
