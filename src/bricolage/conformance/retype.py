"""Cases of the suite in element types that the suite leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx

from bricolage.conformance.expected_outputs import difference, reference_outputs
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
EVERY_TYPE = (
    *TYPES,
    onnx.TensorProto.INT16,
    onnx.TensorProto.UINT16,
    onnx.TensorProto.UINT32,
    onnx.TensorProto.UINT64,
    onnx.TensorProto.STRING,
)
"""And the rarer ones whose elements have whole bytes and real values, or are strings."""
_HALF = {onnx.TensorProto.FLOAT16: 1e-2, onnx.TensorProto.BFLOAT16: 4e-2}
"""Tolerance, relative and relative to the largest element, of half-precision results."""
_DIVIDES = {"Div", "Mod", "Reciprocal"}
_RESULT = {"Cast": "to", "CastLike": "", "EyeLike": "dtype"}


def schema_of(case: Case) -> onnx.defs.OpSchema | None:
    """The definition of the operator of a case, at opset 18 where the case is older; None where it has none."""
    node = case.model.graph.node[0]
    opset = max((o.version for o in case.model.opset_import if o.domain == node.domain), default=1)
    try:
        return onnx.defs.get_schema(node.op_type, opset if node.domain else max(opset, 18), node.domain)
    except onnx.defs.SchemaError:
        return None


def type_variables(case: Case) -> list[str]:
    """Names of the types of an operator's inputs that its definition leaves open, the main one first."""
    schema = schema_of(case)
    if schema is None:
        return []
    given = zip(case.model.graph.node[0].input, schema.inputs, strict=False)
    open_ = {constraint.type_param_str for constraint in schema.type_constraints}
    return list(dict.fromkeys(formal.type_str for name, formal in given if name and formal.type_str in open_))


def retype_case(
    case: Case, target: int, which: Collection[str] | None = None, results: Collection[int] = TYPES
) -> Iterator[Case]:
    """The case with its main type replaced by `target` wherever the operator's schema ties it; for Cast one case for
    each type among `results`. Nothing when the schema or the reference implementation does not know the type.

    Args:
        case: of one operator.
        target: an element type.
        which: the types that are replaced, as `type_variables` names them; the main one by default.
        results: of Cast and its like.
    """
    node, schema = case.model.graph.node[0], schema_of(case)
    if schema is None or not case.inputs or not schema.inputs:
        return
    if any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        return
    chosen = {schema.inputs[0].type_str} if which is None else set(which)
    for variable in chosen:
        allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), ())
        if f"tensor({onnx.TensorProto.DataType.Name(target).lower()})" not in allowed:
            return
    if not all(isinstance(value, np.ndarray) and value.dtype != object for value in (*case.inputs, *case.outputs)):
        return
    for result in results if node.op_type in _RESULT else (None,):
        retyped_case = _retype(case, schema, chosen, target, result)
        if retyped_case is not None:
            yield retyped_case


def _retype(
    case: Case, schema: onnx.defs.OpSchema, which: Collection[str], target: int, result: int | None
) -> Case | None:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    tied_in = set[str]().union(*(_find_tied_names(node.input, schema.inputs, variable) for variable in which))
    tied_out = set[str]().union(*(_find_tied_names(node.output, schema.outputs, variable) for variable in which))
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
    for tensor in model.graph.initializer:
        if tensor.name in tied_in:
            held = _convert(onnx.numpy_helper.to_array(tensor), target, node.op_type)
            tensor.CopyFrom(onnx.numpy_helper.from_array(held, tensor.name))
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
    outputs = compute_expected(model, inputs, None if node.op_type in _RESULT else target if target in _HALF else None)
    if outputs is None:
        return None
    restate(model, outputs)
    rtol, atol = case.rtol, case.atol
    half = max((_HALF.get(kind, 0.0) for kind in (target, result or 0)), default=0.0)
    if half and node.op_type not in _RESULT:
        largest = max((float(np.max(np.abs(o.astype(np.float64)), initial=0.0)) for o in outputs), default=0.0)
        rtol, atol = half, half * (largest if np.isfinite(largest) else 1.0)
    replaced = "" if set(which) == {schema.inputs[0].type_str} else "+".join(sorted(which)) + "_"
    suffix = (
        replaced
        + onnx.TensorProto.DataType.Name(target).lower()
        + (f"_to_{onnx.TensorProto.DataType.Name(result).lower()}" if result is not None else "")
    )
    return replace(
        case, name=f"{case.name}@{suffix}", model=model, inputs=tuple(inputs), outputs=outputs, rtol=rtol, atol=atol
    )


def restate(model: onnx.ModelProto, outputs: Sequence[np.ndarray]) -> None:
    """Has a model state the sizes that its outputs have, in place: what is replaced may be a size (OneHot's depth)."""
    for info, output in zip(model.graph.output, outputs, strict=True):
        info.type.tensor_type.ClearField("shape")
        info.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
        for size in output.shape:
            info.type.tensor_type.shape.dim.add().dim_value = size


def _find_tied_names(names: object, formals: object, variable: str) -> set[str]:
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
    if target == onnx.TensorProto.STRING:
        plain = value.astype(np.float64) if value.dtype.kind == "V" else value
        return plain.astype(str).astype(object)
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


def compute_expected(
    model: onnx.ModelProto, inputs: list[np.ndarray], half: int | None
) -> tuple[np.ndarray, ...] | None:
    """Results of the reference implementation; half-precision ones are computed in float32 and rounded once."""
    wanted = [np.dtype(onnx.helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type)) for o in model.graph.output]
    run, given = model, list(inputs)
    if half:
        run = onnx.ModelProto()
        run.CopyFrom(model)
        for tensor in run.graph.initializer:
            if tensor.data_type == half:
                wide = onnx.numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
        for info in (*run.graph.input, *run.graph.output):
            if info.type.tensor_type.elem_type == half:
                info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(half))
        given = [value.astype(np.float32) if value.dtype == dtype else value for value in given]
    outputs, again = reference_outputs(run, given), reference_outputs(run, given)
    if outputs is None or again is None:  # the type is then not tried
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in outputs) or difference(outputs, again, 0.0, 0.0):
        return None
    results = [np.asarray(value) for value in outputs]
    if half:
        with np.errstate(over="ignore"):
            results = [
                value.astype(dtype) if value.dtype == np.float32 and dtype == want else value
                for value, want in zip(results, wanted, strict=True)
            ]
    if model.graph.node[0].domain:  # classical models answer in float32 whatever they are given
        pairs = zip(results, wanted, strict=True)
        results = [value.astype(want) if value.dtype.kind == want.kind == "f" else value for value, want in pairs]
    results = [_narrow_integers(value, want) for value, want in zip(results, wanted, strict=True)]
    ok = all(value.dtype == want for value, want in zip(results, wanted, strict=True))
    return tuple(results) if ok else None


def _narrow_integers(value: np.ndarray, want: np.dtype[np.generic]) -> np.ndarray:
    """Integers that numpy has summed up in a wider type as the operator's own, where they fit."""
    if value.dtype == want or value.dtype.kind not in "iu" or want.kind not in "iu":
        return value
    narrow = value.astype(want)
    return narrow if np.array_equal(narrow, value) else value
