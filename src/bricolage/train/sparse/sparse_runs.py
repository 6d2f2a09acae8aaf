"""Runs a divided sparse network on processes of this machine, and compares answers and bytes with what they have to be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from bricolage.base import scratch
from bricolage.base.options import available_cores
from bricolage.base.torch_library import load_torch
from bricolage.errors import WrongExchange
from bricolage.search.sharding.layer_exchange import LayerExchange, order_entries
from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.train.sparse.local_program import LocalProgram, build_local_program
from bricolage.train.sparse.sparse_network import Sent, SparseProcess, StepValues, run_undivided
from bricolage.train.sparse.sparse_plan import SparsePlan, read_sparse_plan
from bricolage.train.sparse.weighted_layers import Reals

T = TypeVar("T")
_DTYPE = "float32"
"""In which processes compute."""
_LIMIT = 1e-6
"""Relative error in norm that is always accepted; otherwise four times that of one process in the same type."""
_LIMIT_S = 24 * 3600.0


@dataclass(frozen=True)
class ExchangeMode:
    """One way of running a plan."""

    name: str
    ends: tuple[int, ...] | None
    """Behind which layers exchanges end; None: behind each, and the pass goes back too."""
    ordered: bool = True
    """Whether entries lie in memory as they are sent; otherwise they ascend."""
    packs: bool = True
    """Whether what does not lie together is copied into one message; otherwise each run is a message."""


@dataclass(frozen=True)
class SparseJob:
    """Of one process."""

    folder: str
    """With the plan."""
    modes: tuple[ExchangeMode, ...]
    samples: int
    seed: int
    repeats: int


@dataclass(frozen=True)
class SparseAnswer:
    """By mode."""

    forward_ms: tuple[tuple[float, ...], ...]
    """Of each repetition."""
    backward_ms: tuple[tuple[float, ...], ...]
    messages: tuple[int, ...]
    """That this process sent in one pass, forward and, where it goes back, back."""
    sent_bytes: tuple[int, ...]
    packed_bytes: tuple[int, ...]
    exchange_ms: tuple[tuple[float, ...], ...]
    """Of each repetition, forward: copies, and waiting for others."""


@dataclass(frozen=True)
class ExchangeOutcome:
    """Of one mode; all processes together, one pass of all samples."""

    name: str
    exchanges: int
    backward: bool
    """Whether it is forward and back."""
    operations: int
    """Floating-point operations of the products forward, for one sample."""
    words: int
    """Forward, for one sample."""
    predicted_messages: int
    messages: int
    predicted_bytes: int
    sent_bytes: int
    packed_bytes: int
    """Copied before they were sent."""
    forward_ms: float
    """Median over repetitions of the slowest process."""
    exchange_ms: float
    """Of `forward_ms`, in exchanges; the slowest process's."""
    backward_ms: float | None
    error: float
    """Of outputs and gradients to one process in float64, relative in norm; the largest."""


@dataclass(frozen=True)
class SparseOutcome:
    """Of a plan."""

    processes: int
    samples: int
    limit: float
    """Errors that are accepted."""
    undivided_ms: float
    """The same step in one process, forward and back."""
    modes: tuple[ExchangeOutcome, ...]


def list_modes(plan: SparsePlan) -> tuple[ExchangeMode, ...]:
    """An exchange before each layer; and fewer of them, where that takes fewer messages."""
    modes = [ExchangeMode("each layer", None)]
    if len(plan.header.ends) < len(plan.layers):
        modes.append(ExchangeMode(f"up to {plan.header.options.depth} layers", plan.header.ends))
    return tuple(modes)


