"""`Executable`: a plan made ready on this machine."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage import scratch
from bricolage.backends import registry
from bricolage.backends.interface import Backend, Resources
from bricolage.cache import Hold
from bricolage.device.buffers import bindable
from bricolage.device.host import selected
from bricolage.errors import BricolageError, NoBackend
from bricolage.graph.extract import graph_of
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import prepare
from bricolage.graph.region import Region
from bricolage.graph.store import Store
from bricolage.options import MOST_THREADS_A_CORE, available_cores
from bricolage.plan import artifact
from bricolage.plan.plan import ORIGINAL, Bucket, Plan, TensorSpec, numbers
from bricolage.plan.step import Step
from bricolage.runtime import forks, signature
from bricolage.runtime.compile import compile_program
from bricolage.runtime.program import BoundProgram, Program
from bricolage.runtime.spans import Span
from bricolage.work import bits as bitset
from bricolage.work.implementation import Assignment, Implementation, Placement

_LOG = logging.getLogger(__name__)
_OTHER_SHAPES = 16
"""Programs kept for shapes outside the buckets; the least recently used is dropped."""


@dataclass
class _Ready:
    """A compiled program; `bound` is None where shapes are known only at run time."""

    program: Program
    bound: BoundProgram | None
    backends: frozenset[str]
    """Those that it runs on."""


@dataclass(frozen=True)
class Traced:
    """A run and what ran when."""

    outputs: Mapping[str, Any]
    """By name, as `Executable.run` returns them."""
    spans: tuple[Span, ...]
    """In the order of their starts; `step` counts the regions of the bucket."""
    bucket: int | None
    """Index of the bucket; None where the shape was not planned, and the regions are others."""


class Executable:
    """A model, planned for this machine and ready to run.

    Call it with numpy arrays or torch tensors, by position, by input name, or with one mapping of names to arrays; it returns
    the same kind: one tensor, or a tuple where the model has several outputs. Plain numbers and lists of them are taken as the
    type of the input. Safe to call from several threads: calls take turns, since one run uses all cores.

    Raises (when called):
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
        ForkedProcess: this process was forked after the executable was made, and a backend of it does not live on.
    """

    def __init__(self, plan: Plan, directory: Path, *, temporary: bool = False) -> None:
        """`directory` holds the plan's graphs and weights; a `temporary` one is removed with the executable."""
        self.plan = plan
        self._directory, self._store = directory, Store(directory)
        if temporary:
            weakref.finalize(self, scratch.remove, directory)
        elif not scratch.owns(directory):
            self._hold = Hold(directory)  # another process that trims the cache leaves it alone
        options = plan.provenance.options
        self._device = selected(options.isa, options.cores)
        self._lock = threading.RLock()
        self._ready: dict[int, _Ready] = {}
        self._others: OrderedDict[tuple[tuple[str, int], ...], _Ready] = OrderedDict()
        forks.tell(self)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What the model takes; symbolic dimensions keep their names."""
        return self.plan.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What the model returns."""
        return self.plan.outputs

    def graph(self, bucket: int = 0) -> Graph:
        """The operator graph of a bucket, numbered as in the plan."""
        return graph_of(self._directory / self.plan.buckets[bucket].graph)

    def save(self, path: str | Path) -> Path:
        """Writes the artifact (see `bricolage.plan.artifact`).

        Raises:
            NotWritable: the folder is not writable or the disk is full.
        """
        target = Path(path)
        artifact.save(self.plan, self._directory, target)
        return target

    def prepare(self, bucket: int = 0) -> None:
        """Compiles a bucket now rather than at its first call."""
        with self._lock:
            self._bucket(bucket)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Outputs for inputs, by position or by name; see the class."""
        by_position, by_name = signature.by_position_and_name(self.plan.inputs, args, named)
        arrays = signature.collect(self.plan.inputs, by_position, by_name)
        results = list(self._run(arrays).values())
        if any(signature.is_torch(value) for value in (*by_position, *by_name.values())):
            results = [signature.to_torch(value) for value in results]
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name for inputs by name, as numpy arrays."""
        return self._run(signature.collect(self.plan.inputs, (), inputs))

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray] | None = None) -> BoundProgram:
        """Binds to the caller's own buffers, for repeated runs without any copy: the returned object is called without
        arguments, reads `inputs` and writes its `.outputs`. Not synchronised with other calls.

        Arrays that are not C-contiguous and aligned to 64 bytes are refused with ValueError (see
        `bricolage.device.buffers.aligned`).
        """
        arrays = signature.collect(self.plan.inputs, (), inputs)
        for name, array in {**arrays, **(outputs or {})}.items():
            if not bindable(array):
                raise ValueError(f"'{name}' is not C-contiguous and aligned to 64 bytes; make it with aligned()")
        with self._lock:
            ready = self._select(arrays)
        if ready.bound is None:
            raise ValueError("the model's shapes are known only at run time; call the executable instead")
        return ready.program.bind(arrays, outputs)

    def trace(self, inputs: Mapping[str, Any]) -> Traced:
        """As `run`, and when each region really ran, on which thread and core. Where shapes are known only at run time, there
        are no spans."""
        arrays = signature.collect(self.plan.inputs, (), inputs)
        spans: list[Span] = []
        results = self._run(arrays, spans)
        return Traced(results, tuple(spans), self._planned(signature.dimensions(self.plan.inputs, arrays)))

    def _run(self, arrays: dict[str, Any], spans: list[Span] | None = None) -> dict[str, Any]:
        with self._lock:
            ready = self._select(arrays)
            if ready.bound is None:
                return ready.program.run(arrays)
            for name, buffer in ready.bound.inputs.items():
                np.copyto(buffer, arrays[name])
            if spans is None:
                ready.bound()
            else:
                spans += ready.bound.traced()
            return {name: buffer.copy() for name, buffer in ready.bound.outputs.items()}

    def after_fork(self) -> None:
        """In a forked process: the lock may have been held by a thread that is not there any more, and what does not live on is
        compiled again when it is asked for."""
        self._lock = threading.RLock()
        for ready in (*self._ready.values(), *self._others.values()):
            if not _lives(ready):
                forks.never_freed(ready)
        self._ready = {index: ready for index, ready in self._ready.items() if _lives(ready)}
        self._others = OrderedDict((key, ready) for key, ready in self._others.items() if _lives(ready))

    def _planned(self, sizes: Mapping[str, int]) -> int | None:
        """The bucket of a shape; None where it has none."""
        for index, bucket in enumerate(self.plan.buckets):
            if all(sizes.get(name) == size for name, size in bucket.sizes.items()):
                return index
        return None

    def _select(self, arrays: Mapping[str, Any]) -> _Ready:
        sizes = signature.dimensions(self.plan.inputs, arrays)
        index = self._planned(sizes)
        if index is not None:
            return self._bucket(index)
        key = tuple(sorted(sizes.items()))
        if key not in self._others:
            self._others[key] = self._other_shape(sizes)
            if len(self._others) > _OTHER_SHAPES:
                self._others.popitem(last=False)
        self._others.move_to_end(key)
        return self._others[key]

    def _bucket(self, index: int) -> _Ready:
        if index not in self._ready:
            bucket = self.plan.buckets[index]
            graph = graph_of(self._directory / bucket.graph)
            cores = None if bucket.schedule is None else bucket.schedule.cores
            self._ready[index] = self._compile(graph, placement_of(bucket), cores)
        return self._ready[index]

    def _other_shape(self, sizes: Mapping[str, int]) -> _Ready:
        """A shape outside the buckets: the nearest bucket's plan on the graph of this shape.

        Regions on backends that compile slowly go to the fastest single backend that compiles quickly, since a caller
        waits. That backend runs all of the graph where the plan divides a rewritten one (rules belong to deciding, and the
        artifact holds them for the planned shapes only), and where the graph of this shape differs in structure.
        """
        bucket = min(self.plan.buckets, key=lambda b: _distance(b.sizes, sizes))
        graph = prepare(ir.load(self._directory / artifact.MODEL), sizes)
        quick = self._quick_implementation(bucket)
        _LOG.info("new shape %s: planned as %s", dict(sizes), dict(bucket.sizes))
        if bucket.variant != ORIGINAL or len(graph) != bucket.operators:
            return self._compile(graph, (Assignment(graph.everything.bits, quick),))
        chosen = tuple(
            replace(one, implementation=quick) if registry.get(one.implementation.backend).compiles_slowly else one
            for one in placement_of(bucket)
        )
        try:
            return self._compile(graph, chosen)
        except BricolageError as error:
            _LOG.warning("the nearest plan does not fit the shape %s (%s); using %s", dict(sizes), error, quick)
            return self._compile(graph, (Assignment(graph.everything.bits, quick),))

    def _quick_implementation(self, bucket: Bucket) -> Implementation:
        """The fastest accepted baseline of a backend that compiles quickly and is installed here.

        Raises:
            NoBackend: there is none.
        """
        quick = {backend.name: backend for backend in registry.available() if not backend.compiles_slowly}
        for one in ranked_baselines(bucket):
            if one.backend in quick:
                return one
        for backend in quick.values():
            return first_implementation(backend, self.plan)
        raise NoBackend(why=" that compiles quickly enough for a new shape")

    def _compile(self, graph: Graph, placement: Placement, cores: Sequence[tuple[int, ...]] | None = None) -> _Ready:
        identities = Identities(graph)
        alone = len({one.implementation.backend for one in placement}) == 1
        threads = min(self.plan.provenance.options.threads, MOST_THREADS_A_CORE * available_cores())
        resources = Resources(threads=threads, device=self._device, alone=alone)
        steps = []
        for one in placement:
            region = Region(graph, one.region)
            steps.append(Step(one.implementation, self._store.region(region, identities.key(region))))
        program = compile_program(
            steps, [info.name for info in graph.inputs], [info.name for info in graph.outputs], resources, cores=cores
        )
        backends = frozenset(one.implementation.backend for one in placement)
        return _Ready(program, program.bind() if program.static else None, backends)


def _lives(ready: _Ready) -> bool:
    return not ready.program.scheduled and all(registry.get(name).after_fork == "lives" for name in ready.backends)


def placement_of(bucket: Bucket) -> Placement:
    """The assignments of a plan's regions."""
    return tuple(Assignment(bitset.of(numbers(r.operators)), r.implementation) for r in bucket.regions)


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Sum over dimensions of |log ratio|: twice as long counts the same at every length."""
    return sum(abs(math.log(size / max(other.get(name, 1), 1))) for name, size in one.items())


def first_implementation(backend: Backend, plan: Plan) -> Implementation:
    """A backend that the plan does not speak of, in its first configuration for the plan's precision and device."""
    options = plan.provenance.options
    device = selected(options.isa, options.cores)
    return Implementation(backend.name, backend.configs(options.precision, device)[0], device.name)


def ranked_baselines(bucket: Bucket) -> list[Implementation]:
    """Implementations of accepted baselines, fastest first."""
    timed = [(c.median_ms, c.implementation) for c in bucket.contestants if c.accepted and c.median_ms is not None]
    return [one for _, one in sorted((t for t in timed if t[1] is not None), key=lambda t: t[0]) if one is not None]
