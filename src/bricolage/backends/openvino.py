"""OpenVINO on the processor: an engine with blocked layouts, generated element-wise kernels and bfloat16."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key
from bricolage.backends.data_sizes import readers_of_data_sizes
from bricolage.backends.fused_patterns import ATTENTION, LAYER_NORM, SIBLINGS
from bricolage.backends.interface import (
    AfterFork,
    Backend,
    Claim,
    Kind,
    RegionModel,
    Resources,
    Status,
    installed,
    values_of,
)
from bricolage.backends.isa_limits import library_limits
from bricolage.backends.kernel import Array, Kernel
from bricolage.backends.openvino_kernel import TYPES, InputCopy, OpenVinoKernel, load_openvino, wrap_tensor
from bricolage.backends.request_queue import Done, RequestQueue
from bricolage.backends.suitability import may_multiply, nodes_of
from bricolage.base import sealed
from bricolage.base.cache import discard
from bricolage.base.options import Precision
from bricolage.device.device import Device
from bricolage.errors import ForkedProcess, Refused
from bricolage.graph.graph import Graph, Operator, Region
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import AS_IT_COMES, KernelConfig, Scalar, Team, named

if TYPE_CHECKING:
    from openvino import CompiledModel, Core, Model, Tensor

_LOG = logging.getLogger(__name__)
_REASON_LENGTH = 300
_BLOCKS_IN_BYTES = "int8-blocks"
"""Where weights are stored in blocks, activations are multiplied as bytes, this many of a row with one scale."""
_GROUP = 32
_IN_FLOAT32 = f"{AS_IT_COMES}-f32"
"""The file as it comes, and float32 asked for: by itself OpenVINO takes bfloat16 where the processor multiplies it."""
_SUMS_BYTES = frozenset({"avx512_vnni", "avx_vnni"})
"""Without one of these instructions the plugin multiplies floats there, whatever is asked for."""
_STARTS_BF16 = frozenset({"Resize", "Upsample", "MaxRoiPool"})
"""And products: what is behind the last of all these is computed in float32, whatever is asked for
(`Graph::EnforceInferencePrecision` of the CPU plugin)."""


_freed: set[tuple[int, int]] = set()
"""Process and threads of the models that are gone. OpenVINO keeps their threads for the next model that asks for as many, and
gives them to it in a forked process too, where they do not run."""


_ARITHMETIC = frozenset(
    ["Add", "Sub", "Mul", "Div", "Neg", "Abs", "Pow", "Mod", "Sum", "Mean", "CumSum", "MatMul", "Gemm"]
)
_NARROWED = {
    ir.DataType.DOUBLE: "is computed in float32",
    ir.DataType.INT8: "saturates instead of wrapping around",
    ir.DataType.UINT8: "saturates instead of wrapping around",
}


def _explain_narrowing(_graph: Graph, operator: Operator) -> str | None:
    """Arithmetic that OpenVINO does with fewer bits, or by other rules, than ONNX asks for."""
    if operator.op_type not in _ARITHMETIC and not operator.op_type.startswith("Reduce"):
        return None
    for value in operator.inputs:
        if value.dtype in _NARROWED:
            return f"{operator.op_type} at {value.dtype.name} {_NARROWED[value.dtype]}"
    return None


def _in_blocks(node: ir.Node) -> bool:
    return node.op_type == "MatMulNBits" or (
        node.op_type == "DequantizeLinear" and node.attributes.get_int("block_size", 0) > 0
    )


class OpenVino(Backend):
    """Latency hint, one stream on all threads given, inputs and outputs shared with the bound buffers.

    64-bit integers are computed in 32 bits, which indices and sizes survive; what does not is found when outputs are
    verified. Arithmetic in float64 and in bytes is declined.
    """

    name: ClassVar[str] = "openvino"
    title: ClassVar[str] = "OpenVINO"
    kind: ClassVar[Kind] = "engine"
    tries_whole: ClassVar[bool] = True
    always_measured: ClassVar[bool] = True
    dynamic: ClassVar[bool] = True
    queues: ClassVar[bool] = True
    tunable: ClassVar[bool] = True
    teams: ClassVar[tuple[Team, ...]] = ("one-thread",)
    after_fork: ClassVar[AfterFork] = "again"  # a request that was running stays busy for ever

    def status(self) -> Status:
        return installed("openvino", "openvino", "openvino")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(
            self, _explain_narrowing, {"attention": ATTENTION, "siblings": SIBLINGS, "layer normalisation": LAYER_NORM}
        )

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        narrow = ["bf16"] if precision in ("medium", "low") and device.bfloat16 else []
        in_bytes = precision == "low" and device.isa != "avx2" and device.instructions & _SUMS_BYTES
        return named("f32", *narrow, *([_BLOCKS_IN_BYTES] if in_bytes else []))

    def file_configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        narrow = device.bfloat16 and precision in ("highest", "high")  # what it takes by itself is too inaccurate then
        return named(_IN_FLOAT32 if narrow else AS_IT_COMES)

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """Bytes are asked for where weights are stored in blocks, and bfloat16 where something may start it."""
        if config.base.name == _BLOCKS_IN_BYTES:
            return any(map(_in_blocks, nodes_of(region)))
        return config.base.name != "bf16" or any(may_multiply(node, _STARTS_BF16) for node in nodes_of(region))

    def environment(self, resources: Resources) -> dict[str, str]:
        return library_limits(resources.device)

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        del region
        return ConfigSpace.of(config, _parameters(resources))

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        if any(threads == resources.threads and process != os.getpid() for process, threads in _freed):
            raise ForkedProcess(backend=self.title)
        if config.as_it_comes:
            compiled, model = self._as_it_comes(region.path, config, resources)
        else:
            compiled, model = self._compiled(region, config, resources, _latency(resources))
            _check_honoured(compiled, config, resources)
        places = _places(region, model)
        if len(compiled.outputs) != len(region.outputs) or len(compiled.inputs) != len(places) - places.count(None):
            raise Refused(backend=self.title, reason="compilation changed the number of inputs or outputs")
        copied = _unwritten(compiled)
        if not copied:
            kernel = OpenVinoKernel(region, compiled, places)
            weakref.finalize(kernel, _freed.add, (os.getpid(), resources.threads)).atexit = False
            return kernel
        if len(region.outputs) > 1:
            raise Refused(backend=self.title, reason="one of several outputs is an input unchanged")
        return InputCopy(places.index(copied[0]))

    def fails_at_nothing(self, region: RegionModel) -> str:
        """After a call in which a size was 0, the next one may be answered with that size (2026.4.1)."""
        node = next(readers_of_data_sizes(region), None)
        return f"sizes of {node.op_type} come from data, and it is wrong after they were 0" if node is not None else ""

    def queue(self, region: RegionModel, config: KernelConfig, resources: Resources, streams: int) -> RequestQueue:
        asked = {"PERFORMANCE_HINT": "THROUGHPUT", **({"NUM_STREAMS": str(streams)} if streams else {})}
        compiled, model = self._compiled(region, config, resources, asked)
        places = _places(region, model)
        if len(compiled.outputs) != len(region.outputs) or _unwritten(compiled):
            raise Refused(backend=self.title, reason="compilation changed the inputs or outputs")
        return _Queue(region, compiled, places)

    def _as_it_comes(self, path: Path, config: KernelConfig, resources: Resources) -> tuple[CompiledModel, Model]:
        """The compiled model of a user's file, with the defaults of OpenVINO, and the model as read."""
        settings = {} if config.name != _IN_FLOAT32 else {"INFERENCE_PRECISION_HINT": "f32"}
        if resources.own_threads is not None:
            settings["INFERENCE_NUM_THREADS"] = str(resources.own_threads)
        try:
            model = _core().read_model(str(path))
            return _core().compile_model(model, "CPU", settings), model
        except RuntimeError as error:
            raise Refused(backend=self.title, reason=_reason(error)) from error

    def _compiled(
        self, region: RegionModel, config: KernelConfig, resources: Resources, asked: Mapping[str, str]
    ) -> tuple[Model, CompiledModel]:
        """The compiled model and the model as read. `asked`: settings in addition to those of every use of ours."""
        for info in (*region.inputs, *region.outputs):
            if info.dtype not in TYPES:
                kind = info.dtype.name if info.dtype else "non-tensor"
                raise Refused(backend=self.title, reason=f"'{info.name}' has the type {kind}")
        chosen = values_of(config, _parameters(resources), self.title)
        settings = {
            **asked,
            "INFERENCE_NUM_THREADS": str(resources.threads),
            "INFERENCE_PRECISION_HINT": "f32" if config.name == _BLOCKS_IN_BYTES else config.name,
            # what is more than 0 makes int8 of activations before compressed weights
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(_GROUP if config.name == _BLOCKS_IN_BYTES else 0),
            **{
                name: "YES" if value is True else "NO" if value is False else str(value)
                for name, value in chosen.items()
            },
        }
        try:
            model = _core().read_model(str(region.path))
            if config.name == "bf16":
                _round_masks(model)
            if resources.cache is None:
                return _core().compile_model(model, "CPU", settings), model
            folder = (
                resources.cache
                / f"openvino-{content_key(region, *(f'{name}={value}' for name, value in settings.items()))}"
            )
            return _compile_cached(folder, model, settings), model
        except RuntimeError as error:
            raise Refused(backend=self.title, reason=_reason(error)) from error


