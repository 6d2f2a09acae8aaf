"""What a model takes and returns, as the plan tells it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from bricolage.errors import NotBatchable
from bricolage.frontends.maps import KEYS
from bricolage.graph.graph import describe
from bricolage.graph.model_interface import interface
from bricolage.graph.prepare import dimension_name
from bricolage.plan.plan import TensorSpec


def input_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """What a caller must give, in order: names, types and sizes (names where symbolic)."""
    defaults = interface(model).defaults
    return _specs([value for value in model.graph.inputs if value.name not in defaults], model)


def default_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """What a caller may give, since the model has defaults."""
    defaults = interface(model).defaults
    return _specs([value for value in model.graph.inputs if value.name in defaults], model)


def output_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """What the model returns, in order and by the names that it has for it; two may have one name."""
    pairs = zip(_specs(model.graph.outputs, model), interface(model).outputs, strict=True)
    return tuple(replace(spec, name=name) for spec, name in pairs)


def _specs(values: Iterable[ir.Value], model: ir.Model) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    keys: dict[str, list[int | str]] = json.loads(model.metadata_props.get(KEYS, "{}"))
    for value in values:
        info = describe(value)
        shape = None
        if value.shape is not None and info.dtype is not None:
            shape = tuple(
                d if isinstance(d, int) else dimension_name(value, axis) for axis, d in enumerate(value.shape)
            )
        dtype = "str" if info.dtype == ir.DataType.STRING else info.numpy.name if info.dtype else str(value.type)
        specs.append(TensorSpec(info.name, dtype, shape, tuple(keys.get(info.name, ()))))
    return tuple(specs)


def batch_dimension(model: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """Name of the symbolic dimension that is the first of every input and no other one of any, where every output begins with a
    symbolic one, too. Whether rows along it know nothing of each other, only numbers can say.

    Raises:
        NotBatchable: there is none. `model` is named in it.
    """

    def create_refusal(reason: str) -> NotBatchable:
        return NotBatchable(model=model, reason=reason)

    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if not spec.shape or not isinstance(spec.shape[0], str):
                raise create_refusal(f"the first dimension of {kind} '{spec.name}' is not a symbolic one")
    names = {str(spec.shape[0]) for spec in inputs if spec.shape}
    if len(names) != 1:
        raise create_refusal(f"its inputs begin with {len(names)} different dimensions")
    (name,) = names
    for spec in (*inputs, *outputs):
        if name in (spec.shape or ())[1:]:
            raise create_refusal(f"'{spec.name}' has the dimension '{name}' at another place than the first, too")
    return name
