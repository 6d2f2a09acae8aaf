"""The cases of the ONNX backend test suite."""

from __future__ import annotations

import numpy as np

from bricolage.conformance.suite import cases
from bricolage.conformance.trials import trials


def test_cases_of_some_operators() -> None:
    found = cases({"Relu", "TopK"})
    assert {case.model.graph.node[0].op_type for case in found} == {"Relu", "TopK"}
    assert {case.name for case in cases({"Relu"})} < {case.name for case in found}
    assert all(case.single for case in found)


def test_reading_cases_leaves_the_callers_random_numbers_alone() -> None:
    np.random.seed(7)  # noqa: NPY002
    first = np.random.rand()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    cases({"Sigmoid", "Softplus"})
    assert np.random.rand() == first  # noqa: NPY002


def test_trials_cover_versions_types_and_forms() -> None:
    kinds = {(trial.version, trial.kind) for trial in trials(cases({"Reshape"}))}
    assert {("14", "float32"), ("14", "float32 runtime"), ("19", "int64")} <= kinds
