"""Counts of operators beside other tools: what is fused counts as what it replaces, and a wrong answer is no count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("onnxruntime")

from benchmarks.fusion import counting
from benchmarks.rewrites import optimizers
from benchmarks.rewriting import _COUNTED, OURS, Row, _Check, table


def save(path: Path, inputs: str, body: str, rank: int = 2, **weights: np.ndarray) -> Path:
    graph = onnx.parser.parse_graph(f"g ({inputs}) => (y) {{ {body} }}")
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [f"d{i}" for i in range(rank)])
    )
    imports = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)


def number(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


GELU = "a = Div(x, r) e = Erf(a) g = Add(e, one) p = Mul(x, g) y = Mul(p, h)"
GELU_WEIGHTS = {"r": number(2**0.5), "one": number(1), "h": number(0.5)}


@pytest.mark.parametrize(
    ("inputs", "body", "weights", "fused"),
    [
        ("float[1,8,6,6] x", "t = Conv(x, w) y = Relu(t)", {"w": weight(16, 8, 3, 3)}, {"Conv"}),
        (
            "float[1,16,6,6] x",
            "t = Conv(x, w, b) s = Add(t, x) y = Relu(s)",
            {"w": weight(16, 16, 1, 1), "b": weight(16)},
            {"Conv"},
        ),
        ("float[2,4] x", GELU, GELU_WEIGHTS, {"Gelu"}),
        ("float[2,4] z", f"x = Add(z, b) {GELU}", {**GELU_WEIGHTS, "b": weight(4)}, {"BiasGelu"}),
        ("float[2,3,4] x", "t = MatMul(x, k) y = Mul(t, c)", {"k": weight(4, 5), "c": number(0.25)}, {"FusedMatMul"}),
        ("float[2,3,4] x, float[2,5,4] z", "t = Transpose<perm=[0,2,1]>(z) y = MatMul(x, t)", {}, {"FusedMatMul"}),
        (
            "float[2,3,4] x, float[2,3,4] z",
            "t = Add(x, z) y = LayerNormalization(t, s, b)",
            {"s": weight(4), "b": weight(4)},
            {"SkipLayerNormalization"},
        ),
        ("float[2,4] x", "s = Sigmoid(x) y = Mul(x, s)", {}, {"QuickGelu"}),
    ],
)
def test_what_onnxruntime_fuses_counts_as_what_it_replaces(
    tmp_path: Path, inputs: str, body: str, weights: dict[str, np.ndarray], fused: set[str]
) -> None:
    source = save(tmp_path / "model.onnx", inputs, body, rank=inputs.split("]")[0].count(",") + 1, **weights)
    found = onnx.load(optimizers.run("onnxruntime", source, tmp_path / "fused.onnx"))
    assert fused <= {node.op_type for node in found.graph.node}, "it was not fused: nothing is tested"
    assert counting.operators(found, 18) == counting.operators(onnx.load(source), 18)


def test_a_newer_opset_has_words_for_more() -> None:
    nodes = [
        onnx.helper.make_node("Gelu", ["x"], ["a"], domain="com.microsoft"),
        onnx.helper.make_node("SimplifiedLayerNormalization", ["a", "s"], ["y"]),
        onnx.helper.make_node("Constant", [], ["unused"], value_float=1.0),
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], []))
    assert [counting.operators(model, opset) for opset in (18, 20, 23)] == [11, 7, 2]


def test_operators_of_sub_graphs_count() -> None:
    body = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["r"])], "body", [], [])
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    assert counting.operators(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [])), 18) == 3


def test_an_unknown_operator_is_not_counted_as_one() -> None:
    node = onnx.helper.make_node("Everything", ["x"], ["y"], domain="com.microsoft")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []))
    with pytest.raises(counting.Uncounted, match="Everything"):
        counting.operators(model, 18)


@pytest.mark.slow
def test_every_tool_gives_a_right_answer_and_a_wrong_one_is_seen(tmp_path: Path) -> None:
    weights = {"w": weight(4, 5), "one": number(1), "two": number(2)}
    source = save(
        tmp_path / "model.onnx", "float[N,4] x", "t = MatMul(x, w) u = Mul(t, one) y = Mul(u, two)", **weights
    )
    check = _Check(source, {"x": weight(3, 4)})
    for tool in optimizers.installed():
        path = optimizers.run(tool, source, tmp_path / f"{tool}.onnx")
        assert check.error(path) <= check.bound, tool
    wrong = save(tmp_path / "wrong.onnx", "float[N,4] x", "t = MatMul(x, w) y = Mul(t, one)", **weights)
    assert check.error(wrong) > check.bound
    broken = save(tmp_path / "broken.onnx", "float[N,3] x", "y = MatMul(x, w)", **weights)
    assert check.error(broken) == np.inf


def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(optimizers.Failed, match="."):
        optimizers.run("onnxruntime", tmp_path / "model.onnx", tmp_path / "out.onnx")


ROW = Row(
    "net",
    "unoptimised",
    10,
    {OURS[0]: 6, OURS[1]: 5, "onnxsim": 6, "onnxslim": "failed: crash", _COUNTED[0]: 7, _COUNTED[1]: 4},
    {OURS[0]: 1e-7},
    1e-6,
    1.0,
)


def test_bold_where_nobody_leaves_fewer() -> None:
    assert table([ROW]).splitlines()[2] == "| net | unoptimised | 10 | **6** | 5 | 6 | failed: crash |  | 7 | 4 |"
    assert ROW.best_other(18) == 6 and ROW.best_other(23) == 4


@pytest.mark.slow
def test_a_row_of_a_real_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from benchmarks.rewriting import row

    monkeypatch.setenv("BRICOLAGE_WORKLOADS", str(tmp_path))
    found = row("nasrnn", "unoptimised")
    assert found.original == 280 and found.counts[OURS[0]] == 205
    assert found.counts.get("onnxscript", 999) >= 205 and set(found.errors) >= {*OURS, "onnxruntime"}
