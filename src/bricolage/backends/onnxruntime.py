"""ONNX Runtime on the processor: the default engine, and the one that runs every type and every dynamic shape.

Optimised models are not kept on disk, although the runtime could write them: the file would have to be keyed by the
content of the weights, and hashing them takes as long as the optimisation that it would save.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from bricolage.backends.capabilities import engine_claims, switched_off
from bricolage.backends.data_sizes import readers_of_data_sizes
from bricolage.backends.fused_patterns import LAYER_NORM
from bricolage.backends.interface import (
    AfterFailure,
    AfterFork,
    Backend,
    Claim,
    IndexChecks,
    Kind,
    RegionModel,
    Resources,
    Status,
    installed,
    values_of,
)
from bricolage.backends.kernel import Array, Call, Kernel
from bricolage.backends.suitability import MULTIPLYING, nodes_of
from bricolage.base.options import Precision
from bricolage.device.device import Device
from bricolage.errors import BackendFailed, Refused
from bricolage.graph.graph import Region, TensorInfo
from bricolage.graph.operator_kinds import ANCHORS
from bricolage.verify.unoptimised import from_value, is_foreign, load_onnxruntime, to_value
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import AS_IT_COMES, KernelConfig, Scalar, Team, named

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_ERRORS_ONLY = 3
_FATAL_ONLY = 4


_AS_VALUES = f"{AS_IT_COMES}-values"
_PARALLEL = "f32-parallel"
_UNOPTIMISED = "f32-unoptimised"
"""Every operator as the model has it: nothing is fused, folded or laid out otherwise."""
_EXACT = "f32-exact-bytes"
"""Products of bytes are widened to 16 bits before they are summed in pairs: slower, and exact where no instruction of the processor
sums products of bytes into 32 bits. (There the usual way saturates, in silence.)"""
_BLOCKS_IN_BYTES = "int8-blocks"
"""Where weights are stored in blocks (MatMulNBits), activations are multiplied as bytes: accuracy level 4, whatever the model
says."""
_SUMS_BYTES = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimd"})
_DIRECT_BYTES = 1 << 16
_IN_BYTES = 4
_WIDTH = 2
"""Operators that run at a time in parallel execution; the threads are divided among them."""


_BLOCKS, _PATTERN, _PREPACK, _LEVEL = "dynamic_block_base", "memory_pattern", "prepacking", "optimization"
_PARAMETERS: Mapping[str, tuple[Scalar, ...]] = {
    _BLOCKS: (1, 2, 4, 8),  # loops are cut into smaller and smaller pieces, the first this part of a share
    _PATTERN: (False,),
    _PREPACK: (False,),
    _LEVEL: ("basic", "extended"),  # without layouts of its own, or without fusions either
}
"""Session options that a tuner may choose, and their values other than the default ones."""


_RECURRENCES = frozenset({"LSTM", "GRU"})
_OF_BYTES = frozenset(
    {
        *("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "QAttention"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"),
    }
)
"""Products of bytes. The other form of one is a product that reads what `DequantizeLinear` gives."""


class OnnxRuntime(Backend):
    """Execution at the highest optimisation level, with outputs written straight into the bound buffers: one operator after
    another or, where a graph branches, also several at a time."""

    name: ClassVar[str] = "onnxruntime"
    title: ClassVar[str] = "ONNX Runtime"
    kind: ClassVar[Kind] = "engine"
    after_failure: ClassVar[AfterFailure] = "lives"
    checks_indices: ClassVar[IndexChecks] = "all"
    tries_whole: ClassVar[bool] = True
    always_measured: ClassVar[bool] = True
    dynamic: ClassVar[bool] = True
    tunable: ClassVar[bool] = True
    teams: ClassVar[tuple[Team, ...]] = ("one-thread", "waiting")
    optimiser_refuses: ClassVar[bool] = True  # it merges a Pad into pools that do not allow it, among others (1.31.1)
    after_fork: ClassVar[AfterFork] = "again"  # a lock that a thread of the pool holds then is held for ever

    def status(self) -> Status:
        return installed("onnxruntime", "onnxruntime", "onnxruntime")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self, fuses={"layer normalisation": LAYER_NORM})

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        names = ["f32", _PARALLEL] if device.threads > 1 else ["f32"]
        names += [] if device.instructions & _SUMS_BYTES else [_EXACT]
        names += [_BLOCKS_IN_BYTES] if precision == "low" else []
        return named(*names)

    def file_configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        del precision, device
        return named(AS_IT_COMES)

    def file_loop_configs(self) -> Sequence[KernelConfig]:
        return named(AS_IT_COMES, _AS_VALUES)  # as arrays of numpy, or as values of the runtime, which are not copied

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """Bytes are asked for where some are multiplied, and several operators at a time where two do not wait for each other."""
        if config.base.name == _EXACT:
            return any(map(_multiplies_bytes, nodes_of(region)))
        if config.base.name == _BLOCKS_IN_BYTES:
            return any(map(_in_wider_blocks, nodes_of(region)))
        return config.base.name != _PARALLEL or _branches(operator.node for operator in region.operators)

    def fails_at_nothing(self, region: RegionModel) -> str:
        """A recurrence over a batch of 0 ends the process (1.31.1)."""
        node = next((size for size in readers_of_data_sizes(region) if size.op_type in _RECURRENCES), None)
        return f"sizes of {node.op_type} come from data, and at 0 it ends the process" if node is not None else ""

    def unoptimised(self, config: KernelConfig) -> KernelConfig | None:
        return KernelConfig(_UNOPTIMISED) if config.name != _UNOPTIMISED else None

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        del region
        several = resources.threads > (_WIDTH if config.name == _PARALLEL else 1)
        return ConfigSpace.of(
            config, {name: choices for name, choices in _PARAMETERS.items() if several or name != _BLOCKS}
        )

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        if config.as_it_comes:
            session = _own_session(region.path, resources.own_threads)
            return _Kernel(region, session, resources.threads, as_values=config.name == _AS_VALUES)
        if config.name == _PARALLEL and (resources.threads < _WIDTH or not _branches(region.model.graph)):
            raise Refused(backend=self.title, reason="nothing in it could run at the same time")
        for info in (*region.inputs, *region.outputs):
            if info.dtype not in (None, ir.DataType.STRING) and info.dtype.bitwidth < 8:
                raise Refused(backend=self.title, reason=f"'{info.name}' packs several elements into a byte")
        return _Kernel(region, _session(region, config, resources, switched_off(self, region.model)), resources.threads)


def _branches(nodes: Iterable[ir.Node]) -> bool:
    """Whether two products or convolutions among `nodes`, which are in executable order, do not depend on each other."""
    before: dict[ir.Node | None, int] = {}
    seen = 0
    for number, node in enumerate(nodes):
        behind = 0
        for value in node.inputs:
            behind |= 0 if value is None else before.get(value.producer(), 0)
        if node.op_type in ANCHORS:
            if seen & ~behind:
                return True
            seen |= 1 << number
        before[node] = behind | 1 << number
    return False


def _collect_refusal_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises of a model that it does not take."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (
        state.EPFail,
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NotImplemented,
        state.RuntimeException,
    )


def _own_session(path: Path, threads: int | None) -> InferenceSession:
    """A session as a user makes one: of the file, with defaults. `threads` where the user asks for a number of them."""
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _collect_refusal_errors() as error:
        raise Refused(backend=OnnxRuntime.title, reason=str(error).splitlines()[0]) from error


def _multiplies_bytes(node: ir.Node) -> bool:
    """Whether the runtime may multiply bytes there."""
    if node.op_type in _OF_BYTES:
        return True
    producers = (value.producer() for value in node.inputs if value is not None)
    return node.op_type in MULTIPLYING and any(
        producer is not None and producer.op_type == "DequantizeLinear" for producer in producers
    )


def _session(region: RegionModel, config: KernelConfig, resources: Resources, without: Sequence[str]) -> Any:
    """`without`: optimisations in quarantine."""
    ort = load_onnxruntime()
    chosen = values_of(config, _PARAMETERS, OnnxRuntime.title)
    levels = ort.GraphOptimizationLevel
    named_levels = {"basic": levels.ORT_ENABLE_BASIC, "extended": levels.ORT_ENABLE_EXTENDED}
    options = ort.SessionOptions()
    usual = levels.ORT_DISABLE_ALL if config.name == _UNOPTIMISED else levels.ORT_ENABLE_ALL
    options.graph_optimization_level = named_levels.get(str(chosen.get(_LEVEL)), usual)
    options.enable_mem_pattern = bool(chosen.get(_PATTERN, True))
    if not chosen.get(_PREPACK, True):
        options.add_session_config_entry("session.disable_prepacking", "1")
    if _BLOCKS in chosen:
        options.add_session_config_entry("session.dynamic_block_base", str(chosen[_BLOCKS]))
    width = _WIDTH if config.name == _PARALLEL else 1
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if width > 1 else ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = resources.threads // width
    options.inter_op_num_threads = width
    options.log_severity_level = _ERRORS_ONLY
    if config.name == _EXACT:
        options.add_session_config_entry("session.x64quantprecision", "1")
    # Waiting threads that spin are faster, but they steal the cores from the next runtime.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if resources.alone else "0")
    declined = _collect_refusal_errors()
    path = _with_blocks_in_bytes(region) if config.name == _BLOCKS_IN_BYTES else region.path
    ort.set_default_logger_severity(_FATAL_ONLY)  # what fails is raised as well, so it need not be printed
    try:
        return ort.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(without)
        )
    except declined as error:
        raise Refused(backend=OnnxRuntime.title, reason=str(error).splitlines()[0]) from error
    finally:
        ort.set_default_logger_severity(_ERRORS_ONLY)
        if path != region.path:
            path.unlink(missing_ok=True)


def _in_wider_blocks(node: ir.Node) -> bool:
    return node.op_type == "MatMulNBits" and node.attributes.get_int("accuracy_level", 0) != _IN_BYTES


def _with_blocks_in_bytes(region: RegionModel) -> Path:
    """A file of the region, in the folder of its weights, in which products with blocks multiply bytes; to be removed.

    Raises:
        Refused: it has no such product.
    """
    model = ir.load(region.path)
    products = [node for node in model.graph.all_nodes() if _in_wider_blocks(node)]
    if not products:
        raise Refused(
            backend=OnnxRuntime.title, reason="it has no products with blocks that would multiply wider numbers"
        )
    for node in products:
        node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", _IN_BYTES)
    path = region.path.with_name(f"{region.path.stem}-{os.getpid()}-bytes.onnx")
    ir.save(model, path)
    return path


class _Kernel(Kernel):
    def __init__(self, region: RegionModel, session: Any, threads: int, *, as_values: bool = False) -> None:
        self._session, self._as_values = session, as_values
        self._threads = threads
        self._inputs = region.inputs
        self._outputs = region.outputs
        self._read, self._written = ([info.name for info in ends] for ends in (region.inputs, region.outputs))
        self._foreign = any(is_foreign(info.dtype) for info in (*region.inputs, *region.outputs))
        self.direct_bytes = math.inf if self._foreign else _DIRECT_BYTES
        self._run_options = (
            load_onnxruntime().RunOptions()
        )  # made once: making one at each call costs a third of the call
        self._run_options.log_severity_level = _FATAL_ONLY
        # Each call asks for this entry, which only GPUs use; where it is missing, an exception within costs 70 µs (1.31.1).
        self._run_options.add_run_config_entry("gpu_graph_id", "-1")

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        binding = self._session.io_binding()
        for info, array in zip(self._inputs, inputs, strict=True):
            binding.bind_input(info.name, "cpu", 0, _element_type(info), array.shape, array.ctypes.data)
        for info, array in zip(self._outputs, outputs, strict=True):
            binding.bind_output(info.name, "cpu", 0, _element_type(info), array.shape, array.ctypes.data)
        return partial(self._session.run_with_iobinding, binding, self._run_options)

    def own_call(self, inputs: Sequence[object]) -> Callable[[], object]:
        given = zip(self._inputs, inputs, strict=True)
        if self._as_values:
            values = {info.name: to_value(info.dtype, value) for info, value in given}
            return partial(self._session.run_with_ort_values, None, values)
        if any(is_foreign(info.dtype) for info in (*self._inputs, *self._outputs)):
            return partial(
                self.run, inputs
            )  # numpy has not these types, so users hand over values of ONNX Runtime's own
        feeds = {info.name: value if info.dtype is None else np.asarray(value) for info, value in given}
        return partial(self._session.run, None, feeds)

    def replica(self, resources: Resources) -> Kernel | None:
        # Without threads of its own a session runs in as many callers at a time as there are; with a pool they would share it.
        return self if resources.threads == self._threads == 1 else None

    def run(self, inputs: Sequence[object]) -> list[object]:
        if not self._foreign:
            for value in inputs:
                if type(value) is not np.ndarray:
                    inputs = list(map(_as_read, self._inputs, inputs))
                    break
            results: list[object] = self._session.run(self._written, dict(zip(self._read, inputs)), self._run_options)  # noqa: B905
            return results
        pairs = zip(self._inputs, inputs, strict=True)
        values = {info.name: to_value(info.dtype, value) for info, value in pairs}
        outputs = self._session.run_with_ort_values(self._written, values, self._run_options)
        return [from_value(value, info.dtype) for info, value in zip(self._outputs, outputs, strict=True)]


def _as_read(info: TensorInfo, value: object) -> object:
    """A tensor as an array; a sequence, a map or an optional as it is."""
    return value if info.dtype is None else np.asarray(value)


def _element_type(info: TensorInfo) -> int:
    if info.dtype is None:
        raise BackendFailed(backend=OnnxRuntime.title, stage="to bind", reason=f"'{info.name}' is not a tensor")
    return int(info.dtype)
