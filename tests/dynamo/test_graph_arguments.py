"""What the arguments of a graph are, and the graph with its weights in it."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn

from bricolage.dynamo.graph_arguments import arguments_of, with_weights
from bricolage.errors import LeftToPyTorch


def recorded(model: Any, *args: torch.Tensor, again: tuple[torch.Tensor, ...] = ()) -> tuple[Any, list[object]]:
    """The last graph that Dynamo hands over for a model called with these arguments, then with others; and its examples."""
    found: list[tuple[Any, list[object]]] = []

    def keep(module: Any, examples: list[object]) -> Any:
        found.append((module, list(examples)))
        return module

    torch.compiler.reset()
    compiled = torch.compile(model, backend=keep)
    with torch.no_grad():
        compiled(*args)
        if again:
            compiled(*again)
    return found[-1]


def test_parameters_and_buffers_are_weights() -> None:
    module, examples = recorded(nn.BatchNorm1d(4).eval(), torch.randn(2, 4))
    found = arguments_of(module, examples)
    assert len(found.weights) == 4 and len(found.inputs) == 1 and not found.sizes and found.dynamic == ((),)
    x = torch.randn(2, 4)
    weights = [examples[place] for place in found.weights]
    (alone,) = with_weights(module, found, weights)(x)  # type: ignore[arg-type]  # tensors, as Dynamo gives them
    torch.testing.assert_close(alone, nn.BatchNorm1d(4).eval()(x))


def test_sizes_are_read_off_the_inputs() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] // 2, -1) * x.shape[0]

    module, examples = recorded(half, torch.randn(4, 3), again=(torch.randn(6, 3),))
    found = arguments_of(module, examples)
    assert list(found.sizes.values()) == [(found.inputs[0], 0)] and found.dynamic == ((0,),)
    for rows in (6, 10):
        x = torch.randn(rows, 3)
        (alone,) = with_weights(module, found, [])(x)
        torch.testing.assert_close(alone, half(x))


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.empty(3, device="meta"), "device 'meta'"),
        (2.5, "float"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quantized"),
    ],
)
def test_what_is_no_tensor_in_memory_is_refused(argument: object, reason: str) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(operator.add, (x, x)),))
    with pytest.raises(LeftToPyTorch, match=reason):
        arguments_of(torch.fx.GraphModule(nn.Module(), graph), [argument])


def test_a_graph_without_inputs_is_refused() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.ones, (3,)),))
    with pytest.raises(LeftToPyTorch, match="no inputs"):
        arguments_of(torch.fx.GraphModule(nn.Module(), graph), [])