def run_sparse_plan(
    plan: SparsePlan,
    folder: Path | None,
    modes: Sequence[ExchangeMode],
    *,
    samples: int,
    threads: int | None = None,
    repeats: int = 5,
) -> SparseOutcome:
    """Runs each mode on the plan's processes.

    Args:
        plan: the network and its division.
        folder: where it lies; None: nowhere yet.
        modes: ways of running it.
        samples: that go through at once.
        threads: of each process; by default cores divided by processes.
        repeats: timed passes.

    Raises:
        MissingLibrary: PyTorch is not installed.
        TrainingWorkerFailed: a process ends, or does not come.
        WrongExchange: an answer is wrong, or what was sent is not what was predicted.
    """
    load_torch()
    place = folder or scratch.temporary()
    try:
        if folder is None:
            plan.write(place)
        job = SparseJob(str(place.resolve()), tuple(modes), samples, plan.header.options.seed, repeats)
        values: list[StepValues] = []

        def keep(shared: Path) -> None:
            values.extend(_gather_values(plan, shared, number, samples) for number in range(len(modes)))

        answers = run_group(
            run_process,
            [job] * plan.processes,
            SparseAnswer,
            threads or max(1, available_cores() // plan.processes),
            _LIMIT_S,
            keep,
        )
    finally:
        if folder is None:
            scratch.remove(place)
    outcome = _compare(plan, job, answers, values)
    check_outcome(outcome)
    return outcome


def check_outcome(outcome: SparseOutcome) -> None:
    """That a run was right.

    Raises:
        WrongExchange: an answer is off, or something else was sent than was predicted.
    """
    for mode in outcome.modes:
        if not mode.error <= outcome.limit:
            reason = f"answers are off by {mode.error:.1e} where {outcome.limit:.1e} is accepted"
            raise WrongExchange(mode=mode.name, reason=reason)
        counted, predicted = (mode.messages, mode.sent_bytes), (mode.predicted_messages, mode.predicted_bytes)
        if counted != predicted:
            reason = f"{counted[0]} messages with {counted[1]} bytes were sent where {predicted[0]} with {predicted[1]} are needed"
            raise WrongExchange(mode=mode.name, reason=reason)


def draw_samples(plan: SparsePlan, samples: int, seed: int) -> tuple[Reals, Reals]:
    """Inputs and gradients of outputs, the same in every process: [inputs, samples], [rows, samples], float64."""
    generator = np.random.default_rng(seed)
    sizes = plan.layers[0].weights.shape[1], plan.layers[-1].weights.shape[0]
    inputs, gradient = (generator.standard_normal((size, samples)).astype(_DTYPE) for size in sizes)
    return inputs.astype(np.float64), gradient.astype(np.float64)


def predict_sent(
    plan: SparsePlan, mode: ExchangeMode, exchanges: Sequence[LayerExchange], samples: int
) -> tuple[int, int]:
    """Messages and bytes of all processes in one pass."""
    size = samples * np.dtype(_DTYPE).itemsize
    routes = sum(exchange.messages for exchange in exchanges)
    forward = routes
    if not mode.packs:
        forward = sum(
            len(runs)
            for exchange in exchanges
            for part in range(plan.processes)
            for runs in order_entries(exchange, plan.owned[exchange.begin], part, ordered=mode.ordered).runs.values()
        )
    words = sum(exchange.words for exchange in exchanges)
    back = mode.ends is None
    return forward + back * routes, (1 + back) * words * size


def run_process(job: SparseJob, rank: Rank) -> SparseAnswer:
    """What each process does."""
    plan = read_sparse_plan(Path(job.folder))
    inputs, gradient = (values.astype(_DTYPE) for values in draw_samples(plan, job.samples, job.seed))
    columns = []
    for number, mode in enumerate(job.modes):
        program = build_local_program(plan, plan.exchanges(mode.ends), rank.number, _DTYPE, ordered=mode.ordered)
        forward_ms, backward_ms, exchange_ms, values, sent = [], [], [], StepValues(gradient), Sent()
        for _ in range(job.repeats):
            process = SparseProcess(program, rank, mode.packs, sent := Sent())
            ms, states = _time(partial(process.forward, inputs[program.inputs]), rank)
            forward_ms.append(ms)
            exchange_ms.append(1e3 * sent.forward_s)
            values = StepValues(states[-1][-1])
            if mode.ends is None:
                ms, values = _time(partial(process.backward, states, gradient[program.outputs]), rank)
                backward_ms.append(ms)
        _save_values(rank.folder / f"mode{number}-rank{rank.number}.npz", program, values)
        counts = sent.messages, sent.size_bytes, sent.packed_bytes
        columns.append((tuple(forward_ms), tuple(backward_ms), *counts, tuple(exchange_ms)))
    return SparseAnswer(*zip(*columns, strict=True))


def _save_values(path: Path, program: LocalProgram, values: StepValues) -> None:
    """What a process has of a pass, with where it belongs."""
    arrays = {"inputs": program.inputs, "rows": program.outputs, "outputs": values.outputs}
    if values.input_gradient is not None:
        arrays["gradient"] = values.input_gradient
    for number, (exchange, gradients) in enumerate(zip(program.exchanges, values.weight_gradients, strict=False)):
        arrays[f"positions{number}"] = exchange.layers[0].positions
        arrays[f"weights{number}"] = gradients
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _time(work: Callable[[], T], rank: Rank) -> tuple[float, T]:
    """Milliseconds from when all are there, and what it gives."""
    rank.dist.barrier()
    begun = time.perf_counter()
    value = work()
    return 1e3 * (time.perf_counter() - begun), value


def _gather_values(plan: SparsePlan, shared: Path, mode: int, samples: int) -> StepValues:
    """What all processes have, together."""
    outputs = np.full((plan.layers[-1].weights.shape[0], samples), np.nan, _DTYPE)
    gradient = np.full((plan.layers[0].weights.shape[1], samples), np.nan, _DTYPE)
    weights = [np.full(layer.weights.nnz, np.nan, _DTYPE) for layer in plan.layers]
    went_back = False
    for rank in range(plan.processes):
        with np.load(shared / f"mode{mode}-rank{rank}.npz") as arrays:
            outputs[arrays["rows"]] = arrays["outputs"]
            went_back = "gradient" in arrays
            if went_back:
                gradient[arrays["inputs"]] = arrays["gradient"]
                for number, layer_gradients in enumerate(weights):
                    layer_gradients[arrays[f"positions{number}"]] = arrays[f"weights{number}"]
    return StepValues(outputs, gradient, tuple(weights)) if went_back else StepValues(outputs)


def measure_error(values: StepValues, truth: StepValues) -> float:
    """The largest error of a tensor, relative in norm."""
    pairs = [(values.outputs, truth.outputs)]
    if values.input_gradient is not None and truth.input_gradient is not None:
        pairs.append((values.input_gradient, truth.input_gradient))
        pairs += zip(values.weight_gradients, truth.weight_gradients, strict=True)
    errors = [float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30) for a, b in pairs]
    return float(np.max(errors))  # a number that no process wrote is NaN, and so is this


