"""Training steps as graphs: the operators that PyTorch runs, and the memory that it takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bricolage.errors import NotTraceable
from bricolage.frontends.torch_training import Lasting, trace_step
from bricolage.frontends.traced_step import TracedStep
from bricolage.train.predict.operator_costs import OperatorTimings
from bricolage.train.predict.step_memory import add_run_memory, measured_peak
from bricolage.train.predict.variant import parse_variant
from bricolage.train.predict.variant_step import Running, repeating_blocks
from bricolage.train.step.spec import Optimiser
from bricolage.train.step.step import TrainingStep, find_function
from bricolage.work.work_graph import GRAPH_INPUT
from tests.needed import needs

needs("sklearn")

torch = pytest.importorskip("torch")

DIGITS = str(Path(__file__).parents[2] / "examples" / "demo_train")
NETWORKS = ("mlp", "cnn", "transformer", "lstm")
VARIANTS = ("", "amp", "fused", "foreach", "recompute", "micro=2", "channels-last")


def step(network: str, kind: str = "adam") -> TrainingStep:
    torch.manual_seed(0)
    module = find_function(f"digits.py:{network}", DIGITS)()
    images, digits = find_function("digits.py:batch", DIGITS)(16, 0)
    return TrainingStep(module.train(), torch.nn.functional.cross_entropy, (images,), (digits,), Optimiser(kind))  # type: ignore[arg-type]


def graph_of(one: TrainingStep, words: str = "") -> TracedStep:
    variant = parse_variant(words)

    def start(module: Any, tensors: Sequence[Any]) -> tuple[Running, Lasting]:
        running = Running(module, tensors, one, variant)
        return running, running.lasting

    return trace_step(one.module, [*one.inputs, *one.targets], start)


def real(one: TrainingStep, words: str = "") -> Running:
    running = Running(copy.deepcopy(one.module), [*one.inputs, *one.targets], one, parse_variant(words))
    running.run()
    return running


def ran(running: Running) -> list[str]:
    """The operators of a step that is really run."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            if func.namespace != "prim":
                overload = "" if func._overloadname == "default" else f".{func._overloadname}"
                names.append(f"{func._schema.name}{overload}")
            return func(*args, **(kwargs or {}))

    with Names():
        running.run()
    return names


@pytest.mark.thinned("network")
@pytest.mark.parametrize("words", VARIANTS)
@pytest.mark.parametrize("network", NETWORKS)
def test_it_has_the_operators_that_pytorch_runs_and_the_memory_that_they_take(network: str, words: str) -> None:
    one = step(network)
    graph = graph_of(one, words)
    try:
        running = real(one, words)
        names = ran(running)
    except RuntimeError as error:
        if words == "amp" and "primitive descriptor" in str(error):
            pytest.skip(f"this processor has no such operator in bfloat16: {error}")
        raise
    assert [operator.op_type for operator in graph.work.operators] == names
    assert set(graph.phases) <= {"forward", "backward", "recompute", "update"}
    assert ("recompute" in graph.phases) == (words == "recompute")
    seen = measured_peak(running)
    # Beside what is recomputed PyTorch keeps the state of random numbers, 5,056 bytes for each block.
    states = 5056 * len(repeating_blocks(one.module)) if words == "recompute" else 0
    assert add_run_memory(graph, OperatorTimings(torch.get_num_threads())).peak() == pytest.approx(
        seen, rel=0.05, abs=states
    )


def test_work_memory_and_gradients_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(32, 8)
    x, y = torch.randn(4, 32), torch.randint(8, (4,))
    one = TrainingStep(module, torch.nn.functional.cross_entropy, (x,), (y,), Optimiser("sgd", momentum=0.9))
    graph = graph_of(one)
    (forward,) = [o for o in graph.work.operators if o.op_type == "aten::addmm"]
    assert forward.flops == 2 * 4 * 32 * 8
    assert forward.bytes == 4 * (8 + 4 * 32 + 32 * 8 + 4 * 8)
    (backward,) = [o for o in graph.work.operators if o.op_type == "aten::mm"]
    assert backward.flops == 2 * 4 * 32 * 8, "the inputs want no gradient"
    weights = 4 * (32 * 8 + 8)
    kinds = {
        kind: sum(s.bytes for s in graph.storages if s.kind == kind and s.born < 0)
        for kind in ("weights", "optimiser state")
    }
    assert kinds == {"weights": weights, "optimiser state": weights}
    assert {g.parameter: g.bytes for g in graph.gradients} == {"weight": 4 * 32 * 8, "bias": 4 * 8}
    assert all(graph.phases[g.ready] == "backward" for g in graph.gradients)
    for tensor in graph.work.tensors:
        assert tensor.producer == GRAPH_INPUT or all(tensor.producer < one for one in tensor.consumers)


def test_what_is_kept_belongs_to_layers_and_ends_in_the_backward_phase() -> None:
    graph = graph_of(step("cnn"))
    kept = [one for one in graph.storages if one.kind == "activations"]
    assert kept and {one.layer for one in kept} >= {"0", "4"}
    for one in kept:
        assert graph.phases[one.born] == "forward"
        assert one.freed is None or graph.phases[min(one.freed, len(graph.phases) - 1)] != "forward"


def test_the_module_and_random_numbers_stay_as_they_were() -> None:
    one = step("transformer")
    before = copy.deepcopy(one.module.state_dict())
    state = torch.get_rng_state()
    graph_of(one, "recompute,amp")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in one.module.state_dict().items())
    assert all(p.grad is None for p in one.module.parameters())


class Wilful(torch.nn.Module):
    def __init__(self, by_shape: bool) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.by_shape = by_shape

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        if self.by_shape:
            return y[y > 0].sum().expand(2, 4)
        if y.sum() > 0:
            return y
        return -y


@pytest.mark.parametrize(("by_shape", "reason"), [(False, "the value of a tensor"), (True, "a shape rests on values")])
def test_control_flow_on_values_is_refused_with_its_line(by_shape: bool, reason: str) -> None:
    x, y = torch.randn(2, 4), torch.randint(4, (2,))
    one = TrainingStep(Wilful(by_shape), torch.nn.functional.cross_entropy, (x,), (y,), Optimiser())
    with pytest.raises(NotTraceable, match=reason) as caught:
        graph_of(one)
    wanted = "y[y > 0]" if by_shape else "if y.sum() > 0"
    assert wanted in str(caught.value) and "test_torch_training.py" in str(caught.value)
