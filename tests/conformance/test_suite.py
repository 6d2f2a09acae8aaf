"""The cases of the ONNX backend test suite."""

from __future__ import annotations

import numpy as np

from bricolage.conformance.suite import detach_initializers, suite_cases, tenth
from bricolage.conformance.trial_cases import trials


def test_cases_of_some_operators() -> None:
    found = suite_cases({"Relu", "TopK"})
    assert {case.model.graph.node[0].op_type for case in found} == {"Relu", "TopK"}
    assert {case.name for case in suite_cases({"Relu"})} < {case.name for case in found}
    assert all(case.single for case in found)


def test_reading_cases_leaves_the_callers_random_numbers_alone() -> None:
    np.random.seed(7)  # noqa: NPY002
    first = np.random.rand()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    suite_cases({"Sigmoid", "Softplus"})
    assert np.random.rand() == first  # noqa: NPY002


def test_networks_and_models_of_old_are_read_as_they_are() -> None:
    networks = suite_cases(kinds=("real",))
    assert len(networks) == 9 and not any(case.single for case in networks)
    assert all(len(case.inputs) == len(case.outputs) == 1 for case in networks)
    old = suite_cases(kinds=("pytorch-operator",))
    both = [
        case
        for case in old
        if {t.name for t in case.model.graph.initializer} & {i.name for i in case.model.graph.input}
    ]
    assert both
    for case in both:
        apart = detach_initializers(case)
        assert len(apart.model.graph.input) == len(apart.inputs) < len(case.model.graph.input)


def test_a_tenth_is_chosen_by_names_alone() -> None:
    found = suite_cases({"Relu", "TopK", "Resize"})
    chosen = tenth(found)
    assert 0 < len(chosen) < len(found) / 3
    assert [case.name for case in tenth(reversed(found))] == [case.name for case in reversed(chosen)]


def test_trials_cover_versions_types_and_forms() -> None:
    kinds = {(trial.version, trial.kind) for trial in trials(suite_cases({"Reshape"}))}
    assert {("14", "float32"), ("14", "float32 runtime"), ("19", "int64")} <= kinds
