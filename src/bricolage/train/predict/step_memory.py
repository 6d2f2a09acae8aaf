"""Memory of a training step: what operators keep in a form of their own, and the peak of a step that is run."""

from __future__ import annotations

import contextlib
import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from bricolage.frontends.traced_step import OperatorCall, TracedStep
from bricolage.train.predict.operator_costs import UNSUITABLE, OperatorTimings, make_arguments
from bricolage.train.predict.variant_step import Runs
from bricolage.work.training_step import Storage

if TYPE_CHECKING:
    import torch

_MARK = "bricolage "

_RECURRENT = "aten::mkldnn_rnn_layer"
"""The last of its outputs has a size that PyTorch does not know without running it."""


def add_run_memory(graph: TracedStep, alone: OperatorTimings) -> TracedStep:
    """The graph with memory that is known only when operators run: each is run once alone, on made-up tensors.

    That is what oneDNN's recurrent layers keep for the backward phase, and what operators take while they run (weights in another
    order, padding, sums of each thread).
    """
    _run(graph, alone)
    storages = list(graph.storages)
    for place, storage in enumerate(storages):
        workspace = (
            alone.workspaces.get(graph.signatures[storage.born]) if storage.born >= 0 and storage.bytes == 0 else None
        )
        if workspace is not None:
            storages[place] = replace(storage, bytes=workspace, kind="activations")
    for number, signature in enumerate(graph.signatures):
        if alone.scratch[signature]:
            taken = Storage(alone.scratch[signature], number, number + 1, "temporary", graph.layers[number])
            storages.append(taken)
    return replace(graph, storages=tuple(storages))


def _run(graph: TracedStep, alone: OperatorTimings) -> None:
    import torch

    missing = [signature for signature in dict.fromkeys(graph.signatures) if signature not in alone.scratch]
    if not missing:
        return
    kept, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(alone.threads)
    torch.manual_seed(0)
    try:
        with _suppressed_stderr(), _make_profiler() as seen:
            for signature in missing:
                kept_for_later = _once(signature.partition("(")[0], graph.calls[signature], f"{_MARK}{signature}")
                if kept_for_later is not None:
                    alone.workspaces[signature] = kept_for_later
    finally:
        torch.set_num_threads(kept)
        torch.set_rng_state(state)
    events = seen.kineto_results.events()
    spans = {event.name(): (event.start_ns(), event.end_ns()) for event in events if event.name().startswith(_MARK)}
    changes = _changes(events)
    moments = [at for at, _ in changes]
    for signature in missing:
        start, end = spans.get(f"{_MARK}{signature}", (0, 0))
        sums = [0, *accumulate(size for _, size in changes[bisect_left(moments, start) : bisect_right(moments, end)])]
        alone.scratch[signature] = max(sums) - max(sums[-1], 0)


def _once(name: str, call: OperatorCall, mark: str) -> int | None:
    """Runs an operator, and says what bytes of a size that is not known beforehand it keeps."""
    import torch

    # With a graph of gradients, since oneDNN keeps nothing where nothing will ask for it.
    with contextlib.suppress(*UNSUITABLE), torch.set_grad_enabled(name == _RECURRENT):
        args, kwargs = make_arguments(name, call)
        with torch.autograd.profiler.record_function(mark):
            out = call.function(*args, **kwargs)
        return int(out[-1].untyped_storage().nbytes()) if name == _RECURRENT else None
    return None


def measured_peak(running: Runs) -> int:
    """Bytes of tensors at most while a step runs, by PyTorch's profiler; what lasts and the batch included."""
    running.run()  # the optimiser makes its state
    running.forget()  # the profiler counts as freed only what it saw made
    there: dict[int, int] = {}
    for tensors in running.lasting().values():
        for tensor in tensors:
            storage = tensor.untyped_storage()
            there[storage._cdata] = storage.nbytes()
    with _suppressed_stderr(), _make_profiler() as seen:
        running.run()
    changes = [size for _, size in _changes(seen.kineto_results.events())]
    return max(accumulate(changes, initial=sum(there.values())))


def _make_profiler() -> torch.autograd.profiler.profile:
    import torch

    return torch.autograd.profiler.profile(profile_memory=True, use_kineto=True)


def _changes(events: Iterable[Any]) -> list[tuple[int, int]]:
    """Nanoseconds and bytes: what is taken, and given back. PyTorch's types know nothing of an event's bytes."""
    return sorted(
        ((int(event.start_ns()), int(event.nbytes())) for event in events if event.name() == "[memory]"),
        key=itemgetter(0),
    )


class _suppressed_stderr:
    """Without what the profiler's library writes to standard error by itself."""

    def __enter__(self) -> None:
        sys.stderr.flush()
        self._kept = os.dup(2)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._kept, 2)
        os.close(self._kept)
