"""One graph of Dynamo's: decided at its first call, checked against PyTorch's eager and raced with it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch._dynamo.convert_frame import compile_lock

from bricolage.api.optimize import optimize
from bricolage.dynamo.arguments import Arguments, with_weights
from bricolage.dynamo.weights import Stamp, Weights, stamp
from bricolage.errors import BricolageError, LeftToPyTorch
from bricolage.measure.turns import time_in_turns, timed
from bricolage.options import Options
from bricolage.plan.plan import Bucket
from bricolage.runtime.executable import Executable
from bricolage.runtime.signature import describe
from bricolage.verify.compare import relative_error

_LOG = logging.getLogger(__name__)
_LEAST_MS = 0.02
"""A graph that eager computes in less is left to it: calling anything else costs as much."""
_ROUNDS, _RACING_S = 15, 1.0
_SETS = 16
"""Sets of weights with which one graph may be called, a layer's for example; beyond that the oldest is decided anew."""
_FARTHER = 4.0
"""Eager may be this many times as far from ours as the farthest accepted answer is from float64."""

Outputs: TypeAlias = tuple[torch.Tensor, ...]
_numbers = itertools.count()


@dataclass(frozen=True)
class GraphReport:
    """What became of a graph."""

    number: int
    operators: int
    """Calls of functions, methods and modules, as Dynamo recorded them."""
    left: str = ""
    """Why PyTorch's eager runs it; empty where bricolage does."""
    shipped: str = ""
    """What bricolage decided on: an implementation, or a plan; empty before the first call."""
    eager_ms: float | None = None
    bricolage_ms: float | None = None
    """Medians of the race in this process, calls as Dynamo makes them."""
    error: float | None = None
    """Against eager, relative."""
    decide_s: float | None = None

    def __str__(self) -> str:
        times = "" if self.eager_ms is None else f", eager {self.eager_ms:.3g} ms"
        times += "" if self.bricolage_ms is None else f", bricolage {self.bricolage_ms:.3g} ms"
        became = f"left to PyTorch: {self.left}" if self.left else self.shipped or "not called yet"
        return f"graph {self.number} ({self.operators} operators{times}): {became}"


@dataclass
class _Decided:
    """What is known of the graph with one set of weights."""

    weights: Weights
    executable: Executable
    strides: tuple[tuple[int, ...] | None, ...]
    """Of each output, where eager's has others than those of rows after rows."""
    decide_s: float
    gain_s: float
    """By which a call is faster than eager."""
    changed: Stamp = ()
    lost_s: float = 0.0
    """That eager has cost since the weights have changed to those of `changed`."""


