"""Graphs that learnt costs decide alone, and what users' graphs hold beside layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import bricolage.dynamo
from benchmarks.tools.compiled_networks import NETWORKS
from bricolage.base.options import Options
from bricolage.dynamo.answers import check_in_float64
from bricolage.errors import LeftToPyTorch
from bricolage.measure.pool import Pool
from bricolage.measure.turns import Turns
from tests.dynamo.won import win_races


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every graph is decided by learnt costs, without a worker, and runs whoever is faster on a busy machine."""
    torch.compiler.reset()
    monkeypatch.setattr("bricolage.dynamo.compiled._MEASURED_FROM_S", float("inf"))
    monkeypatch.setattr("bricolage.dynamo.compiled._LEAST_MS", 0.0)
    win_races(monkeypatch)
    monkeypatch.setattr("bricolage.dynamo.decision._unlikely", lambda *_: "")
    monkeypatch.setattr(Pool, "worker", lambda *_, **__: pytest.fail("a worker was started"))
    yield
    torch.compiler.reset()


def compiled(model: Any, **options: Any) -> tuple[Any, set[int]]:
    before = {one.number for one in bricolage.dynamo.graphs()}
    options = {"backends": ("native",), "budget_s": 600.0, **options}  # which a busy machine does not end
    return torch.compile(model, backend="bricolage", options=options), before


def reports(before: set[int]) -> list[bricolage.dynamo.GraphReport]:
    return [one for one in bricolage.dynamo.graphs() if one.number not in before]


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize(
    "name",
    [
        "recurrent-dict",
        "bag-of-words",
        "mixture",
        "spectrum",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("recommender", "graph-layers", "attended-states")),
    ],
)
@torch.inference_mode()
def test_what_users_write_is_kept_and_right(name: str) -> None:
    pytest.importorskip("onnxruntime")
    with torch.inference_mode(
        False
    ):  # else all of a table is compared at each call, which costs more than a win of 1 ms
        model, inputs = NETWORKS[name]()
    wanted = model(*inputs)
    fast, before = compiled(model, backends=("onnxruntime",))
    for _ in range(2):
        found = fast(*inputs)
        assert type(found) is type(wanted)
        for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    (report,) = reports(before)
    assert report.shipped and not report.left, report
    assert report.gain_ms == pytest.approx(1.0) and "which saves 1 ms a call" in str(report)


@torch.inference_mode()
def test_complex_inputs_are_taken() -> None:
    class Filtered(nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return (x * scale).imag + x.real

    x, scale = torch.randn(32, 65, dtype=torch.complex64), torch.randn(65, dtype=torch.complex64)
    fast, before = compiled(Filtered())
    for _ in range(2):
        torch.testing.assert_close(fast(x, scale), Filtered()(x, scale))
    assert not reports(before)[0].left, reports(before)


@torch.inference_mode()
def test_a_budget_that_exporting_would_overrun_is_kept() -> None:
    model, inputs = NETWORKS["small-layers"]()
    fast, before = compiled(model, budget_s=0.01)
    torch.testing.assert_close(fast(*inputs), model(*inputs))
    (report,) = reports(before)
    assert "its budget is 0.01 s, and exporting it takes some" in report.left
    assert report.gain_ms == report.eager_ms


@torch.inference_mode()
def test_what_is_surely_slower_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("bricolage.dynamo.compiled._MEASURED_FROM_S", float("inf"))
    monkeypatch.setattr("bricolage.dynamo.compiled._LEAST_MS", 0.0)
    monkeypatch.setattr("bricolage.dynamo.compiled.time_in_turns", lambda *_, **__: Turns(({"eager": (1e-6,)},)))
    model, inputs = NETWORKS["small-layers"]()
    fast, before = compiled(model)
    fast(*inputs)
    (report,) = reports(before)
    assert "learnt costs expect" in report.left and not report.shipped and report.gain_ms == 0.0


def test_an_answer_is_judged_by_float64() -> None:
    model, x = nn.Linear(64, 8), torch.randn(4, 64)

    def eager(given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (model(given),)

    with torch.inference_mode():
        check_in_float64(model, [x], eager, eager, Options())
        with pytest.raises(LeftToPyTorch, match="from what float64 makes of it"):
            check_in_float64(model, [x], eager, lambda given: (model(given) * (1 + 1e-4),), Options())
        with pytest.raises(LeftToPyTorch, match="float64"):  # right for these inputs alone
            check_in_float64(model, [x], eager, lambda _: (model(x),), Options())


@torch.inference_mode()
def test_recurrent_layers_break_the_graphs_of_others_as_before() -> None:
    graphs = list[torch.fx.GraphModule]()

    def other(module: torch.fx.GraphModule, _: object) -> Any:
        graphs.append(module)
        return module

    model, inputs = NETWORKS["recurrent-dict"]()
    torch.compile(model, backend=other)(*inputs)
    assert not graphs and not torch._dynamo.config.allow_rnn
