"""Names, order, types and defaults of inputs and outputs outlive preparing, rewriting and being written."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from bricolage.frontends import to_model
from bricolage.graph.model_interface import externalise_model, interface
from bricolage.graph.prepare import prepare, simplify, symbolic_dimensions
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine import apply
from bricolage.testing import build_model
from bricolage.testing.contexts import sizes
from bricolage.verify.compare import relative_error
from bricolage.verify.inputs import draw_inputs
from bricolage.verify.reference import evaluate

Spec = tuple[str, bytes]


def decorated(seed: int) -> onnx.ModelProto:
    """A random model with all that an interface may have: a default, one of open size, an input that nobody reads, and outputs that
    are an input, a default, a weight, and another output."""
    draw, proto = (
        Random(seed),
        ir.to_proto(build_model(seed, ("basic", "patterns")[seed // 2], ("", "symbolic")[seed % 2])),
    )
    proto.ir_version = max(proto.ir_version, 8)
    graph = proto.graph
    first, last = graph.input[0], graph.output[0]
    value = helper.make_tensor_value_info
    graph.node.append(helper.make_node("Cast", [last.name], ["as floats"], "cast", to=TensorProto.FLOAT))
    graph.node.append(helper.make_node("Mul", ["as floats", "gain"], ["gained"], "gaining"))
    graph.node.append(helper.make_node("ReduceSum", ["shift"], ["shifted"], "shifting", keepdims=0))
    for name, array in (("gain", [1.5]), ("shift", [1.0, 2.0]), ("weight", [3.0])):
        graph.initializer.append(numpy_helper.from_array(np.float32(array), name))
    defaults = [value("gain", TensorProto.FLOAT, [1]), value("shift", TensorProto.FLOAT, ["how many"])]
    more = [*defaults, value("unread", TensorProto.INT64, [2])]
    draw.shuffle(more)
    for one in more:
        graph.input.insert(draw.randrange(len(graph.input) + 1), one)
    outputs = [first, last, defaults[0], value("weight", TensorProto.FLOAT, [1])]
    outputs += [value("gained", TensorProto.FLOAT, None), value("shifted", TensorProto.FLOAT, [])]
    draw.shuffle(outputs)
    for one in outputs:
        graph.output.insert(draw.randrange(len(graph.output) + 1), one)
    return proto


def ends(proto: onnx.ModelProto) -> tuple[list[Spec], list[str], dict[str, bytes]]:
    """Inputs with their types, names of outputs, and defaults."""
    inputs = [(one.name, one.type.SerializeToString(deterministic=True)) for one in proto.graph.input]
    weights = {one.name: numpy_helper.to_array(one).tobytes() for one in proto.graph.initializer}
    defaults = {name: weights[name] for name, _ in inputs if name in weights}
    return inputs, [one.name for one in proto.graph.output], defaults


def answers(proto: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[Any]:
    """What a model gives in float64, on inputs that are generated for it but for those that are given."""
    model = to_model(proto)
    known = symbolic_dimensions(model)
    bound = {name: size for name, size in sizes(model).items() if name in known}
    graph = prepare(model, bound, {name: array.shape for name, array in given.items()})
    found = evaluate(graph.model, {**draw_inputs(graph.model), **given})
    return [found[info.name] for info in graph.outputs]


@pytest.mark.parametrize("seed", range(4))
def test_it_outlives_rewriting_and_being_written(seed: int) -> None:
    proto = decorated(seed)
    model = to_model(proto)
    assert list(interface(model).defaults) == [name for name, _ in ends(proto)[0] if name in ("gain", "shift")]
    rewritten = model.clone()
    simplify(rewritten)
    apply.rewrite(rewritten, [rule for rule in choose_rules(generated=False) if not rule.cost_based])
    simplify(rewritten)
    for whole in (externalise_model(model), externalise_model(rewritten, model)):
        written = ir.to_proto(whole)
        assert ends(written) == ends(proto)
        onnx.checker.check_model(written)
        other = {"gain": np.float32([-2.5]), "shift": np.float32([4, 5, 6])}
        for given in ({}, other):
            assert relative_error(answers(written, given), answers(proto, given)) < 1e-6, given


def test_a_default_is_a_weight_where_nobody_overrides_it() -> None:
    model = to_model(decorated(0))
    names = [info.name for info in prepare(model, {}).inputs]
    assert "gain" not in names and "unread" in names
    overridden = prepare(model, {}, {"shift": (7,)})
    assert [info.shape for info in overridden.inputs if info.name == "shift"] == [(7,)]


def test_before_ir_4_weights_are_inputs_and_no_defaults() -> None:
    text = '<ir_version: 3, opset_import: ["" : 8]> t (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2]), "w"))
    model = to_model(proto)
    assert not interface(model).defaults
    assert [value.name for value in model.graph.inputs] == ["x"]