def _parameters(resources: Resources) -> dict[str, tuple[Scalar, ...]]:
    """Settings that a tuner may choose, and their values; without another the usual ones hold."""
    fewer = tuple(range(1, resources.threads))
    settings: dict[str, tuple[Scalar, ...]] = {
        "ENABLE_CPU_PINNING": (True, False),
        "ENABLE_HYPER_THREADING": (True, False),
        "CPU_DENORMALS_OPTIMIZATION": (False,),
    }
    return {**settings, "INFERENCE_NUM_THREADS": fewer} if fewer else settings


def _latency(resources: Resources) -> dict[str, str]:
    """Settings for one request at a time."""
    # Pinned threads keep their caches, but where runtimes take turns the pins would outlive the turn.
    pinning = "YES" if resources.alone else "NO"
    return {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": pinning}


def _check_honoured(compiled: CompiledModel, config: KernelConfig, resources: Resources) -> None:
    """OpenVINO takes a hint and does otherwise without a word where a processor lacks what it needs.

    Raises:
        Refused: it computes in another precision than the configuration says.
    """
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    wanted = "bf16" if config.name == "bf16" else "f32"
    if used != wanted:
        raise Refused(backend=OpenVino.title, reason=f"it computes in {used} here, although {wanted} was asked for")
    threads = compiled.get_property("INFERENCE_NUM_THREADS")
    if threads < resources.threads and not config.parameters:
        _LOG.warning("OpenVINO computes on %d threads of the %d that it may use", threads, resources.threads)


def _compile_cached(folder: Path, model: Model, settings: dict[str, str]) -> CompiledModel:
    """A compiled model whose compiled form OpenVINO finds in a folder of its own, or has put there."""
    if sealed.intact(folder):
        return _core().compile_model(model, "CPU", {**settings, "CACHE_DIR": str(folder)})
    discard(folder)
    with sealed.making(folder) as fresh:
        return _core().compile_model(model, "CPU", {**settings, "CACHE_DIR": str(fresh)})


_ON_THE_WAY = frozenset(
    [
        "Add",
        "Subtract",
        "Multiply",
        "Divide",
        "Maximum",
        "Minimum",
        "Select",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
    ]
)


def _round_masks(model: Model) -> None:
    """Rounds float32 inputs of the model that are added to attention scores.

    OpenVINO's fused attention reads them as bfloat16 whatever they are (seen in 2026.4.1: errors of 50 to 100 %). Any
    operator in between gives it the bfloat16 that it expects.
    """
    from openvino import opset13

    for node in model.get_ordered_ops():
        if node.get_type_name() != "Softmax":
            continue
        todo, seen = [node.input(0)], set()
        while todo:
            port = todo.pop()
            source = port.get_source_output()
            producer = source.get_node()
            if producer.get_type_name() == "Parameter" and source.get_element_type().get_type_name() == "f32":
                rounded = opset13.convert(opset13.convert(source, "bf16"), "f32")
                port.replace_source_output(rounded.output(0))
            elif producer.get_type_name() in _ON_THE_WAY and producer.get_friendly_name() not in seen:
                seen.add(producer.get_friendly_name())
                todo.extend(producer.inputs())


def _places(region: RegionModel, model: Model) -> list[int | None]:
    """Positions of the region's inputs in OpenVINO's model; None for those dropped, of which only the type mattered."""
    if len(model.inputs) == len(region.inputs):  # by position, since an input that is also a result loses its name
        return list(range(len(region.inputs)))
    read = {name: position for position, port in enumerate(model.inputs) for name in port.get_names()}
    return [read.get(info.name) for info in region.inputs]


def _unwritten(compiled: CompiledModel) -> list[int]:
    """Positions of inputs that are results unchanged. OpenVINO never writes those into the output tensors given."""
    inputs = [port.get_node().get_friendly_name() for port in compiled.inputs]
    sources = [result.input_value(0).get_node() for result in compiled.get_runtime_model().get_results()]
    return [inputs.index(node.get_friendly_name()) for node in sources if node.get_type_name() == "Parameter"]


@cache
def _core() -> Core:
    """One per process: plugins and thread pools are loaded once."""
    return load_openvino().Core()


def _reason(error: RuntimeError) -> str:
    """The message without the runtime's own source lines, as one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    messages = [
        line for line in lines if line and not line.startswith(("Exception from", "Check '", "While validating"))
    ]
    return " ".join(messages or lines)[:_REASON_LENGTH]


class _Queue(RequestQueue):
    """`openvino.AsyncInferQueue` with as many requests as the compiled model says are best."""

    def __init__(self, region: RegionModel, compiled: CompiledModel, places: Sequence[int | None]) -> None:
        self._requests = load_openvino().AsyncInferQueue(compiled)
        self._places, self._region = places, region
        self._keep: list[Tensor] = []  # the requests refer to the tensors' memory
        self.lanes = len(self._requests)
        self.streams = int(compiled.get_property("NUM_STREAMS"))

    def bind(self, lane: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        request = self._requests[lane]
        given = [
            (place, wrap_tensor(info, array))
            for place, info, array in zip(self._places, self._region.inputs, inputs, strict=True)
            if place is not None
        ]
        for place, tensor in given:
            request.set_input_tensor(place, tensor)
        wanted = [wrap_tensor(info, array) for info, array in zip(self._region.outputs, outputs, strict=True)]
        for position, tensor in enumerate(wanted):
            request.set_output_tensor(position, tensor)
        self._keep += [*inputs, *outputs, *wanted, *(tensor for _, tensor in given)]

    def listen(self, done: Done) -> None:
        self._requests.set_callback(lambda _request, token: done(token))

    def submit(self, token: int) -> None:
        self._requests.start_async(None, userdata=token)

    def wait(self) -> None:
        self._requests.wait_all()
