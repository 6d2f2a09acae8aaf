"""Everything that a model may come from gives a checked model, and the source is left alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.errors import BadOption, BadTorchModel
from bricolage.frontends import to_model

ort = pytest.importorskip("onnxruntime")

F = TensorProto.FLOAT
LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))


def slowly(paths: list[Path]) -> list[Any]:
    """Those of many operators are for `make test-all`."""
    large = ("densenet", "inception", "resnet")
    return [
        pytest.param(one, marks=pytest.mark.slow) if any(word in one.name for word in large) else one for one in paths
    ]


def mlp(opset: int = 21) -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
            "mlp",
            [helper.make_tensor_value_info("x", F, ["batch", 3])],
            [helper.make_tensor_value_info("y", F, ["batch", 4])],
            initializer=[onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w")],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )


def run(model: ir.Model, feeds: dict) -> list:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options).run(None, feeds)


def test_path_proto_and_ir_agree(tmp_path: Path) -> None:
    proto = mlp()
    before = proto.SerializeToString()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    object_ = ir.from_proto(proto)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in (path, str(path), proto, object_):
        model = to_model(source)
        np.testing.assert_array_equal(run(model, {"x": x})[0], np.maximum(x @ np.ones((3, 4), np.float32), 0))
        assert model.graph.inputs[0].shape is not None
        assert str(model.graph.inputs[0].shape[0]) == "batch"
    assert proto.SerializeToString() == before
    assert object_.graph.node(0).name is None or object_.graph.node(0).name == ""


@pytest.mark.parametrize("suffix", ["textproto", "json", "onnxtxt"])
def test_text_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    onnx.save(mlp(), path)
    assert len(to_model(path).graph) == 2


@pytest.mark.parametrize("path", slowly(LIGHT), ids=lambda path: path.stem)
def test_the_networks_of_the_onnx_package(path: Path) -> None:
    model = to_model(path)
    assert model.graph.opset_imports[""] == 18
    names = [value.name for graph in model.graphs() for node in graph for value in node.outputs]
    assert len(names) == len(set(names)) and all(names)
    original = onnx.load(path)
    assert [v.name for v in model.graph.outputs] == [v.name for v in original.graph.output]
    assert not {v.name for v in model.graph.inputs} & set(model.graph.initializers)


def test_an_upgraded_network_computes_the_same() -> None:
    path = next(path for path in LIGHT if "squeezenet" in path.name)
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    session = ort.InferenceSession(str(path))
    feeds = {session.get_inputs()[0].name: x}
    np.testing.assert_allclose(run(to_model(path), feeds)[0], session.run(None, feeds)[0], rtol=1e-5)


def test_initializers_are_not_inputs_and_names_become_unique() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["h"], name="n"), helper.make_node("Relu", ["h"], ["y"], name="n")],
        "g",
        [helper.make_tensor_value_info("x", F, [2]), helper.make_tensor_value_info("w", F, [2])],
        [helper.make_tensor_value_info("y", F, [2])],
        initializer=[onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    model = to_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=3))
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [node.name for node in model.graph] == ["n", "n_2"]
    assert model.ir_version >= 8


def test_values_of_the_same_name_in_an_ir_model_are_told_apart() -> None:
    x = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    a, b = ir.node("Relu", [x]), ir.node("Abs", [x])
    a.outputs[0].name = b.outputs[0].name = "same"
    c = ir.node("Add", [a.outputs[0], b.outputs[0]])
    graph = ir.Graph([x], c.outputs, nodes=[a, b, c], opset_imports={"": 21}, name="g")
    c.outputs[0].name = "y"
    model = to_model(ir.Model(graph, ir_version=10))
    np.testing.assert_array_equal(run(model, {"x": np.float32([-1, 2])})[0], [1, 4])


def test_unsorted_nodes_are_sorted() -> None:
    proto = mlp()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert [node.op_type for node in to_model(proto).graph] == ["MatMul", "Relu"]


def test_functions_are_inlined_even_with_another_opset() -> None:
    function = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("ReduceSum", ["a"], ["s"], axes=[1]), helper.make_node("Add", ["a", "s"], ["b"])],
        [helper.make_opsetid("", 11)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Twice", ["x"], ["h"], domain="mine"),
            helper.make_node("Twice", ["h"], ["y"], domain="mine"),
        ],
        "g",
        [helper.make_tensor_value_info("x", F, [2, 3])],
        [helper.make_tensor_value_info("y", F, [2, 3])],
    )
    proto = helper.make_model(
        graph, functions=[function], opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    )
    model = to_model(proto)
    assert not model.functions
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == ["ReduceSum", "Add"] * 2
    assert set(model.graph.opset_imports) == {""}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    h = x + x.sum(1, keepdims=True)
    np.testing.assert_allclose(run(model, {"x": x})[0], h + h.sum(1, keepdims=True))


def test_loop_and_sequence_models() -> None:
    i, c = helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", 9, [])
    s, t = helper.make_tensor_value_info("s", F, [2]), helper.make_tensor_value_info("t", F, [2])
    c2 = helper.make_tensor_value_info("c2", 9, [])
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["c"], ["c2"])],
        "b",
        [i, c, s],
        [c2, t],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "g",
        [helper.make_tensor_value_info("n", TensorProto.INT64, []), helper.make_tensor_value_info("x", F, [2])],
        [helper.make_tensor_value_info("y", F, [2])],
    )
    model = to_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7))
    np.testing.assert_array_equal(run(model, {"n": np.asarray(3), "x": np.float32([1, 2])})[0], [4, 8])
    sequence = helper.make_graph(
        [helper.make_node("SequenceAt", ["q", "n"], ["y"])],
        "g",
        [
            helper.make_tensor_sequence_value_info("q", F, None),
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", F, None)],
    )
    model = to_model(helper.make_model(sequence, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    assert isinstance(model.graph.inputs[0].type, ir.SequenceType)


def test_traditional_machine_learning_is_allowed() -> None:
    graph = helper.make_graph(
        [helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)],
        "g",
        [helper.make_tensor_value_info("x", F, [2])],
        [helper.make_tensor_value_info("y", F, [2])],
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8
    )
    np.testing.assert_array_equal(run(to_model(proto), {"x": np.float32([0.2, 0.7])})[0], [0, 1])


def test_other_objects_are_refused() -> None:
    with pytest.raises(BadOption, match="int"):
        to_model(3)


class TestTorch:
    """Modules and exported programs."""

    def module(self):
        import torch

        class Small(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = torch.nn.Linear(3, 4)
                self.frozen = torch.nn.BatchNorm1d(4).eval()
                self.dropout = torch.nn.Dropout(0.5)

            def forward(self, tokens, mask=None):
                y = self.dropout(self.frozen(self.linear(tokens)))
                if mask is not None:
                    y = y * mask
                return {"logits": y, "probabilities": y.softmax(-1)}

        torch.manual_seed(0)
        return Small()

    def test_module_with_symbolic_batch(self, capfd: pytest.CaptureFixture[str]) -> None:
        import torch

        module = self.module()
        module.train()
        module.frozen.eval()
        example = {"tokens": torch.randn(2, 3), "mask": torch.ones(2, 1)}
        model = to_model(module, example_inputs=example, dynamic={"tokens": {0: "batch"}, "mask": {0: "batch"}})
        assert module.training and module.dropout.training and not module.frozen.training
        assert capfd.readouterr() == ("", "")
        assert [v.name for v in model.graph.inputs] == ["tokens", "mask"]
        assert [v.name for v in model.graph.outputs] == ["logits", "probabilities"]
        tokens, mask = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32), np.ones((5, 1), np.float32)
        with torch.no_grad():
            expected = module.eval()(torch.from_numpy(tokens), torch.from_numpy(mask))
        for found, wanted in zip(run(model, {"tokens": tokens, "mask": mask}), expected.values(), strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-6)

    def test_exported_program_and_plain_output(self) -> None:
        import torch

        program = torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.randn(4, 3),))
        model = to_model(program)
        assert [v.name for v in model.graph.outputs] == ["output"]

    def test_numpy_examples(self) -> None:
        import torch

        assert len(to_model(torch.nn.ReLU(), example_inputs=np.ones((2, 2), np.float32)).graph) == 1

    @pytest.mark.parametrize("name", ["calls", "x"])
    def test_what_is_written_besides_the_answer_is_refused(self, name: str) -> None:
        import torch

        class Writes(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("calls", torch.zeros(3))

            def forward(self, x):
                (self.calls if name == "calls" else x).add_(1)
                return x * self.calls

        with pytest.raises(BadTorchModel, match=f"it writes '{name}'"):
            to_model(Writes(), example_inputs=torch.randn(3))

    def test_missing_examples_and_failing_export(self) -> None:
        import torch

        class Branching(torch.nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        with pytest.raises(BadTorchModel, match="example inputs"):
            to_model(torch.nn.ReLU())
        module = Branching().train()
        with pytest.raises(BadTorchModel, match="data-dependent") as caught:
            to_model(module, example_inputs=torch.randn(3))
        assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
        assert module.training


def test_nothing_heavy_is_imported_for_onnx_sources() -> None:
    import subprocess

    code = "import sys, bricolage.frontends as f; sys.exit('torch' in sys.modules or 'onnxscript' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
