"""Predictions of the step that the demonstration trains."""

from __future__ import annotations

import copy
import gc
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.base.codec import decode, encode
from bricolage.base.options import available_cores
from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.errors import BadVariant, NotTraceable, TrainingWorkerFailed
from bricolage.train.predict import operator_costs, predict, predicted_pipeline
from bricolage.train.predict.operator_costs import OperatorTimings, profile
from bricolage.train.predict.predict import predict_step
from bricolage.train.predict.prediction import Predicted, Prediction
from bricolage.train.predict.variant import Variant, parse_variant
from bricolage.train.predict.variant_step import Running, prepare_step, repeating_blocks
from bricolage.train.predict.workers import run_stages, run_steps
from bricolage.train.step.spec import Optimiser, StepSpec
from tests.frontends.test_torch_training import DIGITS, graph_of, step
from tests.needed import needs

needs("sklearn")

torch = pytest.importorskip("torch")

CODE = str(Path(__file__).parent / "code.py")
SPEC = StepSpec(
    "digits.py:cnn", f"{CODE}:images", batch_size=16, optimiser=Optimiser("sgd", 0.1, momentum=0.9), folder=DIGITS
)
SEVERAL = replace(SPEC, module="digits.py:transformer", arguments={"layers": 2})


@pytest.fixture(scope="module", autouse=True)
def few_rounds() -> Iterator[None]:
    """No test asks how well something was timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "_ROUNDS", (3, 60))
        patch.setattr(operator_costs, "_PASSES", 1)
        patch.setattr(
            operator_costs, "_dirty", lambda: torch.zeros(1 << 16)
        )  # caches of a server hold hundreds of megabytes
        yield


@pytest.fixture(scope="module", autouse=True)
def what_pytorch_imports_late() -> None:
    """Measuring looks for garbage often, and need not look there."""
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def several() -> Mapping[str, Predicted]:
    """What is asked about several workers, by one prediction: they find out once how they exchange, and run each change once."""
    return predicted("workers=2,bucket=0.04", "workers=64", "workers=64,bandwidth=1", "workers=64,bandwidth=0.001")


def predicted(*asked: str) -> Mapping[str, Predicted]:
    """By change, the step as it is under an empty name."""
    found = predict_step(SEVERAL, variants(*asked), threads=2, seconds=0.03, measure=True)
    assert found.link is not None or available_cores() < 2
    return dict(zip(("", *asked), found.predicted, strict=True))


def variants(*words: str) -> list[Variant]:
    return [parse_variant(one) for one in words]


def test_a_step_and_its_changes() -> None:
    asked = variants(
        "amp", "fused", "batch=32", "recompute", "micro=2", "freeze=0", "micro=3", "recompute=nine", "channels-last"
    )
    found = predict_step(SPEC, asked, threads=1, seconds=0.05, measure=True)
    assert [one.variant for one in found.predicted] == ["as it is", *(one.name for one in asked)]
    base = found.predicted[0]
    assert base.known == base.operators and base.alone == 0
    assert base.ms == pytest.approx(sum(base.phases.values())) and set(base.phases) == {"forward", "backward", "update"}
    by_name = {one.variant: one for one in found.predicted}
    assert "3 equal parts" in by_name["micro=3"].reason and "'nine'" in by_name["recompute=nine"].reason
    for one in found.predicted:
        if one.reason:
            assert one.measured is None
            continue
        assert one.measured is not None and one.ms > 0 and one.course is not None
        # Beside what is recomputed PyTorch keeps the state of random numbers, 5,056 bytes for each block.
        assert one.measured_peak_bytes == pytest.approx(one.peak_bytes, rel=0.05, abs=21_000)
        assert one.peak_bytes == max(size for _, size in one.course.memory) == sum(one.memory.values())
        assert one.course.spans[-1].end_ms == pytest.approx(one.ms, rel=1e-6)
    assert "recompute" in by_name["recompute"].phases and by_name["recompute"].operators > base.operators
    assert by_name["freeze=0"].operators < base.operators > by_name["fused"].operators
    assert by_name["batch=32"].batch_size == 32 and by_name["batch=32"].peak_bytes > base.peak_bytes
    assert sum(one.ms for one in found.operators) == pytest.approx(base.ms)
    assert sum(sum(one.ms.values()) for one in found.layers) == pytest.approx(base.ms)
    assert decode(Prediction, encode(found)) == found


def test_what_pytorch_cannot_run_on_this_processor_is_said() -> None:
    """An LSTM in bfloat16 has no operator without AVX-512: it is predicted, and either run or not."""
    spec = replace(SPEC, module="digits.py:lstm")
    found = predict_step(spec, variants("amp"), threads=1, seconds=0.05, measure=True).predicted[1]
    assert not found.reason and found.ms > 0 and (found.measured is None) == bool(found.not_run)


def test_blocks_are_chosen_for_a_limit_of_memory() -> None:
    spec = replace(SPEC, module="digits.py:transformer", arguments={"layers": 3, "width": 16}, batch_size=32)
    hopeless = predict_step(spec, [], threads=1, seconds=0.05, memory_limit=1000)
    assert hopeless.recomputation is not None and not hopeless.recomputation.fits
    limit = int(hopeless.predicted[0].peak_bytes * 0.85)
    found = predict_step(spec, [], threads=1, seconds=0.05, memory_limit=limit, measure=True)
    chosen = found.recomputation
    assert chosen is not None and chosen.fits and 0 < len(chosen.blocks) < 3
    last = found.predicted[-1]
    assert last.variant == f"recompute={'+'.join(chosen.blocks)}"
    assert last.peak_bytes == chosen.peak_bytes <= limit
    assert last.measured_peak_bytes is not None and last.measured_peak_bytes <= limit * 1.1


def test_two_workers_are_predicted_and_run(several: Mapping[str, Predicted]) -> None:
    two = several["workers=2,bucket=0.04"]
    if two.reason:
        assert "one" in two.reason  # a machine with one core
        return
    assert two.batch_size == 32 and two.measured is not None
    assert two.course is not None and len(two.course.sent) > 1
    weights = sum(p.numel() * 4 for p in prepare_step(SEVERAL, Variant()).module.parameters())
    assert two.sent_bytes == weights and sum(one.bytes for one in two.course.sent) == weights
    assert two.phases["exchange"] > 0


def test_many_workers_need_a_bandwidth(several: Mapping[str, Predicted]) -> None:
    without, fast, slow = (
        several[one] for one in ("workers=64", "workers=64,bandwidth=1", "workers=64,bandwidth=0.001")
    )
    if available_cores() < 64:
        assert "bandwidth" in without.reason
    if not fast.reason:
        assert slow.ms > fast.ms and fast.batch_size == 16 * 64


@pytest.mark.slow
@pytest.mark.skipif(available_cores() < 2, reason="stages are measured on two cores")
def test_stages_whose_activations_lie_otherwise_in_memory() -> None:
    """What an LSTM gives with the batch first is a view with dimensions in another order; messages are contiguous."""
    spec, (variant,) = replace(SPEC, module="digits.py:lstm"), variants("stages=2,micro=2")
    one = prepare_step(spec, variant)
    graph = graph_of(one, "stages=2,micro=2")
    ring = Ring(2, Link(("0", "1"), 1.0), 0.0, 0.0)
    found = predicted_pipeline.predict_pipeline(
        graph, [1.0] * len(graph.work), repeating_blocks(one.module), variant, ring
    )
    assert found.begins == ("out",)
    times, peak = run_stages(spec, variant, found.begins, 1, 0.05)
    assert times and peak > 0


@pytest.mark.parametrize(
    "network",
    ["cnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("transformer", "mlp", "lstm"))],
)
def test_models_trained_as_one_are_predicted_and_run(network: str) -> None:
    spec = replace(SPEC, module=f"digits.py:{network}", optimiser=Optimiser("adam", 0.01))
    base, eight = predict_step(spec, variants("fuse=8"), threads=1, seconds=0.05, measure=True).predicted
    assert eight.batch_size == 8 * base.batch_size and not eight.reason
    assert eight.measured is not None and eight.operators < 8 * base.operators
    assert base.memory["weights"] < eight.memory["weights"] <= 8 * base.memory["weights"]
    assert eight.measured_peak_bytes == pytest.approx(eight.peak_bytes, rel=0.05, abs=21_000)


NOISY = """
import torch
from torch import nn

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, images):
        return self.out(images.flatten(1) + torch.rand_like(images.flatten(1)))

