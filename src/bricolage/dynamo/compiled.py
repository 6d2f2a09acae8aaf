"""One graph of Dynamo's: decided at its first call, checked against PyTorch's eager and raced with it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock

from bricolage.base.budget import DecisionBudget
from bricolage.base.options import Options
from bricolage.dynamo.decision import GraphCall, Kept, by_learnt_costs, by_measuring
from bricolage.dynamo.graph_arguments import Arguments, with_weights
from bricolage.dynamo.report import GraphReport
from bricolage.dynamo.weights import Stamp, Weights, stamp
from bricolage.errors import BricolageError, LeftToPyTorch
from bricolage.measure.turns import make_turn, time_in_turns

_LOG = logging.getLogger(__name__)
_LEAST_MS = 0.02
"""A graph that eager computes in less is left to it: calling anything else costs as much."""
_SMALL_MS = 0.25
"""A graph that eager computes in less is decided by learnt costs alone: ten seconds of measuring would be paid back after 40,000
calls at the earliest ..."""
_MEASURED_FROM_S = 8.0
"""... and so is one with a smaller budget: workers, a reference and a race take some seconds in any case."""
_ROUNDS, _RACING_S = 15, 1.0
_RUNS, _WARMING = 4, 2
"""Calls of a turn, after those that do not count: the first calls after another program take up to twice as long, and callers make
many in a row."""
_SETS = 16
"""Sets of weights with which one graph may be called, a layer's for example; beyond that the oldest is decided anew."""

_numbers = itertools.count()


@dataclass
class _Decided:
    """What is known of the graph with one set of weights."""

    weights: Weights
    kept: Kept
    decide_s: float
    gain_s: float
    """By which a call is faster than eager."""
    changed: Stamp = ()
    lost_s: float = 0.0
    """That eager has cost since the weights have changed to those of `changed`."""


