"""Operators of ai.onnx.ml that the ONNX reference implementation computes otherwise than runtimes, for which exporters write them.

Their definitions leave open what a label or a score is in these cases, so a runtime without its optimisations says it instead
(`bricolage.verify.unoptimised`). The tests compare the two in all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir


def doubt(node: ir.Node) -> str:
    """Why the reference implementation is not asked; empty where it is."""
    of = _DOUBTS.get(node.op_type) if node.domain == "ai.onnx.ml" else None
    return of(node) if of is not None else ""


def _post_transform(node: ir.Node) -> str:
    return node.attributes.get_string("post_transform", "NONE")


def _labels(node: ir.Node) -> int:
    attributes = node.attributes
    integers = attributes.get_ints("classlabels_int64s", ()) or attributes.get_ints("classlabels_ints", ())
    return max(len(integers), len(attributes.get_strings("classlabels_strings", ())))


def _linear_classifier(node: ir.Node) -> str:
    if _post_transform(node) == "PROBIT":
        return "the label of scores that are no numbers is not defined"
    if len(node.attributes.get_floats("intercepts", ())) == 1 and _post_transform(node) != "LOGISTIC":
        return "the second score of two classes with one row of coefficients is not defined"
    return ""


def _linear_regressor(node: ir.Node) -> str:
    return "it transforms its scores" if _post_transform(node) != "NONE" else ""


def _svm_classifier(node: ir.Node) -> str:
    if len(node.attributes.get_floats("prob_a", ())) > 1:
        return "how probabilities of more than two classes are coupled is not defined"
    return ""


def _trees(node: ir.Node) -> str:
    if "BRANCH_NEQ" in node.attributes.get_strings("nodes_modes", ()):
        return "where NaN goes at an inequality is not defined"
    if node.op_type == "TreeEnsembleClassifier" and _labels(node) <= 2 and not _all_scored(node):
        return "the other score of two classes is not defined"
    return ""


def _all_scored(node: ir.Node) -> bool:
    """Whether every leaf has a score for both of two classes."""
    named = ("class_treeids", "class_nodeids", "class_ids")
    scored = set(zip(*(node.attributes.get_ints(name, ()) for name in named), strict=False))
    leaves = {(tree, leaf) for tree, leaf, _ in scored}
    return len(scored) == 2 * len(leaves)


_DOUBTS: Mapping[str, Callable[[ir.Node], str]] = {
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "SVMClassifier": _svm_classifier,
    "TreeEnsembleClassifier": _trees,
    "TreeEnsembleRegressor": _trees,
}