class CompiledGraph:
    """Computes a graph. Arguments and results are those of the graph's module. Safe to call from several threads."""

    def __init__(self, module: torch.fx.GraphModule, options: Options, *, replan: bool = False) -> None:
        self.arguments: Arguments | None = None
        self.number = next(_numbers)
        self._module, self._options, self._replan = module, options, replan
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
        known = self._decided.get(tuple(map(id, weights)))
        if known is None:
            return self._first(places, weights, args)
        if not known.weights.unchanged(weights):
            return self._changed(known, weights, args)
        try:
            return _run(known.executable, known.strides, [args[place] for place in places.inputs])
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
            before = _Before(args)
            expected = self._module(*args)
            try:
                before.check(expected)
                decided = self._decide(places, weights, args, expected)
            except LeftToPyTorch as error:
                self.leave(str(error.facts["reason"]))
                return expected
            except BricolageError as error:
                self.leave(error.sentence)
                return expected
            self._decided[key] = decided
            while len(self._decided) > _SETS:
                self._decided.pop(next(iter(self._decided)), None)
            _LOG.info("%s", self.report)
        return expected

    def _decide(
        self, places: Arguments, weights: Sequence[torch.Tensor], args: Sequence[Any], expected: Outputs
    ) -> _Decided:
        """Optimises the graph with these weights, for these inputs.

        Raises:
            LeftToPyTorch: eager is as fast, or the answers differ.
            and as `optimize`.
        """
        eager = timed(lambda: self._module(*args))
        alone = time_in_turns({"eager": eager}, 7, least=3, seconds=_RACING_S / 4)
        eager_ms = alone.latency("eager").median_ms
        self.report = replace(self.report, eager_ms=eager_ms)
        if eager_ms < _LEAST_MS:
            raise LeftToPyTorch(reason="it takes eager no longer than calling anything else")
        inputs = [args[place] for place in places.inputs]
        start = time.monotonic()
        module = with_weights(self._module, places, weights)
        dynamic = tuple(dict.fromkeys(dimensions, torch.export.Dim.AUTO) for dimensions in places.dynamic)
        executable = optimize(
            module,
            self._options,
            example_inputs=tuple(one.detach() for one in inputs),
            dynamic=dynamic if any(dynamic) else None,
            replan=self._replan,
        )
        if len(executable.inputs) != len(inputs) or len(executable.outputs) != len(expected):
            raise LeftToPyTorch(reason=f"its export takes {describe(executable.inputs)}, which is not what it takes")
        seconds = time.monotonic() - start
        strides = tuple(None if one.is_contiguous() else one.stride() for one in expected)
        bucket = executable.plan.buckets[0]
        self.report = replace(self.report, shipped=bucket.chosen, decide_s=seconds)
        error = _difference(_run(executable, strides, inputs), expected)
        self.report = replace(self.report, error=error)
        bound = _FARTHER * max([self._options.bound, *_errors(bucket)])
        if error > bound:
            raise LeftToPyTorch(reason=f"the answer is {error:.1e} from eager's, which is more than {bound:.1e}")
        ours = timed(lambda: _run(executable, strides, inputs))
        race = time_in_turns({"eager": eager, "bricolage": ours}, _ROUNDS, least=3, seconds=_RACING_S)
        eager_ms, ours_ms = (race.latency(name).median_ms for name in ("eager", "bricolage"))
        self.report = replace(self.report, eager_ms=eager_ms, bricolage_ms=ours_ms)
        if ours_ms >= eager_ms:
            raise LeftToPyTorch(reason="eager is faster")
        key = tuple(map(id, weights))
        return _Decided(
            Weights(weights, lambda: self._decided.pop(key, None)),
            executable,
            strides,
            seconds,
            (eager_ms - ours_ms) / 1e3,
        )

    def _changed(self, known: _Decided, weights: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
        """With other weights than it was decided with. Whether they are still being trained nobody can tell, so eager runs
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


def _errors(bucket: Bucket) -> list[float]:
    """How far answers that were accepted are from float64."""
    return [one.error for one in bucket.contestants if one.accepted and one.error is not None]


class _Before:
    """What a graph could change besides answering, as it was before it ran."""

    def __init__(self, args: Sequence[Any]) -> None:
        self._tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        self._stamp, self._random = stamp(self._tensors), torch.get_rng_state()
        # Tensors made in inference mode have no version: only their values tell whether they were written.
        self._copies = [(one, one.clone()) for one in self._tensors if one.is_inference()]

    def check(self, outputs: object) -> None:
        """Whether it only answered, by what is there afterwards.

        Raises:
            LeftToPyTorch: it wrote its arguments, drew random numbers, or its results are memory of its arguments.
        """
        if stamp(self._tensors) != self._stamp or not all(torch.equal(one, copy) for one, copy in self._copies):
            raise LeftToPyTorch(reason="it writes one of its arguments")
        if not torch.equal(torch.get_rng_state(), self._random):
            raise LeftToPyTorch(reason="it draws random numbers")
        if not isinstance(outputs, tuple) or not outputs:
            raise LeftToPyTorch(reason="it has no results")
        for one in outputs:
            if not isinstance(one, torch.Tensor) or one.layout != torch.strided:
                raise LeftToPyTorch(reason=f"a result is of type {type(one).__name__}")
        results = [one.untyped_storage().data_ptr() for one in outputs if one.numel()]
        given = {one.untyped_storage().data_ptr() for one in self._tensors if one.numel()}
        if len(set(results)) < len(results) or given.intersection(results):
            raise LeftToPyTorch(reason="a result shares memory with an argument or another result")


def _run(executable: Executable, strides: Sequence[tuple[int, ...] | None], inputs: Sequence[torch.Tensor]) -> Outputs:
    """Outputs as eager would return them."""
    found = executable(*inputs)
    outputs = found if isinstance(found, tuple) else (found,)
    return tuple(one if stride is None else _strided(one, stride) for one, stride in zip(outputs, strides, strict=True))


def _strided(tensor: torch.Tensor, like: tuple[int, ...]) -> torch.Tensor:
    """The same values, dimensions in memory in the order of these strides."""
    order = sorted(range(tensor.ndim), key=lambda d: -like[d])
    back = sorted(range(tensor.ndim), key=lambda d: order[d])
    return tensor.permute(order).contiguous().permute(back)


def _difference(ours: Outputs, eagers: Outputs) -> float:
    """How far our answer is from eager's; infinite where types or shapes differ."""
    if any(a.dtype != b.dtype or a.shape != b.shape for a, b in zip(ours, eagers, strict=True)):
        return float("inf")
    return relative_error([_array(one) for one in ours], [_array(one) for one in eagers])


def _array(tensor: torch.Tensor) -> Any:
    return (tensor.double() if tensor.dtype.is_floating_point else tensor).detach().numpy()
