"""Cases of the suite in element types that the suite leaves out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from bricolage.conformance.compare import difference
from bricolage.conformance.suite import Case

TYPES = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT64,
    onnx.TensorProto.BOOL,
)
"""Element types that models use."""
_HALF = {onnx.TensorProto.FLOAT16: 1e-2, onnx.TensorProto.BFLOAT16: 4e-2}
"""Tolerance, relative and relative to the largest element, of half-precision results."""
_DIVIDES = {"Div", "Mod", "Reciprocal"}
_RESULT = {"Cast": "to", "CastLike": "", "EyeLike": "dtype"}


def retyped(case: Case, target: int) -> Iterator[Case]:
    """The case with its main type replaced by `target` wherever the operator's schema ties it; for Cast one case for
    each result type. Nothing when the schema or the reference implementation does not know the type."""
    node = case.model.graph.node[0]
    opset = max((o.version for o in case.model.opset_import if not o.domain), default=1)
    try:
        schema = onnx.defs.get_schema(node.op_type, max(opset, 18), node.domain)
    except onnx.defs.SchemaError:
        return
    if not case.inputs or not schema.inputs or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        return
    variable = schema.inputs[0].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), ())
    if f"tensor({onnx.TensorProto.DataType.Name(target).lower()})" not in allowed:
        return
    if not all(isinstance(value, np.ndarray) and value.dtype != object for value in (*case.inputs, *case.outputs)):
        return
    results = TYPES if node.op_type in _RESULT else (None,)
    for result in results:
        made = _retype(case, schema, variable, target, result)
        if made is not None:
            yield made


def _retype(case: Case, schema: onnx.defs.OpSchema, variable: str, target: int, result: int | None) -> Case | None:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    tied_in = _tied(node.input, schema.inputs, variable)
    tied_out = _tied(node.output, schema.outputs, variable)
    if result is not None:
        if node.op_type == "Cast":
            next(a for a in node.attribute if a.name == "to").i = result
        elif node.op_type == "CastLike":
            tied_in -= {node.input[1]}
            next(info for info in model.graph.input if info.name == node.input[1]).type.tensor_type.elem_type = result
        else:
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute(_RESULT[node.op_type], result))
        for info in model.graph.output:
            info.type.tensor_type.elem_type = result
    inputs: list[np.ndarray] = []
    for info, value in zip(model.graph.input, case.inputs, strict=True):
        assert isinstance(value, np.ndarray)
        if info.name in tied_in:
            info.type.tensor_type.elem_type = target
            value = _convert(value, target, node.op_type)
        elif node.op_type == "CastLike" and info.name == node.input[1]:
            assert result is not None
            value = value.astype(onnx.helper.tensor_dtype_to_np_dtype(result))
        inputs.append(value)
    for info in model.graph.output:
        if info.name in tied_out and result is None:
            info.type.tensor_type.elem_type = target
    outputs = _expected(model, inputs, None if node.op_type in _RESULT else target if target in _HALF else None)
    if outputs is None:
        return None
    rtol, atol = case.rtol, case.atol
    half = max((_HALF.get(kind, 0.0) for kind in (target, result or 0)), default=0.0)
    if half and node.op_type not in _RESULT:
        largest = max((float(np.max(np.abs(o.astype(np.float64)), initial=0.0)) for o in outputs), default=0.0)
        rtol, atol = half, half * (largest if np.isfinite(largest) else 1.0)
    suffix = onnx.TensorProto.DataType.Name(target).lower() + (
        f"_to_{onnx.TensorProto.DataType.Name(result).lower()}" if result is not None else ""
    )
    return replace(
        case, name=f"{case.name}@{suffix}", model=model, inputs=tuple(inputs), outputs=outputs, rtol=rtol, atol=atol
    )


def _tied(names: object, formals: object, variable: str) -> set[str]:
    """Names of the actual parameters whose type is the variable; the last formal parameter may repeat."""
    formal = list(formals)  # type: ignore[call-overload]
    actual = list(names)  # type: ignore[call-overload]
    return {
        name
        for position, name in enumerate(actual)
        if name and formal and formal[min(position, len(formal) - 1)].type_str == variable
    }


def _convert(value: np.ndarray, target: int, op_type: str) -> np.ndarray:
    """The values in another type: small, without fractions where it has none, and never a divisor of zero."""
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(target))
    if value.dtype == object or value.dtype.kind == "c":
        return value
    wide = np.nan_to_num(value.astype(np.float64), nan=1.0, posinf=4.0, neginf=-4.0)
    if dtype == np.bool_:
        return np.asarray(wide > 0)
    if dtype.kind in "iu":
        if value.dtype.kind not in "iub":
            wide = np.rint(wide * 3)
        wide = np.clip(wide, 0 if dtype.kind == "u" else -100, 100)
        if op_type == "Pow":
            wide = np.clip(np.abs(wide), 0, 3)
    if op_type in _DIVIDES:
        wide = np.where(wide == 0, 1, wide)
    with np.errstate(over="ignore"):
        return np.asarray(wide.astype(dtype))


def _expected(model: onnx.ModelProto, inputs: list[np.ndarray], half: int | None) -> tuple[np.ndarray, ...] | None:
    """Results of the reference implementation; half-precision ones are computed in float32 and rounded once."""
    names = [info.name for info in model.graph.input]
    wanted = [np.dtype(onnx.helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type)) for o in model.graph.output]
    run, feeds = model, dict(zip(names, inputs, strict=True))
    if half:
        run = onnx.ModelProto()
        run.CopyFrom(model)
        for info in (*run.graph.input, *run.graph.output):
            if info.type.tensor_type.elem_type == half:
                info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(half))
        feeds = {name: value.astype(np.float32) if value.dtype == dtype else value for name, value in feeds.items()}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(run).run(None, feeds)
            again = ReferenceEvaluator(run).run(None, feeds)
    except Exception:  # the reference has gaps: the type is then not tried
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in found) or difference(found, again, 0.0, 0.0):
        return None
    results = [np.asarray(value) for value in found]
    if half:
        with np.errstate(over="ignore"):
            results = [
                value.astype(dtype) if value.dtype == np.float32 and dtype == want else value
                for value, want in zip(results, wanted, strict=True)
            ]
    ok = all(value.dtype == want for value, want in zip(results, wanted, strict=True))
    return tuple(results) if ok else None
