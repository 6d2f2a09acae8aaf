"""Cases that the suite has not: every type of every input, attributes away from their defaults, classical models."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import pytest

from bricolage.conformance.bases import base_cases
from bricolage.conformance.generated_cases import generate_cases, types_of
from bricolage.conformance.suite import Case, suite_cases
from bricolage.conformance.trial_cases import OperatorTrial, trials

FLOAT, DOUBLE, HALF, INT8, UINT8, BOOL, STRING = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.BOOL,
    onnx.TensorProto.STRING,
)


def made(*operators: str) -> list[Case]:
    return list(generate_cases([case for case in suite_cases(set(operators)) if case.single]))


def read(found: Collection[Case]) -> set[tuple[int, ...]]:
    """Element types of what the cases' operators read."""
    return {types_of(case)[1] for case in found}


def test_types_of_inputs_other_than_the_first_are_varied() -> None:
    assert {(BOOL, kind, kind) for kind in (HALF, DOUBLE, INT8, BOOL, STRING)} <= read(made("Where"))
    assert (FLOAT, FLOAT, INT8) in read(suite_cases({"QuantizeLinear"})) | read(made("QuantizeLinear"))


def test_types_that_go_together_are_replaced_together() -> None:
    assert (DOUBLE,) * 5 in read(made("BatchNormalization"))


def test_attributes_that_no_case_sets_are_set() -> None:
    found = {
        attribute.name for case in made("LRN", "Softplus", "Shrink") for attribute in case.model.graph.node[0].attribute
    }
    assert found >= {"alpha", "beta", "bias", "size"}


def test_weights_follow_the_types_of_inputs() -> None:
    kinds = {(trial.version, trial.kind) for trial in trials(suite_cases({"Conv"}))}
    assert {
        (version, f"{kind}{form}")
        for version in ("11", "22")
        for kind in ("float16", "float64")
        for form in ("", " runtime")
    } <= kinds


def test_names_tell_trials_apart() -> None:
    names = [trial.name for trial in trials(suite_cases({"BatchNormalization", "QuantizeLinear"}))]
    assert len(names) == len(set(names))


def test_classical_models_and_sequences_have_cases() -> None:
    known = {case.model.graph.node[0].op_type for case in base_cases()}
    assert known >= {
        "TreeEnsembleClassifier",
        "LinearRegressor",
        "SVMRegressor",
        "Scaler",
        "OneHotEncoder",
        "SequenceAt",
    }
    assert [case.name for case in base_cases({"Scaler"})] == [c.name for c in base_cases() if "scaler" in c.name]


def trial_kinds(found: Collection[OperatorTrial]) -> set[str]:
    return {trial.kind for trial in found}


def test_classical_models_are_tried_at_every_type() -> None:
    kinds = trial_kinds(trials(base_cases({"TreeEnsembleRegressor"})))
    assert kinds >= {"float32", "float64>float32"}


@pytest.mark.parametrize("case", made("Softmax", "Concat"), ids=lambda case: case.name)
def test_a_case_holds_what_it_says(case: Case) -> None:
    onnx.checker.check_model(case.model)
    for info, value in zip(case.model.graph.output, case.outputs, strict=True):
        wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        assert isinstance(value, np.ndarray) and value.dtype == wanted
        assert stated(info) == value.shape


def test_sizes_follow_what_is_replaced() -> None:
    """The depth of a OneHot is a size of its result, and other types of it have other values."""
    found = made("OneHot")
    assert len(found) > 50
    for case in found:
        assert [stated(info) for info in case.model.graph.output] == [np.shape(value) for value in case.outputs]


def stated(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)


def test_expected_results_are_those_of_the_corrected_reference() -> None:
    """A Normalizer divides by the largest element, not by the largest size of one, as onnx has it."""
    for case in base_cases({"Normalizer"}):
        if onnx.helper.get_attribute_value(case.model.graph.node[0].attribute[0]) == b"MAX":
            (x,), (y,) = case.inputs, case.outputs
            np.testing.assert_allclose(y, x / np.max(x, axis=1, keepdims=True), rtol=1e-6)
            return
    raise AssertionError("no case divides by the largest element")