def _compare(
    plan: SparsePlan, job: SparseJob, answers: Sequence[SparseAnswer], values: Sequence[StepValues]
) -> SparseOutcome:
    """With one process in float64, and with what has to be sent."""
    inputs, gradient = draw_samples(plan, job.samples, job.seed)
    truth = run_undivided(plan.layers, inputs, gradient)
    alone, undivided_ms = _run_alone(plan, job, inputs.astype(_DTYPE), gradient.astype(_DTYPE))
    modes = []
    for number, mode in enumerate(job.modes):
        exchanges = plan.exchanges(mode.ends)
        messages, size = predict_sent(plan, mode, exchanges, job.samples)
        back = mode.ends is None
        modes.append(
            ExchangeOutcome(
                mode.name,
                len(exchanges),
                back,
                sum(exchange.operations for exchange in exchanges),
                sum(exchange.words for exchange in exchanges),
                predicted_messages=messages,
                messages=sum(answer.messages[number] for answer in answers),
                predicted_bytes=size,
                sent_bytes=sum(answer.sent_bytes[number] for answer in answers),
                packed_bytes=sum(answer.packed_bytes[number] for answer in answers),
                exchange_ms=_slowest([answer.exchange_ms[number] for answer in answers]),
                forward_ms=_slowest([answer.forward_ms[number] for answer in answers]),
                backward_ms=_slowest([answer.backward_ms[number] for answer in answers]) if back else None,
                error=measure_error(values[number], truth),
            )
        )
    limit = max(_LIMIT, 4.0 * measure_error(alone, truth))
    return SparseOutcome(plan.processes, job.samples, limit, undivided_ms, tuple(modes))


def _run_alone(plan: SparsePlan, job: SparseJob, inputs: Reals, gradient: Reals) -> tuple[StepValues, float]:
    """As each of the processes runs, but all by one: what it gives, and milliseconds."""
    whole = replace(plan, owned=tuple(np.zeros_like(parts) for parts in plan.owned))
    program = build_local_program(whole, whole.exchanges(), 0, _DTYPE)
    process, times, values = SparseProcess(program, Rank(0, 1, Path(job.folder))), [], StepValues(inputs)
    for _ in range(job.repeats):
        begun = time.perf_counter()
        values = process.backward(process.forward(inputs), gradient)
        times.append(1e3 * (time.perf_counter() - begun))
    return values, statistics.median(times)


def _slowest(times: Sequence[Sequence[float]]) -> float:
    """The median over repetitions of the slowest process."""
    return float(statistics.median(max(repetition) for repetition in zip(*times, strict=True)))
