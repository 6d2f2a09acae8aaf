"""ONNX Runtime without its optimisations: what stands in for the float64 reference where that does not know an operator.

Graphs run as they are written, operator by operator, on one thread and deterministically, in the types that the model states. It
runs in worker processes only: a fault of the runtime must not end the caller's.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import numpy as np
import onnx
import onnx_ir as ir

from bricolage.base import telemetry
from bricolage.errors import NoReference
from bricolage.graph.graph import describe, find_captured
from bricolage.verify.single_operators import narrow
from bricolage.work.values import ModelValue

_FATAL_ONLY = 4
_TITLE = "ONNX Runtime without its optimisations"


@cache
def load_onnxruntime() -> ModuleType:
    """The `onnxruntime` module, loaded with its telemetry off."""
    telemetry.disable()
    import onnxruntime as ort

    ort.disable_telemetry_events()  # all that is left to do where the caller had loaded it before us
    module: ModuleType = ort
    return module


def is_installed() -> bool:
    """Whether ONNX Runtime can be imported; does not import it."""
    return importlib.util.find_spec("onnxruntime") is not None


class Unoptimised:
    """Answers of one model, or of one of its operators, in the types that it states.

    Raises:
        NoReference: ONNX Runtime is not installed, or does not take the model.
    """

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, ir.Value], folder: str = "") -> None:
        """`model`: of which every input is typed. `inputs`: the values behind them. `folder`: where external data lie."""
        if not is_installed():
            raise NoReference(
                reason="ONNX Runtime is not installed, which stands in for operators without float64 semantics"
            )
        self._declared = dict(inputs)
        self._names = [value.name for value in model.graph.output]
        ort = load_onnxruntime()
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.use_deterministic_compute = True
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        if folder:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        with _of_runtime("does not take it"):
            text = model.SerializeToString()
            self._session = ort.InferenceSession(text, options, providers=["CPUExecutionProvider"])
        self._foreign = any(
            _is_foreign(source.type) for source in (*self._session.get_inputs(), *self._session.get_outputs())
        )

    @classmethod
    def of_model(cls, model: ir.Model, keep: Collection[str] = ()) -> Unoptimised:
        """A whole model; its outputs, and the intermediate values named in `keep`."""
        proto = ir.to_proto(model)
        output_names = {value.name for value in proto.graph.output}
        proto.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in dict.fromkeys(keep) if name not in output_names
        )
        folders = {
            os.fspath(tensor.base_dir)
            for value in model.graph.initializers.values()
            if isinstance(tensor := value.const_value, ir.ExternalTensor)
        }
        inputs = {value.name or "": value for value in model.graph.inputs}
        return cls(proto, inputs, next(iter(folders), ""))

    @classmethod
    def of_node(cls, node: ir.Node, model: ir.Model, values: Mapping[str, ModelValue]) -> Unoptimised:
        """One operator of a model, which reads `values`; also what its bodies capture."""
        read = (value for value in (*node.inputs, *find_captured(node)) if value is not None and value.name)
        inputs = {value.name or "": value for value in read}
        graph = onnx.helper.make_graph(
            [ir.serde.serialize_node(node)],
            "operator",
            [_describe_input(value, values[name]) for name, value in inputs.items()],
            [_describe_output(value) for value in node.outputs if value.name],
        )
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
        proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
        return cls(proto, inputs)

    def __call__(self, inputs: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
        """Outputs by name. `inputs` may be wider than the model states.

        Raises:
            NoReference: it fails.
        """
        given = {name: narrow(inputs[name], self._declared[name]) for name in self._declared if name in inputs}
        with _of_runtime("fails"):
            if self._foreign:
                feeds = {name: to_value(describe(self._declared[name]).dtype, value) for name, value in given.items()}
                outputs = [from_value(ort_value) for ort_value in self._session.run_with_ort_values(self._names, feeds)]
            else:
                outputs = self._session.run(self._names, given)
        return {name: _array(value) for name, value in zip(self._names, outputs, strict=True)}


def to_value(dtype: ir.DataType | None, value: object) -> ModelValue:
    """An array as a value of the runtime, also of types that numpy itself lacks."""
    ort = load_onnxruntime()
    if not is_foreign(dtype):
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(value))
    array = np.ascontiguousarray(value)
    if _bits(dtype) < 8:
        packed = np.zeros(array.size, np.uint8)  # as many bytes as elements, of which the runtime reads the first
        raw = np.frombuffer(ir.Tensor(array, dtype=dtype).tobytes(), np.uint8)
        packed[: raw.size] = raw
        array = packed.reshape(array.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(dtype or 0))


def from_value(value: ModelValue, dtype: ir.DataType | None = None) -> ModelValue:
    """The array in a value of the runtime. `dtype`: its type, where the caller knows it."""
    dtype = ir.DataType(value.element_type()) if dtype is None else dtype
    if not is_foreign(dtype):
        return value.numpy()
    shape, kind = tuple(value.shape()), np.dtype(dtype.numpy())
    count = int(np.prod(shape))
    bits = _bits(dtype)
    size = -(-count * bits // 8)
    raw = bytearray(ctypes.string_at(value.data_ptr(), size) if size else b"")
    if bits < 8:
        parts = np.frombuffer(raw, np.uint8)[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)
        elements = (parts & ((1 << bits) - 1)).reshape(-1)[:count]
        return _of_few_bits(elements, bits, dtype).reshape(shape)
    return np.frombuffer(raw, dtype=kind).reshape(shape)


def _bits(dtype: ir.DataType | None) -> int:
    return int((dtype or ir.DataType.UINT8).bitwidth)


def _of_few_bits(elements: ModelValue, bits: int, dtype: ir.DataType) -> ModelValue:
    """Patterns of bits, one a byte, as numpy holds elements of the type."""
    if dtype.is_integer() and dtype.is_signed():
        return ((elements ^ (1 << (bits - 1))).astype(np.int8) - (1 << (bits - 1))).astype(dtype.numpy())
    return elements.astype(dtype.numpy()) if dtype.is_integer() else elements.view(dtype.numpy())


def is_foreign(dtype: ir.DataType | None) -> bool:
    """Whether numpy itself lacks the type (bfloat16, floats of 8 bits, and what is packed into bytes)."""
    return dtype is not None and dtype != ir.DataType.STRING and np.dtype(dtype.numpy()).kind == "V"


def _is_foreign(told: str) -> bool:
    """The same of a type in the runtime's words."""
    return told.startswith(
        ("tensor(bfloat16", "tensor(float8", "tensor(int4", "tensor(uint4", "tensor(int2", "tensor(uint2")
    )


