"""`torch.compile(model, backend="bricolage")`, as its users call it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import bricolage.dynamo
from bricolage.dynamo.compiled import CompiledGraph
from bricolage.errors import BadOption
from tests.dynamo.won import win_races

BEFORE: set[int] = set()
"""Numbers of graphs of earlier tests, which something may still hold."""
QUICK = {"effort": "instant", "backends": ("native",), "budget_s": 600.0}
"""A budget is for trying: a busy machine must not end it."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, light_reference: None) -> Iterator[None]:
    """Of these tests alone: graphs that several of them compile, with the same weights, are decided once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learnt costs decide, which takes no workers; that a graph is measured is tested where `measured` says so."""
    monkeypatch.setattr("bricolage.dynamo.compiled._MEASURED_FROM_S", float("inf"))


def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are decided as any model is, however small they are."""
    monkeypatch.setattr("bricolage.dynamo.compiled._MEASURED_FROM_S", 0.0)
    monkeypatch.setattr("bricolage.dynamo.compiled._SMALL_MS", 0.0)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    BEFORE.update(report.number for report in bricolage.dynamo.graphs())
    yield
    torch.compiler.reset()


class Network(nn.Module):
    """Small, but more than a call costs."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.norm(self.first(x))))


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="bricolage", options={**QUICK, **options})


def reports() -> list[bricolage.dynamo.GraphReport]:
    """Of the graphs of this test."""
    return [report for report in bricolage.dynamo.graphs() if report.number not in BEFORE]


def only() -> bricolage.dynamo.GraphReport:
    (report,) = reports()
    return report


def close(ours: torch.Tensor, eagers: torch.Tensor) -> None:
    torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)


def decided(report: bricolage.dynamo.GraphReport) -> bool:
    """Whether it was decided, and found right; that it also beats eager is for a quiet machine to say."""
    return report.shipped.startswith("native") and report.left in ("", "eager is faster")


