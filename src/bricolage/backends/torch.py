"""PyTorch eager on oneDNN: one library call for each operator, with nothing decided at run time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.interface import Backend, Claim, Kind, RegionModel, Resources, Status, installed
from bricolage.backends.kernel import Array, Call, Kernel
from bricolage.backends.limits import library_limits
from bricolage.device.device import Device
from bricolage.errors import Refused, UnsupportedOperator
from bricolage.options import Precision
from bricolage.work.implementation import KernelConfig, named

_CHANNELS_LAST = "-nhwc"
_SPINS = 2000
"""How long an idle OpenMP thread of ours watches for work, in loop turns (some 10 µs), where other runtimes wait for cores."""


DIRECT_BYTES = 1 << 16
Extent = tuple[int, int]
"""First address of a contiguous tensor, and the one behind its last byte."""


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

    def environment(self, resources: Resources) -> dict[str, str]:
        return {**openmp(resources), **library_limits(resources.device)}

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        import torch

        if config.name.endswith(_CHANNELS_LAST) and not any(
            len(i.shape or ()) in (4, 5) for i in (*region.inputs, *region.outputs)
        ):
            raise Refused(backend=self.title, reason="no image-like tensors, so there is no other layout")
        torch.set_num_threads(resources.threads)
        return _TorchKernel(lowered(region, self.title, config))


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
    """A module that takes torch tensors and returns a tuple of tensors."""

    direct_bytes = DIRECT_BYTES

    def __init__(self, module: Any) -> None:
        self._function = module
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in module.buffers()}
        self._constants = sorted((first, first + storage.nbytes()) for first, storage in storages.items())

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return bound(self._function, inputs, outputs)

    def replica(self, resources: Resources) -> Kernel:
        import torch

        torch.set_num_threads(resources.threads)  # OpenMP has a team, and its size, for each thread that calls
        return self

    def run(self, inputs: Sequence[object]) -> list[object]:
        return list(unbound(self._function, [np.asarray(value, order="C") for value in inputs], self._constants))


def unbound(function: Callable[..., Any], inputs: Sequence[Array], kept: Sequence[Extent] = ()) -> list[Array]:
    """Fresh results of a function on arrays, which it reads where they lie. Results may be views of inputs, of each other and of what
    the function keeps, whose memory is `kept`, in the order of addresses: those are copied."""
    import torch

    with torch.inference_mode():
        arguments = [tensor_of(array) for array in map(_writable, inputs)]
        taken = [_extent(tensor) for tensor in arguments]
        results = []
        for result in map(torch.Tensor.contiguous, function(*arguments)):
            first, end = extent = _extent(result)
            before = bisect_left(kept, (end, 0)) - 1  # the last of what is kept that begins before the result ends
            if before >= 0 and kept[before][1] > first or any(a < end and first < b for a, b in taken):
                result = result.clone()
            else:
                taken.append(extent)
            results.append(array_of(result))
    return results


def _extent(tensor: Any) -> Extent:
    first: int = tensor.data_ptr()
    return first, first + tensor.nbytes


def _writable(array: Array) -> Array:
    """The array, or a copy of one that is read-only: PyTorch warns of those."""
    return array if array.flags.writeable else array.copy()


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
