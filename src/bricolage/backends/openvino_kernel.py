"""Regions that OpenVINO has compiled, as kernels: its requests and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bricolage.backends.interface import RegionModel
from bricolage.backends.kernel import Array, Call, Kernel
from bricolage.base import telemetry
from bricolage.graph.graph import TensorInfo

if TYPE_CHECKING:
    from openvino import CompiledModel, InferRequest, Tensor

TYPES = {
    ir.DataType.FLOAT: "f32",
    ir.DataType.DOUBLE: "f64",
    ir.DataType.FLOAT16: "f16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.INT8: "i8",
    ir.DataType.INT16: "i16",
    ir.DataType.INT32: "i32",
    ir.DataType.INT64: "i64",
    ir.DataType.UINT8: "u8",
    ir.DataType.UINT16: "u16",
    ir.DataType.UINT32: "u32",
    ir.DataType.UINT64: "u64",
    ir.DataType.BOOL: "boolean",
    ir.DataType.FLOAT8E4M3FN: "f8e4m3",
    ir.DataType.FLOAT8E8M0: "f8e8m0",
}
_COPIED_BYTES = 1 << 19
"""To copy a smaller tensor takes less time than to give a request another one."""


@cache
def load_openvino() -> ModuleType:
    """The `openvino` module, loaded with its telemetry off."""
    telemetry.disable()
    import openvino

    module: ModuleType = openvino
    return module


class OpenVinoKernel(Kernel):
    """A compiled model. `places` are those of the region's inputs in it; None for one that it does not read."""

    direct_bytes = 2 * _COPIED_BYTES

    def __init__(self, region: RegionModel, compiled: CompiledModel, places: Sequence[int | None]) -> None:
        self._compiled = compiled
        self._read = [
            (place, position, info)
            for position, (place, info) in enumerate(zip(places, region.inputs, strict=True))
            if place is not None
        ]
        self._outputs = region.outputs
        self._types = [info.numpy for info in region.outputs]
        self._given = [info.sizes if _is_given(info) else None for info in region.outputs]
        self._idle: tuple[InferRequest, list[Array | None]] | None = None
        """A request that `run` uses again, since to make one takes longer than a small model does, and its own arrays for small
        inputs: to give it another tensor takes longer than to fill one that it has."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        request = self._compiled.create_infer_request()
        for place, position, info in self._read:
            request.set_input_tensor(place, wrap_tensor(info, inputs[position]))
        for position, (info, array) in enumerate(zip(self._outputs, outputs, strict=True)):
            request.set_output_tensor(position, wrap_tensor(info, array))
        # Without `share_outputs` every call copies the outputs once more into arrays without readers.
        return partial(request.infer, None, False, True)

    def run(self, inputs: Sequence[object]) -> list[object]:
        request, held = self._idle or (self._compiled.create_infer_request(), [None] * len(self._read))
        self._idle = None  # one that has failed may stay busy for ever
        given = [np.asarray(value, order="C") for value in inputs]  # must outlive the request's use of their memory
        for number, (place, position, info) in enumerate(self._read):
            array, buffer = given[position], held[number]
            if buffer is not None and buffer.shape == array.shape:
                buffer[...] = array
                continue
            if array.nbytes < _COPIED_BYTES or not array.flags.writeable:  # OpenVINO has no tensors of read-only memory
                held[number] = array = array.copy()
            else:
                held[number] = None
            request.set_input_tensor(place, wrap_tensor(info, array))
        results: list[object] = [None] * len(self._given)
        for position, sizes in enumerate(self._given):
            if sizes is not None:
                results[position] = array = np.empty(sizes, self._types[position])
                request.set_output_tensor(position, wrap_tensor(self._outputs[position], array))
        views = list(request.infer(None, False, True).values())
        if len(views) != len(results):  # two outputs are one of its own
            views = [request.get_output_tensor(position).data for position in range(len(results))]
        for position, (view, dtype) in enumerate(zip(views, self._types, strict=True)):
            if results[position] is None:
                results[position] = view.copy() if view.dtype == dtype else view.copy().view(dtype)
        self._idle = request, held
        return results

    def own_call(self, inputs: Sequence[object]) -> Callable[[], object]:
        request = self._compiled.create_infer_request()
        given = {
            place: wrap_tensor(info, array) if array.dtype.kind == "V" else array
            for place, position, info in self._read
            for array in [np.asarray(inputs[position], order="C")]
        }
        return partial(request.infer, given, True, True)


def _is_given(info: TensorInfo) -> bool:
    """Whether a run writes an output into a fresh array: where that takes less time than a copy of it does."""
    return info.static and info.elements * info.numpy.itemsize >= _COPIED_BYTES


class InputCopy(Kernel):
    """A region that OpenVINO found to compute nothing: its output is one of its inputs."""

    def __init__(self, position: int) -> None:
        self._position = position

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return partial(np.copyto, outputs[0], inputs[self._position])

    def run(self, inputs: Sequence[object]) -> list[object]:
        return [np.array(inputs[self._position])]


def wrap_tensor(info: TensorInfo, array: Array) -> Tensor:
    """An OpenVINO tensor over the array's own memory."""
    openvino = load_openvino()
    if array.dtype.kind != "V":
        return openvino.Tensor(array, shared_memory=True)
    assert info.dtype is not None  # a type that numpy itself lacks: hand over the bits
    bits = array.view(np.dtype(f"u{array.itemsize}"))
    return openvino.Tensor(bits, list(array.shape), getattr(openvino.Type, TYPES[info.dtype]))
