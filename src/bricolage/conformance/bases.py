"""One case, at least, of operators of which the ONNX suite has none: sequences, and classical models (`ai.onnx.ml`).

Attributes are as converters write them. Expected outputs are the reference implementation's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bricolage.conformance.expected_outputs import reference_outputs
from bricolage.conformance.suite import Case

ML = "ai.onnx.ml"
_OPSET, _ML_OPSET = 18, 3
_TOLERANCE = 1e-4


def base_cases(operators: Collection[str] | None = None) -> list[Case]:
    """All of them, or those of the operator types in `operators`."""
    return [case for case in _build_cases() if operators is None or case.model.graph.node[0].op_type in operators]


@cache
def _build_cases() -> tuple[Case, ...]:
    cases = [case for case in (_case(*spec) for spec in _every()) if case is not None]
    return tuple(replace(case, name=f"{case.name}_{number}") for number, case in enumerate(cases))


_Given = tuple[str, str, Mapping[str, Any], Mapping[str, Any], tuple[onnx.TypeProto, ...]]
"""Domain, operator type, attributes, inputs by name, and the types of the outputs."""


def _tensor(kind: int, *shape: int) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(kind, shape)


def _every() -> Iterator[_Given]:
    yield from _sequences()
    yield from _preparations()
    yield from _linear()
    yield from _support_vectors()
    yield from _trees()


def _sequences() -> Iterator[_Given]:
    x, z = _values(2, 3), _values(2, 3) + 1
    plain, index = _tensor(TensorProto.FLOAT, 2, 3), np.int64(1)
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    yield "", "SequenceConstruct", {}, {"x": x, "z": z}, (sequence,)
    yield "", "SequenceAt", {}, {"s": [x, z], "i": index}, (plain,)
    yield "", "SequenceErase", {}, {"s": [x, z], "i": index}, (sequence,)
    yield "", "SequenceLength", {}, {"s": [x, z]}, (_tensor(TensorProto.INT64),)
    yield "", "ConcatFromSequence", {"axis": 1}, {"s": [x, z]}, (_tensor(TensorProto.FLOAT, 2, 6),)
    stacked = {"axis": 0, "new_axis": 1}
    yield "", "ConcatFromSequence", stacked, {"s": [x, z]}, (_tensor(TensorProto.FLOAT, 2, 2, 3),)


def _preparations() -> Iterator[_Given]:
    x = _values(4, 3)
    plain = (_tensor(TensorProto.FLOAT, 4, 3),)
    yield ML, "Scaler", {"offset": [0.5, -0.25, 0.0], "scale": [2.0, 1.0, 0.5]}, {"x": x}, plain
    for norm in ("MAX", "L1", "L2"):
        yield ML, "Normalizer", {"norm": norm}, {"x": x}, plain
    gaps = np.where(x > 1, np.float32(np.nan), x)
    filled = {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}
    yield ML, "Imputer", filled, {"x": gaps}, plain
    words = np.array(["a", "c", "b"], object)
    yield ML, "OneHotEncoder", {"cats_strings": ["a", "b"]}, {"x": words}, (_tensor(TensorProto.FLOAT, 3, 2),)
    numbers = np.array([1, 3, 2], np.int64)
    yield ML, "OneHotEncoder", {"cats_int64s": [1, 2]}, {"x": numbers}, (_tensor(TensorProto.FLOAT, 3, 2),)
    wide = (_tensor(TensorProto.FLOAT, 4, 6),)
    yield ML, "FeatureVectorizer", {"inputdimensions": [3, 3]}, {"x": x, "z": x + 1}, wide


def _linear() -> Iterator[_Given]:
    x, weights = _values(4, 3), [float(v) for v in _values(6)]
    two, labels = _tensor(TensorProto.FLOAT, 4, 2), _tensor(TensorProto.INT64, 4)
    regressor = {"coefficients": weights, "intercepts": [0.5, -0.5], "targets": 2}
    yield ML, "LinearRegressor", regressor, {"x": x}, (two,)
    for last in ("NONE", "SOFTMAX", "LOGISTIC"):
        classifier = {"coefficients": weights, "intercepts": [0.5, -0.5], "post_transform": last}
        yield ML, "LinearClassifier", {**classifier, "classlabels_ints": [3, 7]}, {"x": x}, (labels, two)
    words = {"coefficients": weights, "intercepts": [0.5, -0.5], "classlabels_strings": ["no", "yes"]}
    yield ML, "LinearClassifier", words, {"x": x}, (_tensor(TensorProto.STRING, 4), two)


def _support_vectors() -> Iterator[_Given]:
    x, vectors = _values(4, 3), [float(v) for v in _values(5, 3).reshape(-1)]
    for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID"):
        shared = {"kernel_type": kernel, "kernel_params": [0.5, 0.25, 2.0], "support_vectors": vectors}
        regressor = {**shared, "coefficients": [0.5, -1.0, 0.75, 0.25, -0.5], "n_supports": 5, "rho": [0.125]}
        yield ML, "SVMRegressor", regressor, {"x": x}, (_tensor(TensorProto.FLOAT, 4, 1),)


def _trees() -> Iterator[_Given]:
    x = _values(5, 3)
    split: dict[str, Any] = {
        "nodes_treeids": [0] * 5 + [1] * 3,
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
        "nodes_values": [0.0, 0.5, 0.0, 0.0, 0.0, -0.25, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
    }
    trees, nodes = [0, 0, 0, 1, 1], [2, 3, 4, 1, 2]
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        targets = {"target_treeids": trees, "target_nodeids": nodes, "target_ids": [0] * 5, "n_targets": 1}
        regressor = {**split, **targets, "target_weights": [1.0, -2.0, 0.5, 3.0, -1.5]}
        score_types = (_tensor(TensorProto.FLOAT, 5, 1),)
        yield ML, "TreeEnsembleRegressor", {**regressor, "aggregate_function": aggregate}, {"x": x}, score_types
    classes = {"class_treeids": trees, "class_nodeids": nodes, "class_ids": [0, 1, 2, 1, 0]}
    classifier = {**split, **classes, "class_weights": [1.0, 2.0, 0.5, 3.0, 1.5]}
    for last in ("NONE", "SOFTMAX", "LOGISTIC"):
        whole = {**classifier, "post_transform": last, "classlabels_int64s": [0, 1, 2]}
        outputs = (_tensor(TensorProto.INT64, 5), _tensor(TensorProto.FLOAT, 5, 3))
        yield ML, "TreeEnsembleClassifier", whole, {"x": x}, outputs
    words = {**classifier, "classlabels_strings": ["a", "b", "c"]}
    outputs = (_tensor(TensorProto.STRING, 5), _tensor(TensorProto.FLOAT, 5, 3))
    yield ML, "TreeEnsembleClassifier", words, {"x": x}, outputs


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _case(
    domain: str,
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: tuple[onnx.TypeProto, ...],
) -> Case | None:
    names = [f"y{number}" for number in range(len(outputs))]
    node = helper.make_node(op_type, list(inputs), names, domain=domain, **attributes)
    given = [helper.make_value_info(name, _type(value)) for name, value in inputs.items()]
    output_infos = [helper.make_value_info(name, kind) for name, kind in zip(names, outputs, strict=True)]
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(ML, _ML_OPSET)][: 2 if domain else 1]
    model = helper.make_model(
        helper.make_graph([node], "base", given, output_infos), opset_imports=opsets, ir_version=10
    )
    computed = reference_outputs(model, list(inputs.values()))
    if computed is None:  # this version of the reference implementation has not the operator
        return None
    expected = tuple(value if isinstance(value, list) else np.asarray(value) for value in computed)
    return Case(f"base_{op_type.lower()}", model, tuple(inputs.values()), expected, _TOLERANCE, _TOLERANCE)


def _type(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    array = np.asarray(value)
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
