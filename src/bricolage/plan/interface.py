"""What a model takes and returns, as the plan tells it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.graph.prepare import dimension_name
from bricolage.plan.plan import TensorSpec


def tensor_specs(values: Sequence[ir.Value], model: ir.Model) -> tuple[TensorSpec, ...]:
    """Names, types and sizes (None where symbolic) of graph inputs or outputs, leaving out those that are weights."""
    specs: list[TensorSpec] = []
    for value in values:
        if value.name in model.graph.initializers:
            continue
        info = describe(value)
        shape = None
        if value.shape is not None and info.dtype is not None:
            shape = tuple(
                d if isinstance(d, int) else dimension_name(value, axis) for axis, d in enumerate(value.shape)
            )
        dtype = "str" if info.dtype == ir.DataType.STRING else info.numpy.name if info.dtype else str(value.type)
        specs.append(TensorSpec(info.name, dtype, shape))
    return tuple(specs)