def batch(size, seed):
    return torch.zeros(size, 1, 8, 8), torch.zeros(size, dtype=torch.int64)
"""


def test_what_does_not_fuse_is_said(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    spec = StepSpec("noisy.py:Noisy", "noisy.py:batch", batch_size=4, folder=str(tmp_path))
    base, two = predict_step(spec, variants("fuse=2"), threads=1, seconds=0.05).predicted
    assert not base.reason and "rand_like" in two.reason and "noisy.py" in two.reason


@pytest.mark.slow
@pytest.mark.skipif(available_cores() < 2, reason="stages are measured on two cores")
def test_two_stages_are_predicted_and_run() -> None:
    several = predicted("stages=2,micro=4", "stages=6,micro=8,bandwidth=1")
    two, six = several["stages=2,micro=4"], several["stages=6,micro=8,bandwidth=1"]
    assert not two.reason and two.batch_size == 16 and two.measured is not None and two.course is not None
    assert two.begins and {span.stage for span in two.course.spans} == {0, 1}
    assert sum(span.phase == "forward" for span in two.course.spans) == 8
    assert two.ms == pytest.approx(sum(two.phases.values())) and two.phases["idle"] >= 0
    assert two.peak_bytes == max(size for _, size in two.course.memory) == sum(two.memory.values())
    assert two.peak_bytes < several[""].peak_bytes
    assert two.measured_peak_bytes == pytest.approx(two.peak_bytes, rel=0.1)
    assert two.sent_bytes == 2 * 16 * 8 * 32 * 4, "activations of 8 tokens, 32 wide, and their gradients"
    assert "6 are asked for" in six.reason


def test_a_described_device_scales_what_is_measured_here(tmp_path: Path) -> None:
    file = tmp_path / "fast.toml"
    text = '[[device]]\nname = "gpu"\nkind = "gpu"\nscale = 0.1\nmemory_gb = 1e-6\n'
    file.write_text(text, encoding="utf-8")
    found = predict_step(replace(SPEC, device=str(file)), variants("amp"), threads=1, seconds=0.05, measure=True)
    assert found.device == "fast.toml" and found.predicted[0].measured is None
    assert found.recomputation is not None and found.recomputation.limit_bytes == 1000, "it does not fit the device"
    whole = sum(one.ms for one in found.operators)
    assert whole == pytest.approx(found.predicted[0].ms)


@pytest.mark.parametrize("words", ["recompute", "micro=2", "foreach", "channels-last"])
def test_changes_learn_the_same(words: str) -> None:
    """In float32; without batch-norm, whose statistics go by micro-batch."""
    one = step("transformer", "sgd")
    for part in one.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    modules = []
    for chosen in ("", words):
        module = copy.deepcopy(one.module)
        running = Running(module, [*one.inputs, *one.targets], one, parse_variant(chosen), learning=True)
        for _ in range(3):
            running.run()
        modules.append(module)
    for a, b in zip(*(module.parameters() for module in modules), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_weights_stay_as_they_are_while_a_step_is_measured() -> None:
    one = step("mlp")
    module = copy.deepcopy(one.module)
    running = Running(module, [*one.inputs, *one.targets], one, Variant())
    for _ in range(3):
        running.run()
    for a, b in zip(one.module.parameters(), module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_blocks_that_repeat() -> None:
    assert repeating_blocks(step("transformer").module) == ("encoder.layers.0", "encoder.layers.1")
    assert repeating_blocks(step("lstm").module) == ("lstm", "out")


def test_what_cannot_be_changed() -> None:
    one = step("mlp")
    with pytest.raises(BadVariant, match="nothing is left"):
        Running(copy.deepcopy(one.module), [*one.inputs, *one.targets], one, parse_variant("freeze=1+4"))


def test_a_step_that_runs_otherwise_than_its_graph_is_refused() -> None:
    one = step("mlp")
    other = Running(copy.deepcopy(one.module), [*one.inputs, *one.targets], one, parse_variant("fused"))
    with pytest.raises(NotTraceable, match="other operators"):
        profile(other, graph_of(one), 1, 0.01)


def test_operators_run_alone_too() -> None:
    """On made-up tensors; the backward operator of a recurrent layer on what its forward operator leaves for it."""
    for network in ("cnn", "lstm", "transformer"):
        graph = graph_of(step(network))
        alone = OperatorTimings(1)
        alone.measure(graph.calls, graph.signatures)
        assert [one for one, ms in alone.known.items() if ms is None] == []


@pytest.mark.slow
def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    spec = replace(SPEC, module="digits.py:nothing")
    with pytest.raises(TrainingWorkerFailed, match="nothing"):
        run_steps(spec, parse_variant("workers=2"), 1, 0.1)