def _describe_input(value: ir.Value, held: ModelValue) -> onnx.ValueInfoProto:
    """An input as the model states it; where it does not, as its value is. Sizes stay open."""
    if isinstance(value.type, ir.TensorType) or value.type is None:
        dtype = value.dtype or ir.DataType.from_numpy(narrow(np.asarray(held), value).dtype)
        return onnx.helper.make_tensor_value_info(value.name, int(dtype), None)
    return ir.to_proto(ir.Value(name=value.name, type=value.type))


def _describe_output(value: ir.Value) -> onnx.ValueInfoProto:
    """An output, with its type where the model states one: not all can be inferred."""
    if value.dtype is None or not isinstance(value.type, ir.TensorType):
        return onnx.ValueInfoProto(name=value.name)
    return onnx.helper.make_tensor_value_info(value.name, int(value.dtype), None)


def _array(value: ModelValue) -> ModelValue:
    """As the reference gives values: arrays, lists of them for sequences, dicts for maps."""
    if isinstance(value, list):
        return [_array(member) for member in value]
    return np.asarray(value) if isinstance(value, np.generic | int | float | bool | str) else value


@contextmanager
def _of_runtime(verb: str) -> Iterator[None]:
    """What the runtime raises, a dozen kinds without a common one, as `NoReference`."""
    try:
        yield
    except Exception as error:
        raise NoReference(reason=f"{_TITLE} {verb}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
