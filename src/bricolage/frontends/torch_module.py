"""PyTorch modules and exported programs. Nothing here imports torch unless such an object was given."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import onnx_ir as ir

from bricolage.base import telemetry
from bricolage.errors import BadTorchModel, MissingLibrary
from bricolage.frontends.clean import clean
from bricolage.frontends.mixed_types import unify_types
from bricolage.frontends.torch_translations import translations
from bricolage.frontends.upgrade import TARGET

if TYPE_CHECKING:
    import torch

_BASES = {"torch.nn.modules.module.Module": "module", "torch.export.exported_program.ExportedProgram": "program"}


def is_torch_model(source: object) -> TypeGuard[torch.nn.Module | torch.export.ExportedProgram]:
    """Whether an object is a torch module or an exported program, told without importing torch."""
    return _kind(source) is not None


def examples_of(source: object) -> tuple[object, ...]:
    """The arguments that an exported program was made with, where it carries them; nothing for anything else."""
    args, keywords = (getattr(source, "example_inputs", None) if _kind(source) == "program" else None) or ((), {})
    return (*args, *keywords.values())


def _kind(source: object) -> str | None:
    for base in type(source).__mro__:
        kind = _BASES.get(f"{base.__module__}.{base.__qualname__}")
        if kind:
            return kind
    return None


def from_torch(source: object, example_inputs: object = None, dynamic: object = None) -> ir.Model:
    """Exports a `torch.nn.Module` or a `torch.export.ExportedProgram` to a checked model.

    Args:
        source: the module (put into evaluation mode for the export and restored) or the program.
        example_inputs: for a module: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        dynamic: for a module: `dynamic_shapes` of `torch.onnx.export`, for example `{"x": {0: "batch"}}`.

    Raises:
        BadTorchModel: the export fails, with the first line that says why.
        MissingLibrary: PyTorch or its exporter is not installed.
    """
    telemetry.disable()
    try:
        import onnxscript  # noqa: F401
        import torch
    except ImportError as error:
        raise MissingLibrary(name=error.name, purpose="to read PyTorch models", reason=error, extra="export") from error
    if _kind(source) == "module" and example_inputs is None:
        raise BadTorchModel(reason="tracing it needs example inputs, for example example_inputs=(torch.randn(1, 3),)")
    _parse_once()
    _register_once()
    args, kwargs = _arguments(example_inputs)
    evaluation = _evaluation_mode(source) if isinstance(source, torch.nn.Module) else contextlib.nullcontext()
    try:
        with _silence(), evaluation, torch.no_grad():
            program = torch.onnx.export(
                cast("torch.nn.Module | torch.export.ExportedProgram", source),
                args,
                kwargs=kwargs,
                dynamo=True,
                dynamic_shapes=cast("dict[str, Any] | None", dynamic),
                verbose=False,
                external_data=False,
                custom_translation_table=translations(),
                opset_version=TARGET,  # later opsets hide GELU and attention in operators that few backends know
            )
    except Exception as error:  # user code runs inside the export and may raise anything
        raise BadTorchModel(reason=_reason(error)) from error
    assert program is not None
    _refuse_writes(program.exported_program)
    model = program.model
    _keep_arrays(model)
    unify_types(model)
    _name_outputs(model, _output_names(program.exported_program))
    return clean(model)


def _parse_once() -> None:
    """At each export, the exporter asks every function of its library (some 500) for its signature as ONNX. onnxscript 0.7
    parses the function's source for each answer, which takes longer than exporting a small model: from now on it keeps the
    answers."""
    import onnxscript.values

    traced: Any = getattr(onnxscript.values, "TracedOnnxFunction", None)
    signature = None if traced is None else vars(traced).get("function_ir")
    if isinstance(signature, property) and signature.fget is not None:
        kept = functools.cached_property(signature.fget)
        kept.__set_name__(traced, "function_ir")
        traced.function_ir = kept


def _register_once() -> None:
    """At each export, the exporter makes a registry of the functions of its library, the same each time, which PyTorch 2.13 takes
    a quarter of the time of a small model's export for. From now on it is given copies of the first."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:  # of another version, which may do it otherwise
        return
    original = getattr(ONNXRegistry, "from_torchlib", None)
    if (
        getattr(original, "__func__", None) is None or original is None
    ):  # it is another version's, or was changed before
        return
    kept = functools.cache(original)

    def from_torchlib(*arguments: object, **words: object) -> ONNXRegistry:
        first: ONNXRegistry = kept(*arguments, **words)
        registry = copy.copy(first)
        registry.functions = {target: list(functions) for target, functions in first.functions.items()}
        return registry

    ONNXRegistry.from_torchlib = staticmethod(from_torchlib)  # type: ignore[method-assign]


def _refuse_writes(program: torch.export.ExportedProgram | None) -> None:
    """The exporter leaves out what a model writes other than its answer, so later answers would differ.

    Raises:
        BadTorchModel: it writes a buffer or an input.
    """
    signature = program.graph_signature if program is not None else None
    if signature is None:
        return
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise BadTorchModel(reason=f"it writes '{written[0]}', and an executable keeps nothing from call to call")


def _arguments(example_inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments; numpy arrays become tensors."""
    if example_inputs is None:
        return (), {}
    if isinstance(example_inputs, Mapping):
        return (), {str(name): _tensor(value) for name, value in example_inputs.items()}
    if isinstance(example_inputs, Sequence):
        return tuple(_tensor(value) for value in example_inputs), {}
    return (_tensor(example_inputs),), {}


def _tensor(value: object) -> object:
    import torch

    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def _evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Each submodule's own flag is restored: parts of a model may have been frozen."""
    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporter prints, warns and logs about itself; what matters comes back as an exception."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.export", "torch._dynamo", "torch.fx")]
    levels = [logger.level for logger in loggers]
    disabled = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """The first line that is about the model: the exporter wraps the cause in advice on how to file a bug."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}".rstrip(".") if lines else type(error).__name__


def _keep_arrays(model: ir.Model) -> None:
    """Weights as numpy views: the model no longer depends on torch."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is not None and type(tensor).__module__.startswith("torch"):
                value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)


def _output_names(program: torch.export.ExportedProgram | None) -> list[str] | None:
    """Names of outputs from what `forward` returns: keys of a dict or fields of a dataclass; None for plain tensors."""
    import torch.utils._pytree as pytree

    spec = program.call_spec.out_spec if program is not None else None
    if spec is None or spec.type in (tuple, list) or spec.is_leaf():
        return None
    leaves = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))[0]
    return [".".join(map(_key_name, path)) for path, _ in leaves]


def _key_name(key: object) -> str:
    """Dict keys, dataclass fields and positions are three kinds of key."""
    return str(next((getattr(key, kind) for kind in ("key", "name", "idx") if hasattr(key, kind)), key))


def _name_outputs(model: ir.Model, names: list[str] | None) -> None:
    """Renames outputs as `forward` calls them; `output`, or `output_0` and so on, where it gives no names."""
    outputs = model.graph.outputs
    if names is None or len(names) != len(outputs):
        names = ["output"] if len(outputs) == 1 else [f"output_{i}" for i in range(len(outputs))]
    taken = {value.name for value in model.graph.inputs}
    for value, name in zip(list(outputs), names, strict=True):
        if not value.is_graph_input() and not value.is_initializer() and name not in taken:
            taken.add(name)
            value.name = name
