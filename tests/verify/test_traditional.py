"""Operators of ai.onnx.ml: the reference beside ONNX Runtime's own kernels, and where they differ, that the runtime is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from bricolage.errors import NoReference
from bricolage.verify.compare import errors
from bricolage.verify.doubtful import doubt
from bricolage.verify.reference import evaluate
from tests.lowering.runtime import SHARED

pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
HOLES = np.where(np.arange(24).reshape(6, 4) % 7 == 1, np.float32(np.nan), X)
NUMBERS = [float(one) for one in np.random.default_rng(1).standard_normal(20).astype(np.float32)]
WORDS = np.array(["a", "c", "zz"], object)


def node_model(op_type: str, x: Any, outputs: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    kind = onnx.TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    names = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], names, domain="ai.onnx.ml", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [onnx.ValueInfoProto(name=name) for name in names],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9
    )


def trees(classes: int, mode: str = "BRANCH_LEQ", kind: str = "class") -> dict[str, Any]:
    """Five trees of three decisions, at numbers that inputs have, too."""
    rng, nodes = np.random.default_rng(classes), [(tree, k) for tree in range(5) for k in range(7)]
    leaves = [(tree, k) for tree, k in nodes if k >= 3]
    return {
        "nodes_treeids": [tree for tree, _ in nodes],
        "nodes_nodeids": [k for _, k in nodes],
        "nodes_featureids": [int(rng.integers(4)) if k < 3 else 0 for _, k in nodes],
        "nodes_values": [float(X[rng.integers(6), rng.integers(4)]) if k < 3 else 0.0 for _, k in nodes],
        "nodes_modes": [mode if k < 3 else "LEAF" for _, k in nodes],
        "nodes_truenodeids": [2 * k + 1 if k < 3 else 0 for _, k in nodes],
        "nodes_falsenodeids": [2 * k + 2 if k < 3 else 0 for _, k in nodes],
        "nodes_missing_value_tracks_true": [int(rng.integers(2)) for _ in nodes],
        f"{kind}_treeids": [tree for tree, _ in leaves],
        f"{kind}_nodeids": [k for _, k in leaves],
        f"{kind}_ids": [tree % classes for tree, _ in leaves],
        f"{kind}_weights": [float(np.float32(rng.standard_normal())) for _ in leaves],
    }


LINEAR = {"coefficients": NUMBERS[:12], "intercepts": NUMBERS[12:15]}
SVM = {"kernel_params": [0.5, 0.1, 3.0], "support_vectors": NUMBERS, "coefficients": NUMBERS[:5], "rho": [0.2]}
CASES: list[tuple[str, Any, int, dict[str, Any]]] = [
    *(("Scaler", x, 1, {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [1.0, 2.0, 3.0, 4.0]}) for x in (X, np.int64(9 * X))),
    *(("Normalizer", x, 1, {"norm": norm}) for x in (X, np.int64(9 * X)) for norm in ("MAX", "L1", "L2")),
    ("Binarizer", X, 1, {"threshold": 0.2}),
    ("Imputer", HOLES, 1, {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")}),
    ("OneHotEncoder", np.int64([1, 2, 5]), 1, {"cats_int64s": [1, 2, 3], "zeros": 1}),
    ("OneHotEncoder", WORDS, 1, {"cats_strings": ["a", "b", "c"], "zeros": 1}),
    ("OneHotEncoder", np.float32([[1.5, -0.5], [2.0, 7.0]]), 1, {"cats_int64s": [1, 0, 2], "zeros": 1}),
    ("LabelEncoder", WORDS, 1, {"keys_strings": ["a", "b"], "values_int64s": [3, 4], "default_int64": -7}),
    ("LabelEncoder", np.int64([1, 9]), 1, {"keys_int64s": [1, 2], "values_strings": ["u", "v"], "default_string": "?"}),
    ("ZipMap", abs(X[:, :3]), 1, {"classlabels_int64s": [0, 4, 2]}),
    ("ZipMap", abs(X[:, :2]), 1, {"classlabels_strings": ["a", "b"]}),
    ("LinearRegressor", X, 1, {"coefficients": NUMBERS[:8], "intercepts": [0.1, 0.2], "targets": 2}),
    *(
        ("LinearClassifier", X, 2, {**LINEAR, "classlabels_ints": [5, 6, 7], "post_transform": post})
        for post in ("NONE", "SOFTMAX", "LOGISTIC")
    ),
    ("LinearClassifier", X, 2, {**LINEAR, "classlabels_strings": ["a", "b", "c"], "post_transform": "SOFTMAX"}),
    *(("SVMRegressor", X, 1, {**SVM, "kernel_type": kernel, "n_supports": 5}) for kernel in ("LINEAR", "RBF", "POLY")),
    ("SVMClassifier", X, 2, {**SVM, "kernel_type": "RBF", "vectors_per_class": [2, 3], "classlabels_ints": [0, 1]}),
    *(
        ("TreeEnsembleClassifier", x, 2, {**trees(3, mode), "classlabels_int64s": [0, 1, 2], "post_transform": post})
        for x, mode, post in (
            (X, "BRANCH_LEQ", "SOFTMAX"),
            (HOLES, "BRANCH_LEQ", "NONE"),
            (HOLES, "BRANCH_LT", "LOGISTIC"),
            (X, "BRANCH_GT", "NONE"),
            (X, "BRANCH_EQ", "NONE"),
        )
    ),
    *(
        ("TreeEnsembleRegressor", HOLES, 1, {**trees(2, kind="target"), "n_targets": 2, "aggregate_function": how})
        for how in ("SUM", "AVERAGE", "MIN", "MAX")
    ),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_the_reference_is_what_the_runtime_computes(number: int) -> None:
    op_type, x, outputs, attributes = CASES[number]
    proto = node_model(op_type, x, outputs, attributes)
    names = [value.name for value in proto.graph.output]
    answer = SHARED.run(proto.SerializeToString(), {"x": x}, names)
    found = evaluate(ir.from_proto(proto), {"x": x})
    assert not doubt(ir.from_proto(proto).graph.node(0))
    assert max(errors(answer, [found[name] for name in names])) < 1e-6


def test_where_definitions_leave_it_open_the_runtime_is_asked() -> None:
    """Outside of a worker there is no runtime to ask."""
    for op_type, attributes in (
        ("TreeEnsembleClassifier", {**trees(1), "classlabels_int64s": [0, 1]}),
        ("TreeEnsembleClassifier", {**trees(2), "classlabels_int64s": [0, 1]}),
        ("LinearClassifier", {"intercepts": [0.1], "classlabels_ints": [0, 1]}),
        ("LinearRegressor", {"post_transform": "SOFTMAX"}),
        ("SVMClassifier", {"prob_a": [0.1, 0.2, 0.3]}),
        ("TreeEnsembleRegressor", {"nodes_modes": ["BRANCH_NEQ", "LEAF", "LEAF"]}),
    ):
        model = ir.from_proto(node_model(op_type, X, 1, attributes))
        with pytest.raises(NoReference, match=doubt(model.graph.node(0)) or "no doubt"):
            evaluate(model, {"x": X})
