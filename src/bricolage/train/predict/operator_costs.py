"""What operators of a training step cost here: in their place in the step, and alone on made-up tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bricolage.costs.latency import Latency
from bricolage.device.caches import host_caches
from bricolage.errors import NotTraceable
from bricolage.frontends.traced_step import OperatorCall, TensorArgument
from bricolage.train.predict.variant_step import Running, Runs
from bricolage.work.training_step import Phase, StepGraph

if TYPE_CHECKING:
    import torch

_ROUNDS = (5, 40)
_PASSES = 2
_ALONE_S = 0.003
"""For which an operator is repeated, beyond `_ALONE_ROUNDS[0]` times."""
_ALONE_ROUNDS = (4, 50)
_COLD_ROUNDS = 2
_LONG_MS = 10.0
"""Operators that take this long read more than caches hold, or compute so long that caches do not count."""
QUANTILE = 0.25
"""Of times: what others do meanwhile only adds to them."""
_RECURRENT = "aten::mkldnn_rnn_layer"
_INDICES: Mapping[str, tuple[int, int]] = {
    "aten::embedding": (0, 0),
    "aten::nll_loss_forward": (0, 1),
    "aten::nll_loss_backward": (1, 1),
    "aten::gather": (0, 0),
    "aten::index_select": (0, 0),
}
"""Operators that read integers as indices: which argument, and which of its dimensions, they count in."""


@dataclass(frozen=True)
class OperatorProfile:
    """A step that was run: milliseconds of each operator in its place, and of phases when nothing watches them."""

    step: Latency
    phases: Mapping[Phase, float]
    operators: tuple[float, ...]


@dataclass(frozen=True)
class AloneTime:
    """Milliseconds of an operator alone."""

    warm: float
    """Again and again, on the same tensors: they are in caches as far as they fit."""
    cold: float
    """After something else has filled the caches; at least `warm`."""

    def at(self, share: float) -> float:
        """With this share of the caches' contents lost."""
        return self.warm + share * (self.cold - self.warm)


@dataclass
class OperatorTimings:
    """Operators by signature, each on made-up tensors, measured when it is first asked for."""

    threads: int
    known: dict[str, AloneTime | None] = field(default_factory=dict)
    """None: it cannot run alone."""
    scratch: dict[str, int] = field(default_factory=dict)
    """Bytes that it takes while it runs, beyond what it returns."""
    workspaces: dict[str, int] = field(default_factory=dict)
    """Bytes that it keeps for the backward phase in a form of its own, which PyTorch does not know beforehand."""
    _filler: torch.Tensor | None = field(default=None, init=False, repr=False, compare=False)
    """What fills the caches; made once: to write to it first takes longer than to measure a few operators."""

    def measure(self, calls: Mapping[str, OperatorCall], signatures: Iterable[str]) -> None:
        """Those of the signatures that are not known yet."""
        import torch

        kept = torch.get_num_threads()
        state = torch.get_rng_state()
        torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        try:
            missing = [candidate for candidate in dict.fromkeys(signatures) if candidate not in self.known]
            if not missing:
                return
            dirty = self._filler = _dirty() if self._filler is None else self._filler
            for _ in range(_PASSES):  # apart, so that what disturbs one is gone in the next
                for signature, now in _alone(missing, calls, dirty):
                    before = self.known.get(signature)
                    if before is not None and now is not None:
                        now = AloneTime(min(before.warm, now.warm), min(before.cold, now.cold))
                    self.known[signature] = now
        finally:
            torch.set_num_threads(kept)
            torch.set_rng_state(state)


def profile(
    running: Running, graph: StepGraph, threads: int, seconds: float, least: int = _ROUNDS[0]
) -> OperatorProfile:
    """Runs the step for `seconds`, and `least` times, unless that takes three times as long; each time once watched and once not.

    Raises:
        NotTraceable: it runs other operators than its graph has.
    """
    import torch

    from bricolage.train.predict.timing import Timing  # a class of PyTorch's

    kept = torch.get_num_threads()
    torch.set_num_threads(threads)
    watched: list[list[float]] = []
    plain: list[dict[Phase, float]] = []
    timing = Timing()
    try:
        running.run()
        end = time.perf_counter() + seconds
        while not plain or goes_on(len(plain), end, seconds, (least, _ROUNDS[1])):
            timing.times.clear()
            with timing:
                running.run()
            watched.append([nanoseconds / 1e6 for nanoseconds in timing.times])
            plain.append(time_phases(running))
    finally:
        torch.set_num_threads(kept)
    if any(len(operator_times) != len(graph.work) for operator_times in watched):
        raise NotTraceable(
            reason="it runs other operators from one step to the next, or from what it runs without data"
        )
    phases: dict[Phase, float] = {
        phase: float(np.quantile([phase_times.get(phase, 0.0) for phase_times in plain], QUANTILE))
        for phase in dict.fromkeys(graph.phases)
    }
    return OperatorProfile(
        Latency.of([sum(phase_times.values()) for phase_times in plain]),
        phases,
        tuple(np.quantile(np.array(watched), QUANTILE, axis=0).tolist()),
    )


def goes_on(rounds: int, end: float, seconds: float, limits: tuple[int, int]) -> bool:
    """Whether there is a further round: time is left; or there were few, and not thrice the time is over."""
    now = time.perf_counter()
    return (now < end and rounds < limits[1]) or (rounds < limits[0] and now < end + 2 * seconds)


