"""ONNX files and objects, PyTorch modules and exported programs, as checked `onnx_ir` models.

What reads a kind is imported when there is one: a process that writes text from compiled code reads no graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.errors import BadOption

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["open_program", "to_model"]


def to_model(
    source: object, *, example_inputs: object = None, dynamic: object = None, base_dir: str | Path | None = None
) -> ir.Model:
    """A checked model from whatever the user has. `source` itself is not changed.

    Args:
        source: a path to an ONNX file or to a `.pt2` file of `torch.export.save`, an `onnx.ModelProto`, an
            `onnx_ir.Model`, a `torch.nn.Module` or a `torch.export.ExportedProgram`.
        example_inputs: for a module: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        dynamic: for a module: its `dynamic_shapes`, for example `{"x": {0: "batch"}}`.
        base_dir: for a `ModelProto`: the folder of its external data (default: the working directory).

    Raises:
        UsageError: one of the catalogue's errors about models, naming the file, node or tensor at fault.
    """
    import onnx
    import onnx_ir as ir

    from bricolage.frontends.in_memory import from_ir, from_proto
    from bricolage.frontends.onnx_file import load_onnx
    from bricolage.frontends.torch_module import from_torch, is_torch_model

    source = open_program(source)
    if isinstance(source, str | Path):
        return load_onnx(source)
    if isinstance(source, onnx.ModelProto):
        return from_proto(source, Path(base_dir) if base_dir is not None else None)
    if isinstance(source, ir.Model):
        return from_ir(source)
    if is_torch_model(source):
        return from_torch(source, example_inputs, dynamic)
    raise BadOption(
        option="model",
        value=type(source).__name__,
        advice="Give a path, an onnx.ModelProto, an onnx_ir.Model, a torch.nn.Module or a torch.export.ExportedProgram",
    )


def open_program(source: object) -> object:
    """The exported program of a `.pt2` file; anything else as it is.

    Raises:
        UsageError: the file is not there, or not what it should be.
    """
    from bricolage.frontends.exported_program import SUFFIX, load_program

    return load_program(source) if isinstance(source, str | Path) and Path(source).suffix == SUFFIX else source