def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided runs, whoever is faster on a machine that is busy with other tests."""
    win_races(monkeypatch)


@torch.inference_mode()
def test_a_model_is_compiled_at_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    measured(monkeypatch)
    model, x = Network().eval(), torch.randn(64, 256)
    fast = compiled(model, budget_s=None)
    for _ in range(3):
        close(fast(x), model(x))
    report = only()
    assert decided(report) and not report.left and report.operators >= 4
    assert report.error is not None and report.error < 1e-5
    assert "native" in str(report) and "eager" in str(report)


def test_its_name_is_known_to_torch() -> None:
    assert "bricolage" in torch.compiler.list_backends()


@pytest.mark.slow
@torch.inference_mode()
def test_sizes_that_change_make_one_graph_more_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    model = Network().eval()
    fast = compiled(model)
    for rows in (64, 48, 80, 7):
        x = torch.randn(rows, 256)
        close(fast(x), model(x))
    assert len(reports()) == 2 and all(map(decided, reports()))


@torch.inference_mode()
def test_sizes_that_the_graph_computes_with() -> None:
    class Folded(Network):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y.reshape(x.shape[0] // 2, 2, -1).sum(1) / x.shape[0]

    model = Folded().eval()
    fast = compiled(model)
    for rows in (64, 48, 80):
        x = torch.randn(rows, 256)
        close(fast(x), model(x))
    assert all(map(decided, reports()))


@torch.inference_mode()
def test_graphs_on_both_sides_of_a_break() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = Network(), Network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.before(x)
            torch._dynamo.graph_break()
            return self.after(y)

    model, x = Broken().eval(), torch.randn(64, 256)
    close(compiled(model)(x), model(x))
    assert len(reports()) == 2 and all(map(decided, reports()))


@torch.inference_mode()
def test_layers_that_share_a_graph_keep_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    layers, x = [Network().eval() for _ in range(2)], torch.randn(64, 256)
    for layer in layers:
        layer.compile(backend="bricolage", options=QUICK)
    for _ in range(2):
        for layer in layers:
            close(layer(x), layer.forward(x))


def test_changed_weights_are_seen_and_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    model, x = Network().eval(), torch.randn(64, 256)
    fast = compiled(model)
    with torch.inference_mode():
        close(fast(x), model(x))
    with torch.no_grad():
        model.second.weight.mul_(2)
    with torch.inference_mode():
        close(fast(x), model(x))
        (graph,) = (one for one in bricolage.dynamo.backend._made if one.number == only().number)
        (known,) = graph._decided.values()
        assert known.changed, "eager runs it for now"
        known.lost_s = known.decide_s
        close(fast(x), model(x))
        (after,) = graph._decided.values()
        assert after is not known and not after.changed
        close(fast(x), model(x))


@pytest.mark.parametrize("inference", [False, True])
def test_changes_without_a_version_are_seen(monkeypatch: pytest.MonkeyPatch, inference: bool) -> None:
    """Rows in the middle, through `.data` and a NumPy view, or of weights that have no version."""
    always(monkeypatch)
    with torch.inference_mode(inference):
        model, x = Network().eval(), torch.randn(64, 256)
    with torch.inference_mode():
        fast = compiled(model)
        close(fast(x), model(x))
        assert decided(only())
        model.first.weight.data[100:120] *= -2.0
        close(fast(x), model(x))
        model.norm.bias.data[4] = 7.0
        close(fast(x), model(x))
    model.second.weight.detach().numpy()[30] = 0.5
    with torch.inference_mode():
        close(fast(x), model(x))


def test_what_wants_gradients_is_left_to_pytorch() -> None:
    model, x = Network(), torch.randn(64, 256)
    compiled(model)(x).sum().backward()
    assert model.first.weight.grad is not None
    assert "gradients of 6 tensors" in only().left


class Writes(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return super().forward(x)


class Counts(Network):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return super().forward(x) * self.calls


class Draws(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x))


class Hands(Network):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), x.view(-1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Writes, "writes one of its arguments"),
        (Counts, "writes one of its arguments"),
        (Draws, "random"),
        (Hands, "shares memory"),
    ],
)
def test_what_cannot_be_kept_as_it_is_is_left_to_pytorch(kind: type[Network], reason: str) -> None:
    model, other = kind().eval(), kind().eval()
    other.load_state_dict(model.state_dict())
    fast = compiled(model)
    with torch.inference_mode():
        for turn in range(3):
            torch.manual_seed(turn)
            ours = fast(torch.randn(64, 256))
            torch.manual_seed(turn)
            torch.testing.assert_close(ours, other(torch.randn(64, 256)))
    report = only()
    assert report.left and reason in report.left, report
    assert report.gain_ms == report.eager_ms and "ms a call at most" in str(report)


@torch.inference_mode()
def test_what_eager_does_in_no_time_is_left_to_it() -> None:
    assert compiled(lambda x: x + 1)(torch.ones(3)).tolist() == [2, 2, 2]
    assert "no longer than" in only().left


@torch.inference_mode()
def test_results_lie_in_memory_as_those_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.ReLU()).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 40, 40).to(memory_format=torch.channels_last)
    fast = compiled(model)
    for _ in range(2):
        close(fast(x), model(x))
        assert fast(x).stride() == model(x).stride()


@pytest.mark.slow
@torch.inference_mode()
def test_several_threads_may_call_first(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    model, x = Network().eval(), torch.randn(64, 256)
    fast, wanted, found = compiled(model), model(x), list[torch.Tensor]()

    def call() -> None:
        with torch.inference_mode():
            found.append(fast(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for one in found:
        close(one, wanted)
    assert all(map(decided, reports())), "Dynamo may hand over one for each thread"


@pytest.mark.parametrize(
    ("options", "word"),
    [({"precison": "high"}, "precison"), ({"precision": "best"}, "best"), ({"objective": "throughput"}, "objective")],
)
def test_bad_options_are_told(options: dict[str, Any], word: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=word), torch.inference_mode():
        torch.compile(Network().eval(), backend="bricolage", options=options)(torch.randn(4, 256))


@torch.inference_mode()
def test_options_may_be_keyword_arguments() -> None:
    made = bricolage.dynamo.compile_graph(
        torch.fx.symbolic_trace(Network().eval()),
        [torch.randn(64, 256)],
        mode="max-autotune",
        budget_s=4.0,
        backends=("native",),
    )
    assert isinstance(made, CompiledGraph) and made._options.effort == "full"
    with pytest.raises(BadOption, match="mode"):
        bricolage.dynamo.compile_graph(torch.fx.symbolic_trace(nn.ReLU()), [torch.randn(3)], mode="fastest")