class CompiledGraph:
    """Computes a graph. Arguments and results are those of the graph's module. Safe to call from several threads."""

    def __init__(
        self, module: torch.fx.GraphModule, options: Options, *, replan: bool = False, provisional: bool = False
    ) -> None:
        self.arguments: Arguments | None = None
        self.number = next(_numbers)
        self._module, self._options = module, options
        self._replan, self._provisional = replan, provisional
        self._decided: dict[tuple[int, ...], _Decided] = {}
        calls = ("call_function", "call_method", "call_module")
        self.report = GraphReport(self.number, sum(node.op in calls for node in module.graph.nodes))

    def leave(self, reason: str) -> None:
        """Leaves the graph to PyTorch's eager for good."""
        self.arguments = None
        self.report = replace(self.report, left=reason)
        _LOG.warning("%s", self.report)

    def __call__(self, *args: Any) -> Any:
        """Results of the graph."""
        places = self.arguments
        if places is None:
            return self._module(*args)
        weights = [args[place] for place in places.weights]
        decision = self._decided.get(tuple(map(id, weights)))
        if decision is None:
            return self._first(places, weights, args)
        if not decision.weights.unchanged(weights):
            return self._run_changed(decision, weights, args)
        try:
            return decision.kept([args[place] for place in places.inputs])
        except BricolageError as error:
            self.leave(str(error))
            return self._module(*args)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _first(self, places: Arguments, weights: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
        # One graph at a time, and while Dynamo compiles nothing: exporting sets flags of PyTorch's for the whole process.
        with compile_lock:
            key = tuple(map(id, weights))
            if key in self._decided or self.arguments is None:  # another thread has decided meanwhile
                return self(*args)
            before, begin = _Before(args), time.perf_counter()
            expected = self._module(*args)
            ran = time.perf_counter()
            self._note(eager_ms=(ran - begin) * 1e3)
            left = ""
            try:
                before.check(expected)
                self._decided[key] = self._decide(places, weights, args, expected)
            except LeftToPyTorch as error:
                left = str(error.facts["reason"])
            except BricolageError as error:
                left = error.sentence
            self._note(decide_s=time.perf_counter() - ran)
            if left:
                self.leave(left)
                return expected
            while len(self._decided) > _SETS:
                self._decided.pop(next(iter(self._decided)), None)
            _LOG.info("%s", self.report)
        return expected

    def _note(self, **facts: Any) -> None:
        self.report = replace(self.report, **facts)

    def _decide(
        self,
        places: Arguments,
        weights: Sequence[torch.Tensor],
        args: Sequence[Any],
        expected: tuple[torch.Tensor, ...],
    ) -> _Decided:
        """Decides the graph with these weights, for these inputs.

        Raises:
            LeftToPyTorch: eager is as fast, the answers differ, or changes of the weights could not be seen in time.
            and as `optimize`.
        """
        start = time.monotonic()
        key = tuple(map(id, weights))
        before = Weights(weights, lambda: self._decided.pop(key, None))
        eager = make_turn(lambda: self._module(*args), _RUNS, _WARMING)
        alone = time_in_turns({"eager": eager}, 7, least=3, seconds=_RACING_S / 4)
        eager_ms = alone.latency("eager").median_ms
        self._note(eager_ms=eager_ms)
        least_ms = min(ms for samples in alone.samples("eager") for ms in samples)
        if least_ms < _LEAST_MS:
            raise LeftToPyTorch(reason="it takes eager no longer than calling anything else")
        gains = list[float]()

        def win(ours: Callable[[], object]) -> None:
            race = time_in_turns(
                {"eager": eager, "bricolage": make_turn(ours, _RUNS, _WARMING)}, _ROUNDS, least=3, seconds=_RACING_S
            )
            theirs_ms, ours_ms = (race.latency(name).median_ms for name in ("eager", "bricolage"))
            self._note(eager_ms=theirs_ms, bricolage_ms=ours_ms)
            if ours_ms >= theirs_ms:
                raise LeftToPyTorch(reason="eager is faster")
            gains.append((theirs_ms - ours_ms) / 1e3)

        dynamic = tuple(dict.fromkeys(dimensions, torch.export.Dim.AUTO) for dimensions in places.dynamic)
        case = GraphCall(
            with_weights(self._module, places, weights),
            [args[place] for place in places.inputs],
            expected=expected,
            dynamic=dynamic if any(dynamic) else None,
            operators=self.report.operators,
            options=self._options,
            note=self._note,
            win=win,
        )
        budget = DecisionBudget.of(self._options, self.report.operators).whole_s
        if budget < _MEASURED_FROM_S or least_ms < _SMALL_MS:
            kept = by_learnt_costs(case, eager_ms, start + budget)
        else:
            kept = by_measuring(case, self._replan, self._provisional)
        before.watch(weights, gains[-1])
        return _Decided(before, kept, time.monotonic() - start, gains[-1])

    def _run_changed(self, known: _Decided, weights: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
        """With other weights than it was decided with. Whether they are still being trained is unknown, so eager runs
        until it has cost, against what was decided before, what deciding takes: no more than twice what the best choice
        would have."""
        now = stamp(weights)
        if now != known.changed:
            if not known.changed:
                _LOG.warning("graph %d: its weights have changed; PyTorch's eager runs it for now", self.number)
            known.changed, known.lost_s = now, 0.0
        known.lost_s += known.gain_s
        if known.lost_s < known.decide_s:
            return self._module(*args)
        with compile_lock:
            self._decided.pop(tuple(map(id, weights)), None)
        return self(*args)


class _Before:
    """What a graph could change other than its answer, as it was before it ran."""

    def __init__(self, args: Sequence[object]) -> None:
        self._tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        self._stamp, self._random = stamp(self._tensors), torch.get_rng_state()
        # Tensors made in inference mode have no version: only their values tell whether they were written.
        self._copies = [(tensor, tensor.clone()) for tensor in self._tensors if tensor.is_inference()]

    def check(self, outputs: object) -> None:
        """Whether it only answered, by what is there afterwards.

        Raises:
            LeftToPyTorch: it wrote its arguments, drew random numbers, or its results are memory of its arguments.
        """
        if stamp(self._tensors) != self._stamp or not all(
            torch.equal(original, copy) for original, copy in self._copies
        ):
            raise LeftToPyTorch(reason="it writes one of its arguments")
        if not torch.equal(torch.get_rng_state(), self._random):
            raise LeftToPyTorch(reason="it draws random numbers")
        if not isinstance(outputs, tuple) or not outputs:
            raise LeftToPyTorch(reason="it has no results")
        for output in outputs:
            if not isinstance(output, torch.Tensor) or output.layout != torch.strided:
                raise LeftToPyTorch(reason=f"a result is of type {type(output).__name__}")
        results = [output.untyped_storage().data_ptr() for output in outputs if output.numel()]
        given = {tensor.untyped_storage().data_ptr() for tensor in self._tensors if tensor.numel()}
        if len(set(results)) < len(results) or given.intersection(results):
            raise LeftToPyTorch(reason="a result shares memory with an argument or another result")