def time_phases(running: Runs) -> dict[Phase, float]:
    """Milliseconds of the phases of one step."""
    phase_times: dict[Phase, float] = {}
    now: Phase | None = None
    since = time.perf_counter_ns()

    def begin(phase: Phase | None) -> None:
        nonlocal now, since
        at = time.perf_counter_ns()
        if now is not None:
            phase_times[now] = phase_times.get(now, 0.0) + (at - since) / 1e6
        now, since = phase, at

    running.run(begin)
    begin(None)
    return phase_times


_POSITIVE = ("sqrt", "log", "pow")
"""Operators for which numbers below zero are errors, which take many times as long."""
UNSUITABLE = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)
"""What operators raise where made-up arguments do not suit them."""


def _dirty() -> torch.Tensor:
    """What fills the caches when it is written to: twice their size."""
    import torch

    caches = host_caches()
    return torch.zeros(2 * max(caches.l3_bytes or 0, caches.l2_bytes) // 4)


def _alone(
    signatures: Sequence[str], calls: Mapping[str, OperatorCall], dirty: torch.Tensor
) -> Iterator[tuple[str, AloneTime | None]]:
    """The time of each, or None where it cannot run alone.

    Several have their arguments made at once, as many as fit into a part of the caches: filling these once makes all of them cold.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    most = dirty.nbytes // 8
    ready: list[tuple[str, Callable[[], object], float]] = []
    held = 0
    for signature in signatures:
        call = calls[signature]
        try:
            with torch.no_grad():
                args, kwargs = make_arguments(signature.partition("(")[0], call)
                run = partial(call.function, *args, **kwargs)
                run()
                warm = _warm(run)
        except UNSUITABLE:
            yield signature, None
            continue
        ready.append((signature, run, warm))
        held += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        if held > most:
            yield from _cold(ready, dirty)
            ready, held = [], 0
    yield from _cold(ready, dirty)


def _warm(run: Callable[[], object]) -> float:
    """Milliseconds, again and again on the same tensors."""
    times: list[float] = []
    end = time.perf_counter() + _ALONE_S
    while len(times) < _ALONE_ROUNDS[0] or (time.perf_counter() < end and len(times) < _ALONE_ROUNDS[1]):
        begun = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - begun) / 1e6)
    return float(np.quantile(times, QUANTILE))


def _cold(
    ready: Sequence[tuple[str, Callable[[], object], float]], dirty: torch.Tensor
) -> Iterator[tuple[str, AloneTime]]:
    """Their times with cold caches, and with warm ones."""
    import torch

    cold = [warm if warm >= _LONG_MS else math.inf for _, _, warm in ready]
    with torch.no_grad():
        for _ in range(_COLD_ROUNDS if math.inf in cold else 0):
            dirty.add_(1.0)
            for place, (_, run, warm) in enumerate(ready):
                if warm < _LONG_MS:
                    begun = time.perf_counter_ns()
                    run()
                    cold[place] = min(cold[place], (time.perf_counter_ns() - begun) / 1e6)
    for (signature, _, warm), after in zip(ready, cold, strict=True):
        yield signature, AloneTime(warm, max(warm, after))


def make_arguments(name: str, call: OperatorCall) -> tuple[tuple[object, ...], dict[str, object]]:
    """Made-up arguments of an operator: random numbers, and indices that are within their tensors."""
    from torch.utils._pytree import tree_map

    limit = 1
    if name in _INDICES:
        place, dimension = _INDICES[name]
        limit = call.args[place].shape[dimension]
    elif name == "aten::embedding_dense_backward":
        limit = int(call.args[2])

    positive = any(word in name for word in _POSITIVE)

    def make(value: object) -> object:
        return _tensor(value, limit, positive) if isinstance(value, TensorArgument) else value

    args, kwargs = tree_map(make, call.args), tree_map(make, dict(call.kwargs))
    return (_with_workspace(call, args), kwargs) if name == f"{_RECURRENT}_backward" else (args, kwargs)


def _with_workspace(call: OperatorCall, args: tuple[object, ...]) -> tuple[object, ...]:
    """Arguments of a recurrent layer's backward operator with the workspace that its forward operator leaves for it."""
    import torch

    names = [argument.name for argument in call.function._schema.arguments]
    given = {**dict(zip(names, args, strict=True)), "cx_": args[names.index("cx_tmp")], "train": True}
    given |= {f"weight{number}": given[f"weight{number + 1}"] for number in range(4)}
    forward = torch.ops.aten.mkldnn_rnn_layer.default
    with torch.enable_grad():  # oneDNN keeps nothing where nothing will ask for it
        workspace = forward(*(given[argument.name] for argument in forward._schema.arguments))[-1]
    return tuple(workspace if name == "workspace" else original for name, original in zip(names, args, strict=True))


def _tensor(one: TensorArgument, limit: int, positive: bool) -> torch.Tensor:
    import torch

    tensor = torch.empty_strided(one.shape, one.strides, dtype=one.dtype)
    if one.dtype.is_floating_point:
        # An operator that expands a tensor reads one element often: it is written once.
        elements = tensor.as_strided((sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True)) + 1,), (1,))
        if one.bytes and elements.numel():
            elements.normal_()
            if positive:
                elements.abs_()
    elif one.dtype == torch.bool:
        tensor = torch.rand(one.shape) < 0.5
    else:
        tensor = torch.randint(max(1, limit), one.shape).to(one.dtype)
    return tensor
