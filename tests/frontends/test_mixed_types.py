"""Graphs of several types, as autocast makes them: valid ONNX, and the answers of eager."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import checker
from onnx.reference import ReferenceEvaluator

from bricolage.frontends.mixed_types import common_type, unify_types
from bricolage.frontends.torch_module import from_torch

torch = pytest.importorskip("torch")
nn = torch.nn

T = ir.DataType
Layer = Callable[[], nn.Module]
ROWS: dict[str, Layer] = {
    "layer norm": lambda: nn.LayerNorm(16),
    "rms norm": lambda: nn.RMSNorm(16),
    "rectifier with weights": lambda: nn.PReLU(16),
    "linear": lambda: nn.Linear(16, 16),
    "encoder": lambda: nn.TransformerEncoderLayer(16, 2, 16, batch_first=True),
}
IMAGES: dict[str, Layer] = {
    "convolution": lambda: nn.Conv2d(8, 8, 3, padding=1),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "instance norm": lambda: nn.InstanceNorm2d(8, affine=True),
    "batch norm": lambda: nn.BatchNorm2d(8),
}
JOINS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": lambda a, b: a + b,
    "row": lambda a, b: torch.cat([a, b], 1),
    "choice": lambda a, b: torch.where(a > 0, a, b),
    "largest": torch.maximum,
    "gate": lambda a, b: a.sigmoid() * b,
}


class Chain(nn.Module):
    """Layers one after another, whose result is joined with what came in, of another type."""

    def __init__(self, layers: list[nn.Module], join: str) -> None:
        super().__init__()
        self.layers, self.join = nn.Sequential(*layers), join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return JOINS[self.join](self.layers(x), x)


@settings(max_examples=4, deadline=None)
@given(data=st.data(), images=st.booleans(), half=st.sampled_from((torch.bfloat16, torch.float16)))
def test_what_autocast_makes_is_valid_and_right(data: st.DataObject, images: bool, half: torch.dtype) -> None:
    torch.manual_seed(0)
    table = IMAGES if images else ROWS
    first = "convolution" if images else "linear"
    names = [first, *data.draw(st.lists(st.sampled_from(sorted(table)), min_size=1, max_size=3))]
    module = Chain([table[name]() for name in names], data.draw(st.sampled_from(sorted(JOINS)))).eval()
    x = torch.randn((2, 8, 4, 4) if images else (2, 3, 16))
    with torch.no_grad(), torch.autocast("cpu", dtype=half):
        wanted = module(x)
        model = from_torch(module, (x,))
    proto = ir.to_proto(model)
    checker.check_model(proto, full_check=True)
    (found,) = ReferenceEvaluator(proto).run(None, {model.graph.inputs[0].name: x.numpy()})
    error = np.linalg.norm(np.asarray(found, np.float32) - wanted.float().numpy()) / float(wanted.float().norm())
    assert error < 0.03, names


@pytest.mark.parametrize(
    ("types", "common"),
    [
        ((T.FLOAT, T.BFLOAT16), T.FLOAT),
        ((T.FLOAT16, T.BFLOAT16), T.FLOAT),
        ((T.DOUBLE, T.FLOAT16, T.FLOAT), T.DOUBLE),
        ((T.FLOAT16, T.INT64, T.BOOL), T.FLOAT16),
        ((T.INT32, T.UINT8), T.INT32),
        ((T.FLOAT, T.STRING), None),
        ((T.STRING,), None),
    ],
)
def test_the_common_type(types: tuple[ir.DataType, ...], common: ir.DataType | None) -> None:
    assert common_type(types) == common


def test_a_graph_of_one_type_stays_as_it_is() -> None:
    model = from_torch(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval(), (torch.randn(2, 4),))
    before = ir.to_proto(model)
    assert unify_types(model) == 0 and ir.to_proto(model) == before


def test_results_keep_the_types_that_are_stated() -> None:
    """An output that several others read, too."""
    x, scale = (ir.val(name, kind, (4,)) for name, kind in (("x", T.BFLOAT16), ("scale", T.FLOAT)))
    product = ir.node("Mul", [x, scale])
    product.outputs[0].name, product.outputs[0].type = "y", ir.TensorType(T.BFLOAT16)
    double = ir.node("Add", [product.outputs[0], product.outputs[0]])
    double.outputs[0].name, double.outputs[0].type = "z", ir.TensorType(T.BFLOAT16)
    outputs = [product.outputs[0], double.outputs[0]]
    graph = ir.Graph([x, scale], outputs, nodes=[product, double], opset_imports={"": 18}, name="g")
    model = ir.Model(graph, ir_version=8)
    assert unify_types(model) == 1
    assert [node.op_type for node in graph] == ["Cast", "Mul", "Cast", "Add"]
    assert [(one.name, one.dtype) for one in graph.outputs] == [("y", T.BFLOAT16), ("z", T.BFLOAT16)]
